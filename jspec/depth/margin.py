# SPDX-License-Identifier: MIT
r"""Confidence without a trained head: a logistic of the top-2 margin.

  P(accepted | all before) = sigmoid(w . f)
  f = 1, m, log(1 + g), m log(1 + g)

with m the gap of the two largest log-probabilities of the draft law and g the
position from 0. A drafter that hesitates has a small gap; how much that means
depends on depth. m is a function of the law before the draw and not of the
token, so it is as safe as a maximum (`safety.py`).

Fitted online by Newton steps whose curvature forgets:

  H <- lambda H + sum p (1 - p) f f^T        w <- w + H^{-1} sum (y - p) f

one step a batch of rounds, on the host; `apply` runs on the device.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jspec.depth import labels as labels_lib
from jspec.typing import Array, Float

NUM_FEATURES = 4
MAX_MARGIN = 12.0  # Beyond it nobody hesitates; an infinite gap is one token.


@dataclasses.dataclass(frozen=True)
class Estimator:
  """What is known so far.

  Attributes:
    weights: [4] of the features.
    curvature: [4, 4] Fisher information, decayed.
  """

  weights: np.ndarray
  curvature: np.ndarray


def init() -> Estimator:
  """Before any round: about .5 at a margin of 0, rising; worth few rounds."""
  return Estimator(
    weights=np.array([0.0, 0.5, 0.0, 0.0]), curvature=np.eye(NUM_FEATURES)
  )


def update(
  estimator: Estimator,
  margins: np.ndarray,
  labels: labels_lib.Labels,
  forget: float = 0.99,
) -> Estimator:
  """Learns from a batch of rounds.

  Args:
    estimator: what is known.
    margins: [N, G] in nats, >= 0.
    labels: of the same drafts; what was not observed is ignored, and so is a
      margin that is nan.
    forget: weight of all before against this batch; 1 never forgets.
  """
  seen = labels.is_observed & ~np.isnan(margins)
  if not seen.any():
    return estimator
  position = np.broadcast_to(np.arange(margins.shape[1]), margins.shape)
  f = _features(np, margins[seen], position[seen])
  p = 1 / (1 + np.exp(-f @ estimator.weights))
  curvature = forget * estimator.curvature + (f.T * (p * (1 - p))) @ f
  # Forgetting must not leave a direction that nothing holds.
  held = curvature + 0.1 * np.eye(NUM_FEATURES)
  gradient = f.T @ (labels.is_accepted[seen] - p)
  step = np.linalg.solve(held, gradient)
  # Far from the optimum the curvature misleads; near it steps are short.
  step *= min(1.0, 2.0 / max(float(np.linalg.norm(step)), 1e-12))
  return Estimator(estimator.weights + step, curvature)


def apply(
  weights: Float[Array, 'F'], margins: Float[Array, 'B G']
) -> Float[Array, 'B G']:
  """Confidence of each draft; nan where the margin is nan."""
  position = jnp.arange(margins.shape[1])
  f = _features(jnp, margins, jnp.broadcast_to(position, margins.shape))
  return jax.nn.sigmoid(jnp.sum(f * weights, axis=-1))


def _features(xp, margins, position):
  m = xp.clip(margins, 0.0, MAX_MARGIN)
  depth = xp.log1p(position)
  return xp.stack([xp.ones_like(m), m, depth * xp.ones_like(m), m * depth], -1)
