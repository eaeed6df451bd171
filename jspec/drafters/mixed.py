# SPDX-License-Identifier: MIT
"""Several drafters in one batch: each row has one of them, or none.

  choice      0       1      -1       1
  ngram     draft     -       -       -       runs, since row 0 chose it
  dflash      -     draft     -     draft     runs
  eagle3      -       -       -       -       does not run
  mixed     ngram   dflash  anchor  dflash

The target captures the union of what they want, and each gets its part. Whoever
did not choose a member looks to it like a row without text, whose drafts are
thrown away; so the state of a row is what its member alone would have, and that
of the other members stays empty. Hence the choice is made when a row is
admitted and stays, and pages that were written for one member say nothing to
another, although all pools share the page ids.

A member that nobody chose is skipped. In `commit` a loop of no or one turn does
that: a conditional whose branches carry a pool may copy it, even where it skips
(130 ms for 377 MB on 2 cores, when it reads the pool as well); a loop does not.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import base
from jspec.typing import Array, Bool, Float, Int, Key, PyTree

NONE = 'none'  # The name that drafts nothing.
NOBODY = -1  # Its index.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """States of all members, and whom each row chose.

  Attributes:
    members: in their order; each with all rows and all pages.
    choice: index of the member of a row; `NOBODY`: it is not drafted for.
  """

  members: tuple[PyTree, ...]
  choice: Int[Array, 'B']


class Mixed(nnx.Module):
  """Implements `drafters.base.Drafter` with several of them.

  Attributes:
    names: of the members; their places are the indices of `State.choice`.
    members: the drafters, which may be mixtures of chains and trees.
  """

  def __init__(self, drafters: Mapping[str, base.Drafter]):
    """Takes drafters by name; rows that do not say use the first.

    Raises:
      UserError: there are none, one is called `none` or is a mixture itself.
    """
    if not drafters:
      raise errors.UserError('a mixture of no drafters; give at least one')
    if NONE in drafters:
      raise errors.UserError(
        f'a drafter is called {NONE!r}, which asks for no drafts; give it'
        ' another name'
      )
    for name, drafter in drafters.items():
      if isinstance(drafter, Mixed):
        raise errors.UserError(
          f'drafter {name!r} is a mixture itself; give its members instead'
        )
    self.names = tuple(drafters)
    self.members = nnx.List(drafters.values())

  @property
  def taps(self) -> tuple[int, ...]:
    """Target layers that some member wants."""
    return tuple(
      sorted({tap for member in self.members for tap in member.taps})
    )

  @property
  def num_draft_tokens(self) -> int:
    """Of the member that drafts most."""
    return max(member.num_draft_tokens for member in self.members)

  @property
  def confidence_depends(self) -> str:
    """Of the member whose confidence looks at most."""
    return max(
      (base.confidence_depends(member) for member in self.members),
      key=base.DEPENDS.index,
    )

  def index(self, name: str | None) -> int:
    """The choice that a name stands for; None is the first member.

    Raises:
      UserError: no member has the name.
    """
    if name is None:
      return 0
    if name == NONE:
      return NOBODY
    if name not in self.names:
      raise errors.UserError(
        f'drafter {name!r}: there are {", ".join(self.names)}, and {NONE} for'
        ' no drafts'
      )
    return self.names.index(name)

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> State:
    """Empty rows of all members; every row has chosen the first."""
    members = tuple(
      member.init_state(table, num_pages, page_size) for member in self.members
    )
    return State(members, jnp.zeros_like(table.lengths))

  def propose(
    self,
    state: State,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Every row's own member drafts; shorter drafts are padded.

    Raises:
      UserError: the members' drafts are not of one kind, so that no rule
        verifies them together.
    """
    calls = []
    for index, member in enumerate(self.members):
      is_own = state.choice == index

      def call(member=member, is_own=is_own, part=state.members[index]):
        rows = _only(table, is_own)
        return member.propose(part, rows, anchor, temperature, keys)

      calls.append((is_own, call))
    law = None
    if temperature is not None:
      law = self._law([call for _, call in calls])
    draft = _nothing(anchor, self.num_draft_tokens + 1, law)
    for is_own, call in calls:
      draft = jax.lax.cond(
        jnp.any(is_own),
        lambda draft, is_own=is_own, call=call: _put(draft, call(), is_own),
        lambda draft: draft,
        draft,
      )
    return draft

  def commit(
    self, state: State, table: paged.PageTable, rows: base.Committed
  ) -> State:
    """Every member takes in the rows that chose it."""
    return self._take_in(state, table, rows, range(len(self.members)))

  def commit_text(
    self, state: State, table: paged.PageTable, rows: base.Committed
  ) -> State:
    """As `commit`, of rows without taps: members that want some miss them."""
    places = [i for i, member in enumerate(self.members) if not member.taps]
    return self._take_in(state, table, rows, places)

  def _take_in(self, state, table, rows, places):
    union, members = self.taps, list(state.members)
    for index in places:
      member, is_own = self.members[index], state.choice == index
      wanted = np.asarray([union.index(tap) for tap in member.taps], np.int32)
      part = dataclasses.replace(
        rows,
        taps=rows.taps[:, :, wanted],
        num_rows=jnp.where(is_own, rows.num_rows, 0),
      )

      def turn(_, old, member=member, part=part, is_own=is_own):
        return member.commit(old, _only(table, is_own), part)

      num_turns = jnp.any(part.num_rows > 0).astype(jnp.int32)
      members[index] = jax.lax.fori_loop(0, num_turns, turn, members[index])
    return State(tuple(members), state.choice)

  def _law(self, calls):
    """Most tokens of a law, and how siblings are drawn; None without laws."""
    kinds = {}
    widths = []
    for name, call in zip(self.names, calls, strict=True):

      def law(call=call, name=name):
        q = call().q
        kinds[name] = None if q is None else q.draws
        return None if q is None else q.ids

      ids = jax.eval_shape(law)
      widths.append(0 if ids is None else ids.shape[2])
    if len(set(kinds.values())) > 1:
      each = ', '.join(
        f'{name} {kind or "a function of the text"}'
        for name, kind in kinds.items()
      )
      raise errors.UserError(
        'drafters whose drafts are drawn in different ways cannot be mixed'
        f' under one verification rule ({each}); verify with walk, where all'
        ' are a function of the text, or leave some out'
      )
    draws = kinds[self.names[0]]
    return None if draws is None else (max(widths), draws)


def choose(state: State, row: Int[Array, ''], index: Int[Array, '']) -> State:
  """Gives a row that has no text yet another member."""
  choice = state.choice.at[row].set(index.astype(state.choice.dtype))
  return State(state.members, choice)


def _only(table: paged.PageTable, is_own: Bool[Array, 'B']) -> paged.PageTable:
  """The table in which all other rows are empty: attention skips them."""
  return dataclasses.replace(table, lengths=jnp.where(is_own, table.lengths, 0))


def _nothing(anchor, num_nodes, law):
  """Drafts of the anchor alone, with place for more."""
  num_rows = anchor.shape[0]
  places = jnp.zeros((num_rows, num_nodes), anchor.dtype)
  q = None
  if law is not None:
    width, draws = law
    shape = (num_rows, num_nodes, width)
    q = tree.SparseLaw(
      jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), draws
    )
  return tree.Draft(
    tokens=places.at[:, 0].set(anchor),
    # Padding as well: what is a chain stays one.
    parents=tree.chain_parents(num_rows, num_nodes),
    num_nodes=jnp.ones((num_rows,), jnp.int32),
    confidence=jnp.zeros((num_rows, num_nodes)).at[:, 0].set(1.0),
    q=q,
  )


def _put(draft, new, is_own):
  """`draft` with rows of another that may be smaller."""
  if (draft.q is None) != (new.q is None):
    raise errors.UserError(
      'a drafter samples although its drafts are to be a function of the text;'
      ' it cannot be mixed with others'
    )

  def put(old, leaf):
    if leaf.ndim == 1:
      return jnp.where(is_own, leaf, old)
    corner = tuple(slice(size) for size in leaf.shape)
    own = jnp.expand_dims(is_own, tuple(range(1, leaf.ndim)))
    leaf = jnp.where(own, leaf.astype(old.dtype), old[corner])
    return old.at[corner].set(leaf)

  return jax.tree.map(put, draft, new)
