# SPDX-License-Identifier: MIT
r"""`Extending`: a drafter that goes on where its drafts are worth it.

A block drafter proposes n tokens. Where a row is so sure of them that even more
would pay, it drafts another block behind the last one, inside the round:

  d <- n
  loop  e <- how far a row should go, given its first d drafts
        e <= d   settled: the depth policy backs off to e
        else     d <- min(e, most); draft blocks until d tokens are there

(LibraSpec, arXiv 2608.08721, algorithm 1, for all rows at once.) Buffers have
room for `most` drafts; a block is drafted only while some row lacks tokens.
Whether drafts come at all depends on confidence of drafts before them, so it is
deterministic drafts (rule `walk`) that go on; sampled ones stay one block.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import base
from jspec.typing import Array, Bool, Float, Int, Key, PyTree


class _Buffer(NamedTuple):
  """Drafts so far: `num` are there, the first `wanted` of them count."""

  tokens: Int[Array, 'B T']
  confidence: Float[Array, 'B T']
  num: Int[Array, 'B']
  wanted: Int[Array, 'B']
  is_settled: Bool[Array, 'B']


class Extending(nnx.Module):
  """Wraps a drafter of chains; implements `drafters.base.Drafter`."""

  def __init__(
    self,
    drafter,
    more: Callable[[Float[Array, 'B G']], Int[Array, 'B']],
    most: int,
  ):
    """Lets rows have up to `most` drafts.

    Args:
      drafter: who drafts.
      more: from the survival of the drafts of each row, 0 behind the last, how
        many it wants on top of them.
      most: drafts of a row.

    Raises:
      UserError: the drafter cannot go on, or `most` is what it drafts anyway.
    """
    if not getattr(drafter, 'extends', False):
      raise errors.UserError(
        f'the drafter {type(drafter).__name__} cannot go on behind its drafts;'
        ' only block drafters of chains can: leave the extension out'
      )
    if most <= drafter.num_draft_tokens:
      raise errors.UserError(
        f'drafts are extended to {most} tokens, but the drafter proposes'
        f' {drafter.num_draft_tokens} by itself; give more'
      )
    tree.check_size(most + 1)
    self.drafter, self.more = drafter, more
    self.taps, self.num_draft_tokens = drafter.taps, most

  @property
  def confidence_depends(self) -> str:
    """That of the drafter."""
    return base.confidence_depends(self.drafter)

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> PyTree:
    """That of the drafter."""
    return self.drafter.init_state(table, num_pages, page_size)

  def commit(
    self, state: PyTree, table: paged.PageTable, rows: base.Committed
  ) -> PyTree:
    """That of the drafter."""
    return self.drafter.commit(state, table, rows)

  def propose(
    self,
    state: PyTree,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts as far as each row wants; one block if they are sampled."""
    first = self.drafter.propose(state, table, anchor, temperature, keys)
    missing = self.num_draft_tokens + 1 - first.tokens.shape[1]

    def padded(leaf):
      widths = [(0, 0)] * leaf.ndim
      widths[1] = (0, missing)
      return jnp.pad(leaf, widths)

    num = first.num_nodes - 1
    buffer = _Buffer(
      tokens=padded(first.tokens),
      confidence=padded(first.confidence),
      num=num,
      wanted=num,
      is_settled=jnp.zeros_like(num, bool),
    )
    if temperature is not None:
      return dataclasses.replace(
        self._draft(buffer), q=jax.tree.map(padded, first.q)
      )
    buffer = jax.lax.while_loop(
      lambda b: jnp.any(~b.is_settled),
      lambda b: self._settle(self._grow(b, state, table)),
      self._settle(buffer),
    )
    return self._draft(buffer)

  def _grow(self, buffer, state, table):
    """One more block for the rows that lack tokens."""
    is_short = buffer.num < buffer.wanted

    def drafted():
      last = jnp.take_along_axis(buffer.tokens, buffer.num[:, None], axis=1)
      block = self.drafter.extend(state, table, last[:, 0], buffer.num)
      return block.tokens, block.confidence

    size = self.drafter.num_draft_tokens
    shape = buffer.num.shape[0], size + 1
    tokens, confidence = jax.lax.cond(
      jnp.any(is_short),
      drafted,
      lambda: (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)),
    )
    place = jnp.arange(buffer.tokens.shape[1]) - buffer.num[:, None]
    is_new = is_short[:, None] & (place > 0) & (place <= size)
    from_block = jnp.clip(place, 0, size)

    def put(old, new):
      return jnp.where(
        is_new, jnp.take_along_axis(new, from_block, axis=1), old
      )

    num = jnp.minimum(buffer.num + size, self.num_draft_tokens)
    return buffer._replace(
      tokens=put(buffer.tokens, tokens),
      confidence=put(buffer.confidence, confidence),
      num=jnp.where(is_short, num, buffer.num),
    )

  def _settle(self, buffer):
    """Asks how far rows with enough tokens should go."""
    scores = tree.survival(self._draft(buffer))[:, 1:]
    more = self.more(scores)
    is_ready = buffer.num >= buffer.wanted
    wanted = buffer.wanted + jnp.where(is_ready & ~buffer.is_settled, more, 0)
    return buffer._replace(
      wanted=jnp.minimum(wanted, self.num_draft_tokens),
      is_settled=buffer.is_settled | (is_ready & (more == 0)),
    )

  def _draft(self, buffer):
    """The drafts that count."""
    rows, num_nodes = buffer.tokens.shape
    return tree.Draft(
      tokens=buffer.tokens,
      parents=tree.chain_parents(rows, num_nodes),
      num_nodes=1 + jnp.minimum(buffer.num, buffer.wanted),
      confidence=buffer.confidence,
    )
