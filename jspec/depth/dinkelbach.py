# SPDX-License-Identifier: MIT
"""Dinkelbach: the best ratio of tokens to seconds, by a rising price of time.

  lambda_0 = rate of plain decoding
  k_t      = argmax_k  tokens_k - lambda_t * seconds_k
  lambda   = tokens_k / seconds_k                           until it stays

over the compiled budgets k, each filled with the best drafts of the batch: all
rows cut at one threshold of survival, the same price for everyone. The rate
never falls, so the iteration ends after at most K steps, at the optimum, for
any staircase (LibraSpec, arXiv 2608.08721, section 3, maximises the same ratio
for one row with affine costs).

It finds what `dcut` without options finds; two routes to one answer check each
other.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.depth import base, dcut, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dinkelbach:
  """Exact for the batch, given the scores and the table."""

  @property
  def reads(self) -> str:
    return base.ALL

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    num_active = jnp.sum(load.is_active, dtype=jnp.int32)
    ranked = ranking.rank(base.clean(scores, load))
    num_kept = dcut.filled(ranked, num_active, costs)
    tokens = num_active + ranked.gained[num_kept]
    # A budget that cannot hold the anchors is no choice.
    seconds = costs.draft_s + costs.verify_s
    seconds = jnp.where(costs.nodes >= num_active, seconds, jnp.inf)
    plain = num_active / costs.round(num_active)
    best = best_ratio(tokens, seconds, plain)
    return ranking.counts(ranked, num_kept[best])


def best_ratio(
  tokens: Float[Array, 'K'], seconds: Float[Array, 'K'], start: Float[Array, '']
) -> Int[Array, '']:
  """The choice of the largest tokens / seconds.

  Args:
    tokens: >= 0.
    seconds: > 0; infinite forbids a choice.
    start: a rate that some choice reaches, or less.
  """

  def improve(state):
    rate, choice, _ = state
    other = best_at(tokens, seconds, rate)
    found = tokens[other] / seconds[other]
    # Strictly, in floats: so that the loop ends.
    rises = found > rate
    return jnp.where(rises, found, rate), jnp.where(rises, other, choice), rises

  choice = best_at(tokens, seconds, start)
  first = tokens[choice] / seconds[choice], choice, jnp.array(True)
  return jax.lax.while_loop(lambda state: state[2], improve, first)[1]


def best_at(
  tokens: Float[Array, 'K'], seconds: Float[Array, 'K'], rate: Float[Array, '']
) -> Int[Array, '']:
  """What earns most when a second costs `rate` tokens."""
  profit = jnp.where(jnp.isfinite(seconds), tokens - rate * seconds, -jnp.inf)
  return jnp.argmax(profit).astype(jnp.int32)
