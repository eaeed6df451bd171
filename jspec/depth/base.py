# SPDX-License-Identifier: MIT
"""The interface of a depth policy: it counts, it does not choose.

A drafter hands over its largest draft, nodes sorted so that every prefix of a
row's list is a tree of its own. A policy says how long each prefix is:

  scores   .9 .8 .3 .1      survival: P(node and its ancestors are accepted)
           .5 .4
  counts   2                drafts kept; the anchor is verified always and is
           1                not counted

All policies maximise tokens per second. Verifying n drafts of A decoding rows
is expected to commit A + (sum of their scores) tokens, because every row also
gets a bonus, and takes `costs.round(A + n)` seconds.

Plans run inside the round, on the device: static shapes, costs as inputs.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jspec.depth import costs as costs_lib
from jspec.typing import Array, Bool, Float, Int

# Which scores decide whether a draft is verified (`safety.py`).
NONE = 'none'
STALE = 'stale'
EARLIER = 'earlier'
ALL = 'all'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Load:
  """Who decodes in this round.

  Attributes:
    is_active: rows that decode; no draft of another is ever kept.
    limits: most drafts a row can use (its remaining tokens - 1, and no more
      than it has), >= 0.
  """

  is_active: Bool[Array, 'B']
  limits: Int[Array, 'B']


@runtime_checkable
class DepthPolicy(Protocol):
  """Plans a round; a frozen dataclass of static settings.

  Attributes:
    reads: which scores decide whether a draft is verified: 'none', 'stale' ones
      of an earlier round (which `plan` is then given instead of this round's),
      its own and 'earlier' ones of its row (and any of others), or 'all'.
      Sampled drafts stay lossless only if it fits (`safety.check`).
  """

  @property
  def reads(self) -> str: ...

  def plan(
    self, scores: Float[Array, 'B G'], load: Load, costs: costs_lib.Costs
  ) -> Int[Array, 'B']:
    """Counts the drafts to verify.

    Args:
      scores: survival of each draft node in list order, without the anchor; 0
        where there is no node, unless they are stale. NaN means that the
        drafter broke: that row gets no drafts and the others are planned as if
        it had none.
      load: who decodes.
      costs: what a round costs now.

    Returns:
      0 to `load.limits` for each row. With the anchors of active rows, never
      more nodes than the largest budget.
    """
    ...


def is_missing(scores: Float[Array, 'B G'], load: Load) -> Bool[Array, 'B']:
  """Active rows whose scores are not all numbers; for the caller to count."""
  return load.is_active & ~jnp.all(jnp.isfinite(scores), axis=1)


def clean(scores: Float[Array, 'B G'], load: Load) -> Float[Array, 'B G']:
  """Scores that can be ranked: in [0, 1], never rising along a row.

  0 in rows that do not decode, beyond a row's limit, and in rows with a score
  that is not finite. A node that follows a worse one costs as much as it, so it
  is worth no more: the running minimum makes every cut a prefix.
  """
  rows, depth = scores.shape
  usable = load.is_active & jnp.all(jnp.isfinite(scores), axis=1)
  inside = jnp.arange(depth) < load.limits[:, None]
  kept = jnp.where(usable[:, None] & inside, scores.astype(jnp.float32), 0.0)
  if not depth:
    return kept
  return jax.lax.cummin(jnp.clip(kept, 0.0, 1.0), axis=1)
