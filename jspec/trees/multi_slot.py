# SPDX-License-Identifier: MIT
"""SpecBlock's tree: two blocks of parallel slots (arXiv 2605.07243).

A block drafter with K slots also predicts, for every slot, the class of rank
that the target's token has among its candidates: 0 first, 1 second to fourth,
2 fifth to tenth, 3 beyond. The class says how wide to branch:

  block 1   the greedy chain g_0 .. g_{K-1} behind the anchor; beside g_k the
            ranks 2 .. width[k] of slot k, as siblings. width[0] depends on how
            sure the first token is, width[k] on the class of slot k; both are
            narrower where the greedy token is probable.
  give up   where the table has 0 for class 3, the first such slot and those
            behind it do not branch (slot 0 of block 1 has no class to obey).
            The greedy chain stays: it is free.
  starts    of block 2: every g_k that has siblings, the siblings, and g_{K-1}
            unless the block gave up. The best by path probability, as many as
            the budget may hold.
  block 2   one pass of the drafter over all starts; each adds a greedy chain
            and siblings, width[0] by class as well.
  finish    the best num_nodes - 1 by path probability.

Block 2 often drafts again what block 1 had; such nodes are one (`merge`).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jspec import errors, tree
from jspec.trees import candidates, merge, select
from jspec.typing import Array, Bool, Float, Int

Caps = tuple[tuple[float, int], ...]


@dataclasses.dataclass(frozen=True)
class Widths:
  """How wide to branch; siblings count with the greedy token.

  Attributes:
    first: width of slot 0 of block 1.
    by_class: width of any other slot for rank classes 0, 1, 2, 3.
    starts: most starts of block 2.
    first_caps: (probability, width) for slot 0: from that probability of the
      greedy token on, at most so wide; the first that applies.
    caps: the same for other slots.
  """

  first: int = 10
  by_class: tuple[int, int, int, int] = (2, 4, 10, 0)
  starts: int = 10
  first_caps: Caps = ((0.9, 3), (0.8, 5), (0.6, 8))
  caps: Caps = ((0.95, 2), (0.85, 3))

  def __post_init__(self):
    least = min(self.first, self.starts, 1 + min(self.by_class))
    if least < 1 or len(self.by_class) != 4:
      raise errors.UserError(
        f'{self}: first and starts are at least 1, by_class has four entries of'
        ' at least 0'
      )

  @property
  def most(self) -> int:
    """Candidates a slot must have."""
    return max(self.first, *self.by_class)


class Block(NamedTuple):
  """One pass of the drafter.

  Attributes:
    candidates: [B, starts, K, Q], for every slot behind every start.
    classes: predicted rank class of every slot, 0 to 3.
  """

  candidates: candidates.Candidates
  classes: Int[Array, 'B starts K']


class Starts(NamedTuple):
  """Where block 2 starts.

  Attributes:
    tokens: to feed.
    slots: slot of block 1 whose hidden state is the condition; block 1's slots
      up to and with this one may be seen.
    is_live: the others are fill.
  """

  tokens: Int[Array, 'B starts']
  slots: Int[Array, 'B starts']
  is_live: Bool[Array, 'B starts']


def build(
  block: Block,
  second: Callable[[Starts], Block] | None,
  anchor: Int[Array, 'B'],
  *,
  num_nodes: int,
  widths: Widths,
) -> tree.Draft:
  """Builds the tree; the drafter runs once more, on `widths.starts` starts.

  Args:
    block: of the one start that is the anchor; Q of at least `widths.most`.
    second: gives the block of every start; None for trees of one block.
    anchor: node 0.
    num_nodes: T, static.
    widths: static.

  Returns:
    A deterministic draft, nodes by falling path probability, siblings distinct.

  Raises:
    UserError: too few candidates a slot.
  """
  if num_nodes == 1:
    return tree.plain(anchor)
  rows, _, num_slots, _ = block.candidates.ids.shape
  block = _cut(block, widths)
  width, gave_up = _widths(block, widths, is_first=True)
  root = jnp.full((rows, 1), -1, jnp.int32)
  pool = _nodes(block, width, jnp.zeros((rows, 1)), root, first=0)
  if second is None:
    return select.draft(pool, anchor, num_nodes)
  index, scores = _starts(pool, width[:, 0], gave_up[:, 0], widths, num_nodes)
  starts = Starts(
    tokens=jnp.take_along_axis(pool.tokens, index, axis=1),
    slots=_slots(num_slots, widths.most)[index],
    is_live=scores > select.DEAD,
  )
  block = _cut(second(starts), widths)
  width, _ = _widths(block, widths, is_first=False)
  more = _nodes(block, width, scores, index, first=pool.tokens.shape[1])
  pool = select.Pool(
    *(jnp.concatenate(x, axis=1) for x in zip(pool, more, strict=True))
  )
  return select.draft(merge.merge(pool), anchor, num_nodes)


def _cut(block, widths) -> Block:
  """Drops the candidates that no width reaches."""
  num_ranks = block.candidates.ids.shape[-1]
  if num_ranks < widths.most:
    raise errors.UserError(
      f'{num_ranks} candidates a slot; these widths need {widths.most}'
    )
  kept = (x[..., : widths.most] for x in block.candidates)
  return block._replace(candidates=candidates.Candidates(*kept))


def _widths(
  block, widths, *, is_first
) -> tuple[Int[Array, 'B starts K'], Bool[Array, 'B starts']]:
  """Width of every slot, and whether the block gave up."""
  p = jnp.exp(candidates.clean(block.candidates.log_probs[..., 0]))
  width = jnp.asarray(widths.by_class, jnp.int32)[block.classes]
  width = _capped(width, p, widths.caps)
  is_lost = block.classes == 3
  if is_first:
    first = jnp.full(width.shape[:2], widths.first, jnp.int32)
    first = _capped(first, p[..., 0], widths.first_caps)
    width = width.at[..., 0].set(first)
    is_lost = is_lost.at[..., 0].set(False)
  if widths.by_class[3] > 0:
    is_lost = jnp.zeros_like(is_lost)
  is_over = jnp.cumsum(is_lost, axis=-1) > 0
  return jnp.where(is_over, 0, width), is_over[..., -1]


def _capped(width, p, caps) -> Int[Array, '...']:
  cap = width
  for threshold, most in reversed(caps):
    cap = jnp.where(p >= threshold, most, cap)
  return jnp.minimum(width, cap)


def _nodes(
  block: Block,
  width: Int[Array, 'B starts K'],
  scores: Float[Array, 'B starts'],
  index: Int[Array, 'B starts'],
  first: int,
) -> select.Pool:
  """All chains, then all siblings slot by slot, as pool entries from `first`.

  `scores` and `index` are those of the starts (0 and -1: the anchor).
  """
  rows, starts, num_slots, num_ranks = block.candidates.ids.shape
  log_probs = candidates.clean(block.candidates.log_probs)
  chain, above = [], [scores]
  for slot in range(num_slots):
    above.append(select.path_score(above[-1], log_probs[:, :, slot, 0]))
  chain = jnp.stack(above[1:], axis=-1)
  above = jnp.stack(above[:-1], axis=-1)
  number = first + jnp.arange(starts * num_slots, dtype=jnp.int32)
  number = jnp.broadcast_to(
    number.reshape(starts, num_slots), (rows, starts, num_slots)
  )
  parents = jnp.concatenate([index[:, :, None], number[:, :, :-1]], axis=-1)
  rank = jnp.arange(1, num_ranks)
  is_wide = rank < width[..., None]
  beside = select.path_score(above[..., None], log_probs[..., 1:])
  beside = jnp.where(is_wide, beside, select.DEAD)

  def both(of_chain, of_siblings):
    return jnp.concatenate(
      [of_chain.reshape(rows, -1), of_siblings.reshape(rows, -1)], axis=1
    )

  ids = block.candidates.ids
  return select.Pool(
    tokens=both(ids[..., 0], ids[..., 1:]),
    parents=both(parents, jnp.broadcast_to(parents[..., None], is_wide.shape)),
    log_probs=both(log_probs[..., 0], log_probs[..., 1:]),
    scores=both(chain, beside),
  )


def _starts(pool, width, gave_up, widths, num_nodes):
  """Pool entries that block 2 starts at, [B, starts], and their scores."""
  num_slots = width.shape[1]
  branches = width > 1
  # The end of the chain is listed once more, behind all others.
  hitch = ~gave_up & ~branches[:, -1]
  chain = pool.scores[:, :num_slots]
  scores = jnp.concatenate(
    [
      jnp.where(branches, chain, select.DEAD),
      pool.scores[:, num_slots:],
      jnp.where(hitch, chain[:, -1], select.DEAD)[:, None],
    ],
    axis=1,
  )
  scores, index = select.top(scores, widths.starts)
  index = jnp.where(index == pool.scores.shape[1], num_slots - 1, index)
  made = jnp.sum(pool.scores > select.DEAD, axis=1)
  room = jnp.maximum(1, (num_nodes - 1 - made) // num_slots)
  is_kept = jnp.arange(widths.starts) < room[:, None]
  return index, jnp.where(is_kept, scores, select.DEAD)


def _slots(num_slots, num_ranks) -> Int[Array, 'pool']:
  """Slot of every entry of block 1's pool."""
  chain = np.arange(num_slots, dtype=np.int32)
  return jnp.asarray(np.append(chain, np.repeat(chain, num_ranks - 1)))
