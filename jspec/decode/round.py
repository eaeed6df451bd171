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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.decode import asks as asks_lib
from jspec.decode import drafts, keys, sampling, scoring
from jspec.decode import given as given_lib
from jspec.decode import lessons as lessons_lib
from jspec.decode.verify import api as verify
from jspec.drafters import base
from jspec.typing import Array, Bool, Float, Int, PyTree

# From a draft and the state to how many of its nodes each row verifies.
Plan = Callable[[tree.Draft, 'State'], Int[Array, 'B']]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stats:
  """Counts of emitted tokens only: what a stop cut off was never accepted.

  Attributes:
    num_rounds: rounds a row took part in.
    num_drafted: draft nodes verified at each depth (first draft: column 0); of
      a tree all of them, so its columns may grow by more than 1 a round.
    num_accepted: drafts accepted and emitted at each depth; no bonus.
    num_broken: rounds whose draft was dropped, see `drafts.without_broken`.
  """

  num_rounds: Int[Array, 'B']
  num_drafted: Int[Array, 'B G']
  num_accepted: Int[Array, 'B G']
  num_broken: Int[Array, 'B']


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
    asks: what requests ask beyond sampling; None: they cannot.
    scores: survival of the drafts of the row's last round, for plans that must
      not look at the next one's; nan before the first. None: not kept.
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
  asks: asks_lib.Asks | None = None
  scores: Float[Array, 'B G'] | None = None


class Round(NamedTuple):
  """What one round did, for those who learn from it.

  Attributes:
    draft: what was proposed; `num_nodes` of it were verified.
    path: nodes that the target follows, from the first draft on and then 0,
      even where a stop id or the budget cut the row before the end.
    num_committed: tokens emitted; 0 for rows that took no part.
    lessons: of the rows; None if nobody can want them.
  """

  draft: tree.Draft
  path: Int[Array, 'B G']
  num_committed: Int[Array, 'B']
  lessons: lessons_lib.Lessons | None


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
  return empty_state(
    target,
    drafter,
    paged.contiguous_table(num_rows, pages_per_row),
    num_pages=num_rows * pages_per_row,
    page_size=page_size,
    output_len=max_len,
    num_stop_ids=num_stop_ids,
  )


def empty_state(
  target,
  drafter,
  table: paged.PageTable,
  *,
  num_pages: int,
  page_size: int,
  output_len: int,
  num_stop_ids: int,
) -> State:
  """Empty rows over a pool of pages.

  Args:
    target: the model.
    drafter: who drafts; None decodes plainly.
    table: pages of the rows; no token is committed yet.
    num_pages: of the pool.
    page_size: tokens of a page.
    output_len: places for emitted tokens.
    num_stop_ids: places for stop ids.
  """
  num_rows = table.lengths.shape[0]
  # Rows as the target computes them: casting a pool would copy it every round.
  token = jax.ShapeDtypeStruct((1,), jnp.int32)
  pages = paged.init_pages(
    target.num_layers,
    num_pages,
    page_size,
    target.num_kv_heads,
    target.head_width,
    jax.eval_shape(target.embed, token).dtype,
    target.cache_form,
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
    output=zeros(output_len),
    num_output=zeros(),
    sampling=sampling.stack([sampling.SamplingParams()] * num_rows),
    stop_ids=jnp.full((num_rows, num_stop_ids), -1, jnp.int32),
    stats=Stats(zeros(), zeros(depth), zeros(depth), zeros()),
  )


def run_round(
  target,
  drafter,
  state: State,
  *,
  rule: str,
  sizes: tuple[int, ...] | None = None,
  plan: Plan | None = None,
  is_plain: bool = False,
  given: given_lib.Given | None = None,
  wants_lessons: Bool[Array, ''] | None = None,
) -> tuple[State, Round]:
  """Proposes, scores, accepts, stops and commits once, for every row.

  Args:
    target: the model.
    drafter: who drafts; None decodes plainly.
    state: all rows.
    rule: how drafts are verified, see `verify.api`. Under `walk` they are
      deterministic and the tokens are those of plain decoding with the same
      seed; under the others they are sampled at each row's temperature and the
      law is that of plain decoding.
    sizes: total nodes of a round that is compiled, see `scoring`; None: the
      anchors alone and everything.
    plan: how many nodes of each row to verify: at least the anchor, and no more
      than it has; None: all.
    is_plain: draft nothing this time; the drafter still takes in what is
      committed, so that it can draft again later.
    given: what the host says of this round; None: nothing.
    wants_lessons: whether `Round.lessons` are looked up; None: they cannot be.
  """
  table = state.cache.table
  if drafter is None or is_plain:
    draft = tree.plain(state.anchor)
  elif given is None:
    draft = propose(drafter, state, rule)
  else:
    draft = jax.lax.cond(
      given.is_given,
      lambda: given.judged(state.anchor),
      lambda: propose(drafter, state, rule),
    )
  if is_plain:
    rule = verify.WALK  # Where nothing is drafted, every rule is this one.
  draft, is_broken = drafts.without_broken(draft, target.vocab_size)
  draft = drafts.fit(draft, state.remaining)
  if state.asks is not None:
    draft = asks_lib.capped(state.asks, draft)
  if plan is not None:
    draft = dataclasses.replace(draft, num_nodes=plan(draft, state))
  scored, accepted, logprobs, likeliest = scoring.score_and_accept(
    target,
    state,
    draft,
    taps=() if drafter is None else drafter.taps,
    rule=rule,
    sizes=scoring.ends(*draft.tokens.shape) if sizes is None else sizes,
    given=given,
    wants_lessons=wants_lessons,
  )
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
  asks = state.asks
  if asks is not None:
    asks = asks_lib.record(
      asks, accepted.tokens, num_committed, state.num_output, logprobs
    )
  remaining = jnp.where(is_stopped, 0, state.remaining - num_committed)
  after = dataclasses.replace(
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
    asks=asks,
    stats=_count(state, draft, is_broken, accepted.num_accepted, num_committed),
  )
  depth = jnp.arange(1, accepted.path.shape[1])
  is_kept = depth <= accepted.num_accepted[:, None]
  path = jnp.where(is_kept, accepted.path[:, 1:], 0)
  lessons = None
  if wants_lessons is not None:
    lessons = lessons_lib.of(
      wants_lessons,
      likeliest,
      draft,
      accepted,
      scored.taps,
      table.lengths,
      num_committed,
    )
  return after, Round(draft, path, num_committed, lessons)


def run_rounds(
  target,
  drafter,
  state: State,
  num_rounds: Int[Array, ''],
  wants_rows: Bool[Array, ''],
  **options: Any,
) -> State:
  """Runs up to `num_rounds` rounds; ends early when nothing is left to do.

  With `wants_rows` it also ends as soon as a row finishes, so that the host can
  hand the row to another request. `options` are those of `run_round`.
  """
  was_active = state.remaining > 0

  def go_on(carry):
    i, state = carry
    is_active = state.remaining > 0
    freed = jnp.any(was_active & ~is_active)
    return (i < num_rounds) & jnp.any(is_active) & ~(wants_rows & freed)

  def body(carry):
    i, state = carry
    return i + 1, run_round(target, drafter, state, **options)[0]

  return jax.lax.while_loop(go_on, body, (jnp.zeros((), jnp.int32), state))[1]


def propose(drafter, state: State, rule: str) -> tree.Draft:
  """What the drafter proposes behind each anchor, for a verification rule."""
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
  # No finite logit ends a row as well, even with a stop id in every place.
  is_stop = (is_stop | (tokens < 0)) & (steps < limit[:, None])
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


def _count(state, draft, is_broken, num_accepted, num_committed):
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
    stats.num_broken + (is_active[:, 0] & is_broken),
  )
