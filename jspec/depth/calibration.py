# SPDX-License-Identifier: MIT
"""How well confidence predicts acceptance: ECE, Brier, AUROC, by position.

  ECE    mean of |accepted share - mean confidence| over bins of confidence:
         is it a probability?
  Brier  mean of (confidence - accepted)^2: is it one, and sharp?
  AUROC  chance that an accepted draft has more confidence than a rejected one:
         does it order them?

A confidence that orders well and is biased plans badly (the budget is sized by
its value), and one that is calibrated and flat cannot choose between rows.

On the host, with numpy. Only observed labels count (`labels.py`).
"""

from typing import NamedTuple

import numpy as np

NUM_BINS = 15


class Calibration(NamedTuple):
  """Figures of one position; nan where nothing was observed."""

  count: int
  ece: float
  brier: float
  auroc: float
  confidence: float
  accepted: float


def ece(
  confidence: np.ndarray, is_accepted: np.ndarray, num_bins: int = NUM_BINS
) -> float:
  """Expected calibration error of [N], in equal bins; nan of none."""
  if not len(confidence):
    return float('nan')
  which = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
  # The counts of the bins cancel out.
  gaps = np.bincount(which, weights=is_accepted - confidence)
  return float(np.sum(np.abs(gaps)) / len(confidence))


def brier(confidence: np.ndarray, is_accepted: np.ndarray) -> float:
  """Mean squared error; nan of none."""
  if not len(confidence):
    return float('nan')
  return float(np.mean((confidence - is_accepted) ** 2))


def auroc(confidence: np.ndarray, is_accepted: np.ndarray) -> float:
  """Area under the ROC curve, ties half; nan unless both outcomes occur."""
  is_accepted = np.asarray(is_accepted, bool)
  num_accepted = int(is_accepted.sum())
  num_rejected = len(is_accepted) - num_accepted
  if not num_accepted or not num_rejected:
    return float('nan')
  _, place, counts = np.unique(
    confidence, return_inverse=True, return_counts=True
  )
  mean_rank = np.cumsum(counts) - (counts - 1) / 2
  above = mean_rank[place][is_accepted].sum()
  above -= num_accepted * (num_accepted + 1) / 2
  return float(above / (num_accepted * num_rejected))


def by_position(
  confidence: np.ndarray, is_observed: np.ndarray, is_accepted: np.ndarray
) -> list[Calibration]:
  """Figures of each position from [N, G] confidences and labels."""
  found = []
  for g in range(confidence.shape[1]):
    seen = is_observed[:, g]
    c, y = confidence[seen, g], is_accepted[seen, g].astype(float)
    mean = (float(c.mean()), float(y.mean())) if len(c) else (np.nan, np.nan)
    found.append(
      Calibration(len(c), ece(c, y), brier(c, y), auroc(c, y), *mean)
    )
  return found
