# SPDX-License-Identifier: MIT
"""What a round teaches a drafter: the target's answer at the first rejection.

  draft     a   b   c   d        a, b, c were verified
  target    a   x                behind a, where the draft said b
  lesson    depth 1, taps of a, rejected b, token x, the target's likeliest

The verifier computes all of this anyway, so it is supervision for nothing:
features and the target's law at the very place where the drafter was wrong
(SpecBlock, section on cost-aware adaptation; online speculative decoding,
arXiv:2310.07177). Where all drafts were kept the lesson lies behind
the last of them, where the bonus is decided, and nothing was rejected.

Logits never leave the branch that scores (`scoring.py`), so the likeliest
tokens are found there (`likeliest`); the rest is put together afterwards
(`of`). Nothing is computed while nobody wants lessons.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import logprobs as logprobs_lib
from jspec.decode.verify import accepted as accepted_lib
from jspec.decode.verify import nodes
from jspec.typing import Array, Bool, Float, Int

NUM_TOP = 16
_Array = Array | np.ndarray  # Who learns gets them on the host.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lessons:
  """One of each row; C layers (the drafter's `taps`), k tokens (`NUM_TOP`).

  Attributes:
    position: of the anchor: tokens committed before the round.
    depth: drafts that were accepted, so that the lesson is about the token at
      `position + depth + 1` and the taps are those of the token before it. -1
      where there is no lesson: the row took no part, a stop id ended it before
      the place, the target gave no finite logit, or nobody wants lessons.
    taps: the target's states of the last accepted node, or of the anchor.
    rejected: what the draft said (of a tree its first child there, the one it
      held most likely); -1 where nothing was verified there: all drafts were
      accepted, or there were none.
    token: what the target said: emitted, under the request's own options.
    top_ids: the tokens that the target holds most likely, in order; -1 where
      fewer have a probability above 0.
    top_logprobs: of these, by the target's own law, before options and
      temperature; -inf where there is none.
  """

  position: Int[_Array, 'B']
  depth: Int[_Array, 'B']
  taps: Float[_Array, 'B C D']
  rejected: Int[_Array, 'B']
  token: Int[_Array, 'B']
  top_ids: Int[_Array, 'B k']
  top_logprobs: Float[_Array, 'B k']


def none(num_rows: int, num_taps: int, width: int) -> Lessons:
  """No lesson for any row, with place for taps."""
  return Lessons(
    position=jnp.zeros((num_rows,), jnp.int32),
    depth=jnp.full((num_rows,), -1, jnp.int32),
    taps=jnp.zeros((num_rows, num_taps, width), jnp.float32),
    rejected=jnp.full((num_rows,), -1, jnp.int32),
    token=jnp.zeros((num_rows,), jnp.int32),
    **_nothing(num_rows),
  )


def likeliest(
  wants_lessons: Bool[Array, ''],
  logits: Array,
  accepted: accepted_lib.Accepted,
  packing: packing_lib.Packing | None,
) -> dict[str, Array]:
  """`top_ids` and `top_logprobs`, [B, k]; zeros if nobody wants them.

  Args:
    wants_lessons: whether anybody does.
    logits: the target's own, [B, T, V] or packed [Q, V].
    accepted: what is kept.
    packing: of packed logits.
  """
  last = _last(accepted)

  def found():
    take = nodes.take if packing is None else packing.take
    top = logprobs_lib.of(take(logits, last), jnp.full_like(last, -1), NUM_TOP)
    return dict(top_ids=top.ids, top_logprobs=top.values)

  return lax.cond(wants_lessons, found, lambda: _nothing(last.shape[0]))


def of(
  wants_lessons: Bool[Array, ''],
  top: dict[str, Array],
  draft: tree.Draft,
  accepted: accepted_lib.Accepted,
  taps: Float[Array, 'B T C D'],
  position: Int[Array, 'B'],
  num_committed: Int[Array, 'B'],
) -> Lessons:
  """The lessons of a round.

  Args:
    wants_lessons: whether anybody wants them.
    top: of `likeliest`.
    draft: `num_nodes` of it were verified.
    accepted: what was kept, before a stop id cut it.
    taps: of all nodes.
    position: of the anchors.
    num_committed: tokens emitted, of `accepted`.
  """

  def found():
    last = _last(accepted)
    child = nodes.next_child(draft, last, last)
    is_drafted = child < draft.tokens.shape[1]
    token = nodes.take(accepted.tokens, accepted.num_accepted)
    is_there = (num_committed > accepted.num_accepted) & (token >= 0)
    return Lessons(
      position=position,
      depth=jnp.where(is_there, accepted.num_accepted, -1),
      taps=nodes.take(taps, last).astype(jnp.float32),
      rejected=jnp.where(is_drafted, nodes.take(draft.tokens, child), -1),
      token=token,
      **top,
    )

  num_rows, _, num_taps, width = taps.shape
  return lax.cond(wants_lessons, found, lambda: none(num_rows, num_taps, width))


def _last(accepted):
  """The last node that was kept, behind which the target decided."""
  return nodes.take(accepted.path, accepted.num_accepted)


def _nothing(num_rows):
  return dict(
    top_ids=jnp.zeros((num_rows, NUM_TOP), jnp.int32),
    top_logprobs=jnp.zeros((num_rows, NUM_TOP), jnp.float32),
  )
