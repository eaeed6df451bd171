# SPDX-License-Identifier: MIT
"""What a round says about acceptance, and what it does not.

A draft tells something about its position only if it was verified and all
before it were accepted. A cut draft was not rejected, and one behind a
rejection was never tested:

  drafts      y1  y2  y3  y4  y5        verified 4, accepted 2
  observed     1   1   1   .   .
  accepted     1   1   0   .   .

Averages of the accepted length are censored: with everything accepted the
length is that of the draft, so they can only fall. Rates by position are not,
because each divides by how often the position was observed.

On the host, with numpy.
"""

from typing import NamedTuple

import numpy as np


class Labels(NamedTuple):
  """Outcomes of drafts, [N, G] both; `is_accepted` only where observed."""

  is_observed: np.ndarray
  is_accepted: np.ndarray


def of_chain(
  num_verified: np.ndarray, num_accepted: np.ndarray, num_drafts: int
) -> Labels:
  """Labels of N chains from [N] drafts verified (no anchor) and accepted."""
  position = np.arange(num_drafts)
  verified = np.asarray(num_verified)[:, None]
  accepted = np.asarray(num_accepted)[:, None]
  is_observed = (position < verified) & (position <= accepted)
  return Labels(is_observed, is_observed & (position < accepted))


class Rates:
  """Running acceptance of each position given the one before was accepted.

  Attributes:
    half_life: observations after which one counts half. Positions forget by
      their own observations, so one that is seldom reached keeps what it knows.
    num_seen: [G] observations of each position so far.
  """

  def __init__(
    self, num_drafts: int, half_life: float = 256.0, prior: float = 0.7
  ):
    self.half_life = half_life
    # Two observations' worth, so that a rate is a number from the beginning.
    self._trials = np.full(num_drafts, 2.0)
    self._hits = self._trials * prior
    self.num_seen = np.zeros(num_drafts)

  def update(self, labels: Labels) -> None:
    trials = labels.is_observed.sum(axis=0)
    keep = 0.5 ** (trials / self.half_life)
    self._trials = self._trials * keep + trials
    self._hits = self._hits * keep + labels.is_accepted.sum(axis=0)
    self.num_seen += trials

  def conditional(self) -> np.ndarray:
    """[G]; a position never observed is taken to be like the last that was.

    Otherwise a depth once cut would never be tried again.
    """
    rates = self._hits / self._trials
    seen = np.flatnonzero(self.num_seen)
    if len(seen):
      rates[seen[-1] + 1 :] = rates[seen[-1]]
    return rates

  def survival(self, errors: float = 0.0) -> np.ndarray:
    """[G] probability that the draft is accepted up to each position.

    Args:
      errors: standard errors that every rate is taken above what was seen.
    """
    rates, trials = self.conditional(), self._trials.copy()
    seen = np.flatnonzero(self.num_seen)
    if len(seen):
      trials[seen[-1] + 1 :] = trials[seen[-1]]
    error = np.sqrt(rates * (1 - rates) / trials)
    return np.cumprod(np.minimum(rates + errors * error, 1.0))
