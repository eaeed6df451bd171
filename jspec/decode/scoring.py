# SPDX-License-Identifier: MIT
"""Scores the nodes of a round, as many as some budget holds, and accepts.

A round is compiled for a few numbers of nodes, summed over the rows, and a
switch on the device takes the smallest that holds what is to be verified:

  every row its anchor alone     one node a row, [B, 1]
  every row all its nodes        [B, T]
  anything in between            the nodes that are kept, packed on one axis

The branches read the cache and never write it: a branch that carried it would
copy all of it. Logits stay inside a branch; what comes out has the shape of the
largest.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import asks as asks_lib
from jspec.decode import given as given_lib
from jspec.decode import lessons as lessons_lib
from jspec.decode.verify import accepted as accepted_lib
from jspec.decode.verify import api as verify
from jspec.targets import base
from jspec.typing import Array, Bool, Int

FACTOR, GAP = 1.5, 3  # of budgets, and nodes between them, at least


class Verified(NamedTuple):
  """What a round learned about its nodes, whatever was scored.

  Attributes:
    scored: what the target says, of all nodes [B, T].
    accepted: what is kept.
    logprobs: of the tokens, see `asks.path_logprobs`; None if rows cannot ask.
    likeliest: where each row's path ends, see `lessons.likeliest`; None if
      nobody can want lessons.
  """

  scored: base.Scored
  accepted: accepted_lib.Accepted
  logprobs: dict[str, Array] | None
  likeliest: dict[str, Array] | None


def ends(num_rows: int, num_nodes: int) -> tuple[int, ...]:
  """The two budgets every round has: anchors alone, and all nodes."""
  return (num_rows,) if num_nodes == 1 else (num_rows, num_rows * num_nodes)


def budgets(num_rows: int, num_nodes: int, most: int = 6) -> tuple[int, ...]:
  """Budgets between the two ends as well, each about the same factor apart.

  Budgets that lie closer than `FACTOR` or `GAP` cost about the same.

  Args:
    num_rows: rows of the round.
    num_nodes: nodes of the largest draft, its anchor included.
    most: how many budgets at most; every one is compiled.
  """
  largest = num_rows * num_nodes
  steps = min(most - 1, int(math.log(num_nodes, FACTOR)))
  found = [num_rows]
  for step in range(1, steps):
    size = round(num_rows * num_nodes ** (step / steps))
    if size - found[-1] >= GAP and largest - size >= GAP:
      found.append(size)
  return tuple(sorted({*found, largest}))


def score_and_accept(
  target,
  state,
  draft: tree.Draft,
  *,
  taps: tuple[int, ...],
  rule: str,
  sizes: tuple[int, ...],
  given: given_lib.Given | None = None,
  wants_lessons: Bool[Array, ''] | None = None,
) -> Verified:
  """Scores what is to be verified and decides what is kept of it.

  Args:
    target: the model.
    state: all rows (`round.State`).
    draft: what to verify; `num_nodes` says how much of it. Rows that are
      finished need not count.
    taps: layers to capture.
    rule: how drafts are verified.
    sizes: the budgets, ascending; the last holds everything.
    given: which tokens the host allows; None: all.
    wants_lessons: whether `likeliest` is looked up; None: it cannot be.
  """
  num_rows, num_nodes = draft.tokens.shape
  is_active = state.remaining > 0
  live = jnp.where(is_active, draft.num_nodes, 0)

  def branch(size):
    args = taps, rule, given, wants_lessons
    if size in ends(num_rows, num_nodes):
      return _whole_rows(target, state, draft, size // num_rows, *args)
    packing = packing_lib.pack_rows(live, size, num_nodes)
    return _packed(target, state, draft, packing, *args)

  branches = [functools.partial(branch, size) for size in sizes]
  if len(branches) == 1:
    return branches[0]()
  return jax.lax.switch(budget_of(live, sizes), branches)


def budget_of(
  num_nodes: Int[Array, 'B'], sizes: tuple[int, ...]
) -> Int[Array, '']:
  """Which budget verifies so many nodes of each row, 0 of those that rest.

  The first has one node for every row and place for no other.
  """
  num_rows = num_nodes.shape[0]
  total = jnp.maximum(jnp.sum(num_nodes), num_rows + 1)
  needed = jnp.where(jnp.max(num_nodes) > 1, total, num_rows)
  return jnp.searchsorted(jnp.asarray(sizes), needed)


def _whole_rows(target, state, draft, num_nodes, taps, rule, given, wants):
  """As many nodes in every row."""
  cut = jax.tree.map(
    lambda leaf: leaf[:, :num_nodes] if leaf.ndim > 1 else leaf, draft
  )
  lengths = state.cache.table.lengths
  scored = target.score(
    cut.tokens,
    lengths[:, None] + tree.depths(cut.parents),
    tree.ancestor_words(cut.parents),
    state.cache,
    taps,
  )
  logits = target.logits(scored.hidden)
  adjusted = _adjust(state, logits, cut, None, given)
  accepted = verify.accept(adjusted, cut, state.sampling, lengths, rule)
  found = _logprobs(state, logits, accepted, None)
  pad = functools.partial(_pad, size=draft.tokens.shape[1])
  return Verified(
    dataclasses.replace(
      scored,
      hidden=pad(scored.hidden, 1),
      taps=pad(scored.taps, 1),
      k=pad(scored.k, 2),
      v=pad(scored.v, 2),
    ),
    dataclasses.replace(
      accepted, path=pad(accepted.path, 1), tokens=pad(accepted.tokens, 1)
    ),
    None if found is None else {name: pad(x, 1) for name, x in found.items()},
    _likeliest(wants, logits, accepted, None),
  )


def _packed(target, state, draft, packing, taps, rule, given, wants):
  """The nodes that are kept and nothing else."""
  lengths = state.cache.table.lengths
  positions = lengths[:, None] + tree.depths(draft.parents)
  pack = packing.to_tokens
  scored = target.score(
    pack(draft.tokens)[None],
    pack(positions)[None],
    pack(tree.ancestor_words(draft.parents))[None],
    state.cache,
    taps,
    packing,
  )
  logits = target.logits(scored.hidden)[0]
  adjusted = _adjust(state, logits, draft, packing, given)
  accepted = verify.accept_packed(
    adjusted, packing, draft, state.sampling, lengths, rule
  )
  unpack = packing.to_rows
  unpack_layers = jax.vmap(unpack)
  return Verified(
    base.Scored(
      hidden=unpack(scored.hidden[0]),
      taps=unpack(scored.taps[0]),
      k=unpack_layers(scored.k[:, 0]),
      v=unpack_layers(scored.v[:, 0]),
    ),
    accepted,
    _logprobs(state, logits, accepted, packing),
    _likeliest(wants, logits, accepted, packing),
  )


def _adjust(state, logits, draft, packing, given):
  if state.asks is not None:
    logits = asks_lib.adjust(state.asks, state.stop_ids, logits, draft, packing)
  # Last, so that nothing brings a forbidden token back.
  return logits if given is None else given.mask(logits, packing)


def _logprobs(state, logits, accepted, packing):
  if state.asks is None:
    return None
  return asks_lib.path_logprobs(state.asks, logits, accepted, packing)


def _likeliest(wants, logits, accepted, packing):
  if wants is None:
    return None
  return lessons_lib.likeliest(wants, logits, accepted, packing)


def _pad(x: Array, axis: int, size: int) -> Array:
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, widths)
