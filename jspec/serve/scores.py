# SPDX-License-Identifier: MIT
"""What plans go by: survival, by calibrated confidence, of which round.

  confidence   of the drafter, position by position
  calibrated   sts.apply(confidence, temperature of the node's depth)
  live         products along each path: of the drafts at hand
  stale        the same of the row's round before, whatever its drafts were

No draft of this round has touched stale scores, so a plan by them anticipates
nothing. They say how hard the text is there, not which draft is weak. A row's
first round goes by the mean of what all rows have.
"""

import dataclasses

import jax.numpy as jnp

from jspec import tree
from jspec.depth import sts
from jspec.typing import Array, Bool, Float


def live(
  draft: tree.Draft, temperatures: Float[Array, 'B G']
) -> Float[Array, 'B drafts']:
  """Survival of each draft node; `temperatures` are by depth, from 1.

  Where a temperature lifts a node above one before it in the list, a policy
  takes it to be worth no more than that one (`depth.base.clean`).
  """
  if draft.tokens.shape[1] == 1:  # A plain round, which may have no depths.
    return tree.survival(draft)[:, 1:]
  level = jnp.maximum(tree.depths(draft.parents) - 1, 0)
  scale = jnp.take_along_axis(temperatures, level, axis=1)
  sure = sts.apply(draft.confidence, scale)
  return tree.survival(dataclasses.replace(draft, confidence=sure))[:, 1:]


def prior(scores: Float[Array, 'B G']) -> Float[Array, 'G']:
  """The mean of rows that have some; 1, all drafts, while none has.

  Args:
    scores: of all rows, nan where a row has drafted nothing yet.
  """
  is_known = ~jnp.isnan(scores)
  total = jnp.sum(jnp.where(is_known, scores, 0.0), axis=0)
  count = jnp.sum(is_known, axis=0)
  return jnp.where(count > 0, total / jnp.maximum(count, 1), 1.0)


def stale(
  scores: Float[Array, 'B G'], before: Float[Array, 'G']
) -> Float[Array, 'B G']:
  """Scores of each row's last round, `before` (`prior`) where there is none."""
  return jnp.where(jnp.isnan(scores), before, scores)


def kept(
  scores: Float[Array, 'B G'],
  new: Float[Array, 'B G'],
  took_part: Bool[Array, 'B'],
) -> Float[Array, 'B G']:
  """Scores to remember after a round; what broke says nothing."""
  is_good = took_part & jnp.all(jnp.isfinite(new), axis=1)
  return jnp.where(is_good[:, None], new, scores)
