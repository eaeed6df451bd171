# SPDX-License-Identifier: MIT
"""Whose confidence is scaled by what: temperatures for every row of a launch.

How far a confidence can be trusted depends on who drafts, and on how the row is
decoded: a target that draws its tokens follows a likely draft less often than
one that takes the likeliest. So each kind of row has an `OnlineSTS` of its own,
made when the first of its rows comes:

  kind               temperatures by depth
  greedy             1.4  1.5  1.5
  greedy, grammar    0.9  1.0  0.9      masks make other drafts right
  sampled            2.1  2.3  2.2
  ngram, sampled     0.8  0.8  0.8      a member of a mixture
"""

from collections.abc import Sequence

import numpy as np

from jspec.depth import online_sts
from jspec.drafters import mixed
from jspec.serve import device, plan


class Confidence:
  """Learns from launches that come back, for those that are sent."""

  def __init__(self, drafter, is_scaled: bool):
    """For the engine's drafter; not `is_scaled`: temperatures stay 1."""
    self._drafter, self._is_scaled = drafter, is_scaled
    self._num_drafts = 0 if drafter is None else drafter.num_draft_tokens
    self._of = {}

  def kind(self, decode: plan.Decode) -> str:
    """The kind of a row."""
    ask = decode.params
    how = 'sampled' if ask.params.temperature > 0 else 'greedy'
    if ask.constraint is not None:
      how += ', grammar'
    if not isinstance(self._drafter, mixed.Mixed):
      return how
    index = self._drafter.index(ask.drafter)
    is_nobody = index == mixed.NOBODY
    return f'{mixed.NONE if is_nobody else self._drafter.names[index]}, {how}'

  def temperatures(self, decodes: Sequence[plan.Decode]) -> np.ndarray:
    """[B, G] for the rows of a launch."""
    ones = np.ones(self._num_drafts)
    known = [self._of.get(self.kind(decode)) for decode in decodes]
    return np.stack([ones if of is None else of.temperatures for of in known])

  def observe(self, decodes: Sequence[plan.Decode], used: device.Used) -> None:
    """Takes in the last round of a launch with these rows."""
    if not self._is_scaled:
      return
    kinds = np.array([self.kind(decode) for decode in decodes])
    for kind in dict.fromkeys(kinds.tolist()):
      if kind not in self._of:
        self._of[kind] = online_sts.OnlineSTS(self._num_drafts)
      is_own = kinds == kind
      self._of[kind].observe(
        used.confidence[is_own],
        used.parents[is_own],
        used.num_verified[is_own],
        used.path[is_own],
      )

  def forget(self) -> None:
    """Nothing is known: somebody else drafts."""
    self._of.clear()

  def figures(self) -> dict[str, online_sts.Figures]:
    """What is known of each kind, for reports."""
    return {kind: of.figures() for kind, of in self._of.items()}
