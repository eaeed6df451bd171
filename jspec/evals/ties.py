# SPDX-License-Identifier: MIT
"""Whether rounding explains that two decodings chose different tokens.

Both tokens must be choices that the target makes if its logits move by no more
than `EPSILON`, in each way of scoring them (`rescore`). The gap says how far
the worse of the two is from being one:

  temperature 0    max logit - logit of the token
  else             distance of the uniform from the token's stretch of the CDF

A filter (top-k, top-p, min-p) jumps where two tokens tie at its threshold, so
with sampling the logits really are moved, `NUM_MOVED` times at random, and a
token counts by the nearest.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jspec.decode import keys, sampling

EPSILON = 1e-4
NUM_MOVED = 32

# Compiled, for op by op they take seconds.
_law = jax.jit(sampling.law)
_uniforms = jax.jit(keys.uniforms, static_argnames='role')


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What was found at a difference.

  Attributes:
    gap: how far the worse token is from being a choice.
    unit: 'logit' or 'probability', what the gap is measured in.
    is_tie: the gap is at most `EPSILON`.
    top2_gaps: largest logit minus the second, scored with one node and with
      several.
    scoring_gap: how far the two ways of scoring are apart at most, in logits.
  """

  gap: float
  unit: str
  is_tie: bool
  top2_gaps: list[float]
  scoring_gap: float


def judge(
  logits: np.ndarray,
  params: sampling.SamplingParams,
  position: int,
  tokens: Sequence[int],
) -> Verdict:
  """Judges tokens that were both chosen at an absolute position.

  Args:
    logits: [2, V], scored with one node and with several.
    params: how the request samples; its seed gives the uniform.
    position: of the token being decided.
    tokens: the two choices.
  """
  ordered = np.sort(logits, axis=-1)
  if params.temperature == 0:
    unit = 'logit'
    gap = max(
      float(row.max() - row[token]) for row in logits for token in tokens
    )
  else:
    unit = 'probability'
    gap = max(
      _distance(row, params, position, token)
      for row in logits
      for token in tokens
    )
  return Verdict(
    gap=gap,
    unit=unit,
    is_tie=gap <= EPSILON,
    top2_gaps=(ordered[:, -1] - ordered[:, -2]).tolist(),
    scoring_gap=float(np.abs(logits[0] - logits[1]).max()),
  )


def uniform(params: sampling.SamplingParams, position: int) -> float:
  """The number that decides the token at an absolute position, by rule R1."""
  stacked = sampling.stack([params])
  at = jnp.asarray([position], jnp.int32)
  return float(_uniforms(stacked.seeds, at, role=keys.ACCEPT)[0])


def _distance(logits, params, position, token):
  """From the uniform to the token's part of the CDF, for the nearest law."""
  noise = np.random.default_rng(0).uniform(-1, 1, (NUM_MOVED, logits.size))
  noise[0] = 0
  moved = (logits + EPSILON * noise).astype(np.float32)
  laws = _law(jnp.asarray(moved), sampling.stack([params] * NUM_MOVED))
  laws = np.asarray(laws, np.float64)
  end = laws[:, : token + 1].sum(axis=-1)
  begin = end - laws[:, token]
  u = uniform(params, position)
  outside = np.maximum(np.maximum(begin - u, u - end), 0)
  # A filtered token has an empty stretch, which no uniform can choose.
  outside = np.where(laws[:, token] > 0, outside, 1.0)
  return float(outside.min())
