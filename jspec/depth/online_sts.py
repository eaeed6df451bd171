# SPDX-License-Identifier: MIT
r"""Temperatures of confidence that follow what is accepted, on the host.

`sts` fits them once, to many rounds at once; here they follow the traffic:

  launch n    its last round: confidence as drafted, what was verified and right
  windows     the last 1,024 drafts verified at each depth, with their paths
  every 64    fit depth by depth, left to right:
  rounds        T_k = argmin_T  log loss of  P_{k-1} sigmoid(x_k / T)
                                + 4 (log T - log T_{k-1})^2
                P_k = P_{k-1} sigmoid(x_k / T_k)
              go half the way there (of logs): the candidate
  the next    Brier score of survival, candidate against what is in use; taken
  64 rounds   if it is not worse, else forgotten
  launch n+2  confidence scaled by what is in use

x is the logit of a confidence. Log loss instead of the calibration error, which
is rough and overfits what few rounds there are; for the same reason a depth is
drawn to the one before it, and nothing is taken before rounds that came later,
and that it was not fitted to, agree.

A draft that was cut says nothing about its depth and is not counted: counting
it as rejected would teach that what is not verified is never right. A policy
cuts by confidence, and given the confidence the rest is fair. Depths forget by
their own drafts, so one that is no longer verified keeps what was known of it,
and one that never had `sts.MIN_ROUNDS` has the temperature of the one before.
The guard's launches that verify the whole block (`guard`) bring drafts of every
depth again, and gather in the window however seldom they are.

A chain is a tree; nodes of a tree are counted at their depth, by their own
path. Siblings exclude each other, which costs certainty and no bias.

Scores may not anticipate (`safety`). These temperatures are fitted to earlier
launches: numbers, given the past, so a scaled confidence looks at the tokens
that the raw one does and at no other of its round. Whether those launches had
tokens of the same row makes no difference: they are committed or thrown away.
"""

from typing import NamedTuple

import numpy as np

from jspec.depth import calibration, sts

WINDOW = 1024  # drafts of a depth
EVERY = 64  # rounds between fits, and to judge one by
MIN_LAUNCHES = 8  # between fits, so that large batches do not fit all the time
_SMOOTHING = 0.5  # of the way to a fit, in logs
_HOLD = 4.0  # nats, by which a depth is drawn to the one before it
_COARSE = 8  # every so many of `sts.GRID` first, then those around the best
_SMALLEST = 1e-6  # of a probability whose logarithm is taken


class Figures(NamedTuple):
  """What is known; survival of the drafts in the windows, raw and scaled.

  Attributes:
    temperatures: in use, by depth.
    num_rounds: seen.
    num_taken: fits that were taken.
    num_refused: fits that did worse on later rounds.
    raw: figures of survival by confidence as drafted.
    scaled: the same by temperatures.
  """

  temperatures: np.ndarray
  num_rounds: int
  num_taken: int
  num_refused: int
  raw: calibration.Calibration
  scaled: calibration.Calibration


class _Drafts(NamedTuple):
  """Verified drafts of one depth: logits of their paths, and whether right."""

  logits: np.ndarray  # [N, depth]
  is_right: np.ndarray  # [N]


class OnlineSTS:
  """Learns from rounds that come back.

  Attributes:
    temperatures: [G] of the next launch.
  """

  def __init__(self, num_drafts: int):
    self.temperatures = np.ones(num_drafts)
    self._windows = [_Window(depth) for depth in range(1, num_drafts + 1)]
    self._candidate = None
    self._new = []  # launches since the last fit
    self._num_new = self._num_rounds = 0  # rounds since then, and in all
    self._num_taken = self._num_refused = 0

  def observe(
    self,
    confidence: np.ndarray,
    parents: np.ndarray,
    num_verified: np.ndarray,
    path: np.ndarray,
  ) -> None:
    """Takes in the last round of some rows of one launch.

    Args:
      confidence: [N, G] of drafts given their parents, not scaled.
      parents: [N, G] nodes they hang from; 0 is the anchor, draft i node i + 1.
      num_verified: [N] drafts verified; none or -1 teaches nothing.
      path: [N, G] nodes that were right, from the first on and then 0.
    """
    is_good = (num_verified > 0) & np.isfinite(confidence).all(axis=1)
    if not is_good.any():
      return
    given = confidence, parents, num_verified, path
    self._new.append([x[is_good] for x in given])
    num_rounds = int(is_good.sum())
    self._num_new += num_rounds
    self._num_rounds += num_rounds
    if self._num_new >= EVERY and len(self._new) >= MIN_LAUNCHES:
      self._learn(_by_depth(*map(np.concatenate, zip(*self._new, strict=True))))
      self._new, self._num_new = [], 0

  def figures(self) -> Figures:
    """What is known so far; for reports, not for every launch."""
    drafts = [window.drafts() for window in self._windows]
    is_right = np.concatenate([np.zeros(0), *(d.is_right for d in drafts)])

    def of(temperatures):
      survival = np.concatenate(
        [np.zeros(0), *(_survival(d.logits, temperatures) for d in drafts)]
      )
      everything = np.ones((len(survival), 1), bool)
      return calibration.by_position(
        survival[:, None], everything, is_right[:, None]
      )[0]

    return Figures(
      temperatures=self.temperatures.copy(),
      num_rounds=self._num_rounds,
      num_taken=self._num_taken,
      num_refused=self._num_refused,
      raw=of(np.ones_like(self.temperatures)),
      scaled=of(self.temperatures),
    )

  def _learn(self, new):
    """Judges the candidate by drafts it has not seen, and makes another."""
    if self._candidate is not None:
      if _squares(new, self._candidate) <= _squares(new, self.temperatures):
        self.temperatures = self._candidate
        self._num_taken += 1
      else:
        self._num_refused += 1
    for window, drafts in zip(self._windows, new, strict=False):
      window.add(drafts)
    self._candidate = self._fit()

  def _fit(self):
    """Half way from what is in use to what the windows say."""
    found = self.temperatures.copy()
    before = 1.0
    for k, window in enumerate(self._windows):
      if not window.is_fitted and window.size < sts.MIN_ROUNDS:
        found[k] = before
      elif window.num_new:
        best = _best(window.drafts(), found[:k], before)
        found[k] = found[k] * (best / found[k]) ** _SMOOTHING
        window.num_new, window.is_fitted = 0, True
      before = found[k]
    return found


class _Window:
  """The last drafts of a depth, in a ring.

  Attributes:
    size: drafts that it holds.
    num_new: that came since the last fit.
    is_fitted: whether there ever was one.
  """

  def __init__(self, depth):
    self._logits = np.zeros((WINDOW, depth), np.float32)
    self._is_right = np.zeros(WINDOW, np.float32)
    self._next = self.size = self.num_new = 0
    self.is_fitted = False

  def add(self, drafts):
    logits, is_right = (x[-WINDOW:] for x in drafts)
    at = (self._next + np.arange(len(is_right))) % WINDOW
    self._logits[at], self._is_right[at] = logits, is_right
    self._next = (self._next + len(is_right)) % WINDOW
    self.size = min(self.size + len(is_right), WINDOW)
    self.num_new += len(is_right)

  def drafts(self):
    return _Drafts(self._logits[: self.size], self._is_right[: self.size])


def _by_depth(confidence, parents, num_verified, path) -> list[_Drafts]:
  """Verified drafts of each depth that has some, from 1 on."""
  num_rows = len(confidence)
  most = int(num_verified.max())
  logits = _logits(confidence[:, :most].astype(np.float32))
  rows = np.arange(num_rows)
  # Of every node the logits from the root to it; the anchor has none.
  paths = np.zeros((num_rows, most + 1, most), np.float32)
  depth = np.zeros((num_rows, most + 1), int)
  for i in range(most):
    parent = parents[:, i]
    level = depth[rows, parent]
    paths[:, i + 1] = paths[rows, parent]
    paths[rows, i + 1, level] = logits[:, i]
    depth[:, i + 1] = level + 1
  is_verified = np.arange(most) < num_verified[:, None]
  number = np.arange(1, most + 1)
  is_right = (path[:, None, :] == number[:, None]).any(axis=2)
  deepest = int(depth[:, 1:][is_verified].max())
  found = []
  for k in range(1, deepest + 1):
    row, node = np.nonzero(is_verified & (depth[:, 1:] == k))
    found.append(_Drafts(paths[row, node + 1, :k], is_right[row, node]))
  return found


def _logits(confidence):
  """A confidence of 0 or 1 has none that is finite, and stays what it is."""
  with np.errstate(divide='ignore'):
    c = np.clip(confidence, 0.0, 1.0)
    return np.log(c) - np.log1p(-c)


def _survival(logits, temperatures):
  scaled = logits / temperatures[: logits.shape[1]].astype(np.float32)
  return np.prod(_sigmoid(scaled), axis=1)


def _squares(by_depth, temperatures):
  return sum(
    float(np.sum((_survival(d.logits, temperatures) - d.is_right) ** 2))
    for d in by_depth
  )


def _best(drafts, temperatures, before):
  """The temperature of the last of the depths that `drafts` pass through."""
  sure = _survival(drafts.logits[:, :-1], temperatures)[:, None]
  own = drafts.logits[:, -1:]
  is_right = drafts.is_right[:, None] > 0

  def at(grid):
    p = sure * _sigmoid(own / grid.astype(np.float32))
    told = np.where(is_right, p, 1 - p)
    loss = -np.sum(np.log(np.maximum(told, _SMALLEST)), axis=0)
    return int(np.argmin(loss + _HOLD * np.log(grid / before) ** 2))

  best = at(sts.GRID[::_COARSE]) * _COARSE
  near = sts.GRID[max(best - _COARSE + 1, 0) : best + _COARSE]
  return near[at(near)]


def _sigmoid(x):
  return 0.5 + 0.5 * np.tanh(0.5 * x)
