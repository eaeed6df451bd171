# SPDX-License-Identifier: MIT
r"""A monotone surface through few measured times.

Seconds grow with rows, nodes and context, but a dozen measurements cover little
of the box of all three. Two things are known of a point x between them:

  model   w0 + w1 rows + w2 nodes + w3 rows * context,    all w >= 0
  bounds  every measured point below x took no longer, every one above no less

The surface is the model clipped to the bounds. Both are non-decreasing, so it
is, and it passes through what was measured:

  seconds        o----      o  measured
            ..../           .  model
       o---'                -  bound

Measurements that contradict each other (more work, less time) are first moved
to the middle between the largest time below and the smallest above.
"""

import itertools
from typing import NamedTuple

import numpy as np

_SMALLEST = 1e-9  # seconds


class Surface(NamedTuple):
  """What was measured, made monotone, and the model between.

  Attributes:
    points: [N, 3] rows, nodes, context.
    seconds: [N].
    weights: [4] of the model.
  """

  points: np.ndarray
  seconds: np.ndarray
  weights: np.ndarray

  def at(self, queries: np.ndarray) -> np.ndarray:
    """Seconds at [M, 3] rows, nodes, context; non-decreasing in each."""
    queries = np.asarray(queries, float)
    modelled = features(queries) @ self.weights
    below, above = _order(self.points, queries)
    lower = np.max(np.where(below, self.seconds, 0.0), axis=1)
    upper = np.min(np.where(above, self.seconds, np.inf), axis=1)
    return np.maximum(np.clip(modelled, lower, upper), _SMALLEST)


def fit(points: np.ndarray, seconds: np.ndarray) -> Surface:
  """Fits [N, 3] points (rows, nodes, context) and [N] seconds; N >= 1."""
  points = np.asarray(points, float)
  seconds = isotonic(points, np.asarray(seconds, float))
  return Surface(points, seconds, _weights(points, seconds))


def isotonic(points: np.ndarray, seconds: np.ndarray) -> np.ndarray:
  """Non-decreasing times, equal to the given ones where those are."""
  below, above = _order(points, points)
  least = np.max(np.where(below, seconds, -np.inf), axis=1)
  most = np.min(np.where(above, seconds, np.inf), axis=1)
  return (least + most) / 2


def features(points: np.ndarray) -> np.ndarray:
  """[N, 4]: launching, rows, matmuls of the nodes, reading the context."""
  rows, nodes, context = points.T
  return np.stack([np.ones_like(rows), rows, nodes, rows * context], axis=1)


def _order(points, queries):
  """Which points lie below and above each query: [M, N] twice."""
  difference = queries[:, None] - points[None]
  return np.all(difference >= 0, axis=2), np.all(difference <= 0, axis=2)


def _weights(points, seconds):
  """Non-negative least squares of relative errors, over all sets of columns.

  Fifteen small problems are exact and shorter than an active-set method. Of
  equals the set with fewer columns wins, the constant before others.
  """
  x = features(points)
  relative = 1 / np.maximum(seconds, _SMALLEST)
  scale = np.maximum(np.max(x, axis=0), 1e-12)
  best, least = np.zeros(4), np.inf
  for size in range(1, 5):
    for columns in itertools.combinations(range(4), size):
      chosen = list(columns)
      matrix = (x / scale)[:, chosen] * relative[:, None]
      w, *_ = np.linalg.lstsq(matrix, seconds * relative, rcond=1e-9)
      if np.any(w < 0):
        continue
      error = np.sum((matrix @ w - seconds * relative) ** 2)
      if error < least - 1e-12:
        least = error
        best = np.zeros(4)
        best[chosen] = w / scale[chosen]
  return best
