# SPDX-License-Identifier: MIT
"""One round of speculative decoding, and several of them in one program.

  propose -> score -> accept -> stop -> commit

Every value a round changes is in `State`; it goes in donated and comes out. The
target only reads the cache while scoring; the single write happens after
acceptance. A round commits accepted + bonus tokens but writes anchor +
accepted rows: the bonus is the next anchor and has no row yet. Plain decoding
is the same round with a draft of the anchor alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.decode import keys, sampling
from jspec.decode.verify import api as verify
from jspec.drafters import base
from jspec.typing import Array, Bool, Int, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stats:
  """Counts of emitted tokens only: what a stop cut off was never accepted.

  Attributes:
    num_rounds: rounds a row took part in.
    num_drafted: draft nodes verified at each depth (first draft: column 0); of
      a tree all of them, so its columns may grow by more than 1 a round.
    num_accepted: drafts accepted and emitted at each depth; no bonus.
  """

  num_rounds: Int[Array, 'B']
  num_drafted: Int[Array, 'B G']
  num_accepted: Int[Array, 'B G']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """All that decoding changes, row by row.

  Attributes:
    cache: the target's pages; `cache.table` is shared with the drafter.
    drafter: the drafter's state (None when decoding plainly). Its leaves lead
      with the row axis, except `paged.Pages`, which are pools under the shared
      page ids.
    anchor: last committed token of each row, at position `table.lengths`.
    remaining: tokens a row may still emit; 0 means it is finished or empty.
    is_stopped: the row ended by a stop id.
    output: emitted tokens.
    num_output: how many of them are real.
    sampling: what each row's request asked for.
    stop_ids: tokens that end a row, padded with -1.
    stats: counts since the row was admitted.
  """

  cache: paged.PagedCache
  drafter: PyTree
  anchor: Int[Array, 'B']
  remaining: Int[Array, 'B']
  is_stopped: Bool[Array, 'B']
  output: Int[Array, 'B S']
  num_output: Int[Array, 'B']
  sampling: sampling.Sampling
  stop_ids: Int[Array, 'B X']
  stats: Stats


def init_state(
  target,
  drafter,
  *,
  num_rows: int,
  max_len: int,
  page_size: int,
  num_stop_ids: int,
) -> State:
  """Empty rows of `max_len` tokens each, which own their pages throughout."""
  pages_per_row = -(-max_len // page_size)
  table = paged.contiguous_table(num_rows, pages_per_row)
  num_pages = num_rows * pages_per_row
  pages = paged.init_pages(
    target.num_layers,
    num_pages,
    page_size,
    target.num_kv_heads,
    target.head_width,
  )
  depth = drafter.num_draft_tokens if drafter is not None else 0

  # Every leaf is its own buffer: the state is donated, and a buffer that
  # appears twice cannot be.
  def zeros(*shape, dtype=jnp.int32):
    return jnp.zeros((num_rows, *shape), dtype)

  return State(
    cache=paged.PagedCache(pages, table),
    drafter=(
      drafter.init_state(table, num_pages, page_size)
      if drafter is not None
      else None
    ),
    anchor=zeros(),
    remaining=zeros(),
    is_stopped=zeros(dtype=bool),
    output=zeros(max_len),
    num_output=zeros(),
    sampling=sampling.stack([sampling.SamplingParams()] * num_rows),
    stop_ids=jnp.full((num_rows, num_stop_ids), -1, jnp.int32),
    stats=Stats(zeros(), zeros(depth), zeros(depth)),
  )


def run_round(target, drafter, state: State, *, rule: str) -> State:
  """Proposes, scores, accepts, stops and commits once, for every row.

  Args:
    target: the model.
    drafter: who drafts; None decodes plainly.
    state: all rows.
    rule: how drafts are verified, see `verify.api`. Under `walk` they are
      deterministic and the tokens are those of plain decoding with the same
      seed; under the others they are sampled at each row's temperature and the
      law is that of plain decoding.
  """
  table = state.cache.table
  draft = _fit(_propose(drafter, state, rule), state.remaining)
  scored, accepted = _verify(target, drafter, state, draft, rule)
  num_committed, is_stopped = _truncate(
    accepted.tokens,
    accepted.num_accepted + 1,
    state.remaining,
    state.stop_ids,
  )
  cache = state.cache.commit(scored.k, scored.v, accepted.path, num_committed)
  last = jnp.maximum(num_committed - 1, 0)[:, None]
  newest = jnp.take_along_axis(accepted.tokens, last, axis=1)[:, 0]
  anchor = jnp.where(num_committed > 0, newest, state.anchor)
  rows = base.Committed(
    tokens=jnp.take_along_axis(draft.tokens, accepted.path, axis=1),
    taps=jnp.take_along_axis(
      scored.taps, accepted.path[:, :, None, None], axis=1
    ),
    num_rows=num_committed,
    next_token=anchor,
  )
  drafter_state = state.drafter
  if drafter is not None:
    drafter_state = drafter.commit(state.drafter, table, rows)
  remaining = jnp.where(is_stopped, 0, state.remaining - num_committed)
  return dataclasses.replace(
    state,
    cache=cache,
    drafter=drafter_state,
    anchor=anchor,
    remaining=remaining,
    is_stopped=state.is_stopped | is_stopped,
    output=_append(
      state.output, state.num_output, accepted.tokens, num_committed
    ),
    num_output=state.num_output + num_committed,
    stats=_count(state, draft, accepted.num_accepted, num_committed),
  )


def run_rounds(
  target,
  drafter,
  state: State,
  num_rounds: Int[Array, ''],
  wants_rows: Bool[Array, ''],
  *,
  rule: str,
) -> State:
  """Runs up to `num_rounds` rounds; ends early when nothing is left to do.

  With `wants_rows` it also ends as soon as a row finishes, so that the host can
  hand the row to another request.
  """
  was_active = state.remaining > 0

  def go_on(carry):
    i, state = carry
    is_active = state.remaining > 0
    freed = jnp.any(was_active & ~is_active)
    return (i < num_rounds) & jnp.any(is_active) & ~(wants_rows & freed)

  def body(carry):
    i, state = carry
    return i + 1, run_round(target, drafter, state, rule=rule)

  return jax.lax.while_loop(go_on, body, (jnp.zeros((), jnp.int32), state))[1]


def node_budgets(num_nodes: int) -> tuple[int, ...]:
  """The numbers of nodes a round is compiled for: the anchor alone, and all.

  A row without drafts costs a plain step, and the matmuls of a few nodes cost
  about the same on every device, so what lies between is not worth compiling.
  """
  return (1,) if num_nodes == 1 else (1, num_nodes)


def _fit(draft, remaining):
  """Cuts drafts to what a row may still emit.

  A row that may emit r more tokens never keeps a node of depth r or more (the
  last node's sample is the r-th token), so nodes behind the last shallower one
  are not scored; accepted paths stay inside the context because what a round
  emits is cut to r. Rows that are finished need the anchor only, and must not
  make the others' round larger.
  """
  depth = tree.depths(draft.parents)
  node = jnp.arange(1, depth.shape[1] + 1, dtype=jnp.int32)
  is_useful = depth < jnp.maximum(remaining, 1)[:, None]
  num_useful = jnp.max(jnp.where(is_useful, node, 1), axis=1)
  return dataclasses.replace(
    draft, num_nodes=jnp.minimum(draft.num_nodes, num_useful)
  )


def _verify(target, drafter, state, draft, rule):
  """Scores as many nodes as some row has, and decides what is kept.

  The branches read the cache and never write it: a branch that carried it would
  copy all of it. Logits stay inside; what comes out is padded to all nodes.
  """
  table = state.cache.table
  taps = drafter.taps if drafter is not None else ()
  num_nodes = draft.tokens.shape[1]

  def score(budget):
    cut = jax.tree.map(
      lambda leaf: leaf[:, :budget] if leaf.ndim > 1 else leaf, draft
    )
    scored = target.score(
      cut.tokens,
      table.lengths[:, None] + tree.depths(cut.parents),
      tree.ancestor_words(cut.parents),
      state.cache,
      taps,
    )
    accepted = verify.accept(
      target.logits(scored.hidden), cut, state.sampling, table.lengths, rule
    )
    return (
      dataclasses.replace(
        scored,
        hidden=_pad(scored.hidden, 1, num_nodes),
        taps=_pad(scored.taps, 1, num_nodes),
        k=_pad(scored.k, 2, num_nodes),
        v=_pad(scored.v, 2, num_nodes),
      ),
      dataclasses.replace(
        accepted,
        path=_pad(accepted.path, 1, num_nodes),
        tokens=_pad(accepted.tokens, 1, num_nodes),
      ),
    )

  budgets = node_budgets(num_nodes)
  if len(budgets) == 1:
    return score(num_nodes)
  needed = jnp.max(draft.num_nodes)
  index = jnp.searchsorted(jnp.asarray(budgets), needed)
  return jax.lax.switch(
    index, [functools.partial(score, budget) for budget in budgets]
  )


def _pad(x, axis, size):
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, widths)


def _propose(drafter, state, rule):
  if drafter is None:
    return tree.plain(state.anchor)
  table = state.cache.table
  if rule == verify.WALK:
    return drafter.propose(state.drafter, table, state.anchor, None, None)
  draft_keys = keys.row_keys(state.sampling.seeds, table.lengths, keys.DRAFT)
  return drafter.propose(
    state.drafter,
    table,
    state.anchor,
    state.sampling.temperature,
    draft_keys,
  )


def _truncate(
  tokens: Int[Array, 'B T'],
  num_tokens: Int[Array, 'B'],
  remaining: Int[Array, 'B'],
  stop_ids: Int[Array, 'B X'],
) -> tuple[Int[Array, 'B'], Bool[Array, 'B']]:
  """Cuts a round's tokens at the first stop id and at the row's budget.

  Decided token by token, so a stop id in the middle of an accepted block ends
  the row exactly where plain decoding would have ended it.
  """
  steps = jnp.arange(tokens.shape[1])
  limit = jnp.minimum(num_tokens, remaining)
  is_stop = jnp.any(tokens[:, :, None] == stop_ids[:, None, :], axis=-1)
  is_stop = is_stop & (steps < limit[:, None])
  before = jnp.cumsum(is_stop, axis=1) - is_stop
  num_committed = jnp.sum((before == 0) & (steps < limit[:, None]), axis=1)
  return num_committed.astype(jnp.int32), jnp.any(is_stop, axis=1)


def _append(output, num_output, tokens, num_tokens):
  rows = jnp.arange(output.shape[0])[:, None]
  steps = jnp.arange(tokens.shape[1])
  # Past the end on purpose where there is nothing to write.
  columns = jnp.where(
    steps < num_tokens[:, None], num_output[:, None] + steps, output.shape[1]
  )
  return output.at[rows, columns].set(tokens, mode='drop')


def _count(state, draft, num_accepted, num_committed):
  stats = state.stats
  is_active = (num_committed > 0)[:, None]
  depth = jnp.arange(stats.num_drafted.shape[1])
  emitted = jnp.minimum(num_accepted, num_committed)[:, None]
  node = jnp.arange(draft.tokens.shape[1])
  is_live = is_active & (node < draft.num_nodes[:, None])
  is_at = tree.depths(draft.parents)[:, :, None] == depth + 1
  drafted = jnp.sum(is_live[:, :, None] & is_at, axis=1, dtype=jnp.int32)
  accepted = is_active & (depth < emitted)
  return Stats(
    stats.num_rounds + is_active[:, 0],
    stats.num_drafted + drafted,
    stats.num_accepted + accepted,
  )
