# SPDX-License-Identifier: MIT
r"""Sequential temperature scaling: confidences whose products are calibrated.

Plans use survival, a product, so small biases of each confidence multiply.
Position by position, left to right, one temperature a position makes the
product right as far as it goes (DSpark, arXiv 2607.05147):

  T_k = argmin_T  ECE of  prod_{j<k} sigmoid(x_j / T_j) * sigmoid(x_k / T)
                  against "accepted through k"

x is the logit of the confidence. Fit on rounds that were not used to train it,
on the host; `apply` runs on the device.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import errors
from jspec.depth import calibration
from jspec.typing import Array, Float

GRID = np.geomspace(0.1, 10.0, 81)
MIN_ROUNDS = 64


def fit(
  logits: np.ndarray,
  num_verified: np.ndarray,
  num_accepted: np.ndarray,
  grid: np.ndarray = GRID,
) -> np.ndarray:
  """Fits [G] temperatures.

  Only rounds verified through a position count there, whatever came of them.
  To add those that were rejected earlier would count the rejections of cut
  drafts and not their acceptances. A position with fewer than `MIN_ROUNDS`
  keeps the temperature of the one before, the first keeps 1.

  Args:
    logits: [N, G] of the confidences (log c - log(1 - c)), finite.
    num_verified: [N] drafts verified.
    num_accepted: [N] drafts accepted.
    grid: temperatures to try, ascending.

  Raises:
    UserError: a logit is not finite or a shape does not fit.
  """
  shape = logits.shape
  if len(shape) != 2 or not (
    np.shape(num_verified) == np.shape(num_accepted) == shape[:1]
  ):
    raise errors.UserError(
      f'temperature scaling of logits {shape}, verified'
      f' {np.shape(num_verified)}, accepted {np.shape(num_accepted)}: give'
      ' [N, G], [N] and [N]'
    )
  if not np.all(np.isfinite(logits)):
    raise errors.UserError(
      'temperature scaling of logits that are not all finite: clip confidences'
      ' to inside (0, 1) and leave broken rounds out'
    )
  temperatures = np.ones(shape[1])
  survival = np.ones(shape[0])
  # Of equals the mildest.
  order = np.argsort(np.abs(np.log(grid)), kind='stable')
  for k in range(shape[1]):
    seen = num_verified > k
    through = (num_accepted > k)[seen].astype(float)
    if seen.sum() >= MIN_ROUNDS:
      found = [
        calibration.ece(
          survival[seen] * _sigmoid(logits[seen, k] / grid[i]), through
        )
        for i in order
      ]
      temperatures[k] = grid[order[int(np.argmin(found))]]
    elif k:
      temperatures[k] = temperatures[k - 1]
    survival = survival * _sigmoid(logits[:, k] / temperatures[k])
  return temperatures


def checked(
  logits: np.ndarray,
  num_verified: np.ndarray,
  num_accepted: np.ndarray,
  is_held_out: np.ndarray,
) -> tuple[np.ndarray, tuple[float, float]]:
  """As `fit`, if temperatures prove themselves where they were not fitted.

  A temperature a position overfits few rounds. So they are first fitted to some
  of the rounds, and unless the Brier score of survival in those held out gets
  worse by them, to all. Else, or with nothing held out, they are 1.

  Args:
    logits: as of `fit`.
    num_verified: as of `fit`.
    num_accepted: as of `fit`.
    is_held_out: [N] rounds that judge.

  Returns:
    Temperatures [G], and the scores of the rounds held out without and with
    those fitted to the others; nan if there are none.
  """
  given = logits, num_verified, num_accepted
  ones = np.ones(logits.shape[1])
  found = fit(*(x[~is_held_out] for x in given))
  judges = [x[is_held_out] for x in given]
  raw, scaled = (_brier(*judges, t) for t in (ones, found))
  return fit(*given) if scaled <= raw else ones, (raw, scaled)


def apply(
  confidence: Float[Array, 'B G'], temperatures: Float[Array, '*rows G']
) -> Float[Array, 'B G']:
  """Calibrated confidences; 0, 1 and nan stay, and all of temperature 1."""
  # A rounding above 1 is 1, and has no logit that is a number.
  c = jnp.clip(confidence, 0.0, 1.0)
  logits = jnp.log(c) - jnp.log1p(-c)
  scaled = jax.nn.sigmoid(logits / temperatures)
  return jnp.where(temperatures == 1, confidence, scaled)


def _brier(logits, num_verified, num_accepted, temperatures):
  survival = np.cumprod(_sigmoid(logits / temperatures), axis=1)
  position = np.arange(logits.shape[1])
  is_seen = position < num_verified[:, None]
  is_right = position < num_accepted[:, None]
  return calibration.brier(survival[is_seen], is_right[is_seen])


def _sigmoid(x):
  return np.exp(-np.logaddexp(0.0, -x))
