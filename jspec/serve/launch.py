# SPDX-License-Identifier: MIT
"""What a launch of rounds does on the device, and what it reports.

The state holds all rows; a launch runs some of them. The host says which, what
pages they own, what a round costs now and which policy plans; the device
drafts, plans, verifies and commits several rounds, and reports the new tokens.
What the host says are arrays, so none of it compiles anything.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.decode import asks as asks_lib
from jspec.decode import given as given_lib
from jspec.decode import lessons as lessons_lib
from jspec.decode import round as round_lib
from jspec.decode import rows as rows_lib
from jspec.decode import scoring
from jspec.depth import base as depth_lib
from jspec.depth import costs as costs_lib
from jspec.serve import scores as scores_lib
from jspec.typing import Array, Bool, Float, Int

PLAIN, DRAFT, BONUS = range(3)  # `Report.origins`.
BY_POLICY = -1  # `Inputs.budget`: let the policy decide.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
  """What the host decides.

  Attributes:
    rows: rows of the state that take part; past the last one where fewer do.
    page_ids: pages they own, in order of position, -1 behind.
    num_rounds: most rounds.
    wants_rows: end as soon as a row finishes.
    policy: which of the compiled policies plans.
    budget: which budget every round spends, evenly over the rows; `BY_POLICY`
      otherwise.
    is_measuring: spend it even on nodes that were not drafted. Only the time of
      such a launch means anything.
    wants_lessons: look up `Report.lessons`.
    costs: seconds of a round, for the plan.
    given: what the host says of the round, of which there is one then; None:
      programs that were compiled without.
    temperatures: of the confidence of drafts at each depth (`depth.sts`); where
      they are 1 it is what the drafter says.
  """

  rows: Int[Array, 'B']
  page_ids: Int[Array, 'B M']
  num_rounds: Int[Array, '']
  wants_rows: Bool[Array, '']
  policy: Int[Array, '']
  budget: Int[Array, '']
  is_measuring: Bool[Array, '']
  wants_lessons: Bool[Array, '']
  costs: costs_lib.Costs
  given: given_lib.Given | None
  temperatures: Float[Array, 'B G']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
  """What the launch did for each of its rows.

  Attributes:
    tokens: emitted, in order; -1 ends a row whose target gave no finite logit.
    origins: how each came: `PLAIN`, of a round that verified no draft; `DRAFT`;
      or `BONUS`, behind the drafts of its round.
    num_tokens: how many of them are real.
    is_stopped: rows that ended by a stop id, or by such a failure.
    lengths: committed tokens of each row.
    stats: counts of this launch alone.
    num_rounds: rounds that were run.
    dropped: whether a row was committed without a page to hold it.
    num_by_depth: rounds of rows that verified 0, 1, ... drafts.
    num_by_budget: rounds that ran each budget.
    scores: survival of the drafts of the last round, all that were drafted, by
      scaled confidence.
    confidence: of each, as its drafter said.
    parents: nodes they hang from.
    num_verified: drafts of them that were verified; -1 for rows that took no
      part in the last round.
    path: nodes of them that were right, from the first draft on and then 0.
    logprobs: of the tokens, by the names of `logprobs.Logprobs`; zeros for rows
      that do not want them.
    lessons: of the last round; `depth` -1 for rows that took no part in it.
  """

  tokens: Int[Array, 'B W']
  origins: Int[Array, 'B W']
  num_tokens: Int[Array, 'B']
  is_stopped: Bool[Array, 'B']
  lengths: Int[Array, 'B']
  stats: round_lib.Stats
  num_rounds: Int[Array, '']
  dropped: Bool[Array, '']
  num_by_depth: Int[Array, 'G1']
  num_by_budget: Int[Array, 'K']
  scores: Float[Array, 'B G']
  confidence: Float[Array, 'B G']
  parents: Int[Array, 'B G']
  num_verified: Int[Array, 'B']
  path: Int[Array, 'B G']
  logprobs: dict[str, Array]
  lessons: lessons_lib.Lessons


def run(
  target,
  drafter,
  state: round_lib.State,
  inputs: Inputs,
  *,
  policies: tuple[depth_lib.DepthPolicy, ...],
  rule: str,
  sizes: tuple[int, ...],
  width: int,
  is_plain: bool,
) -> tuple[round_lib.State, Report]:
  """Runs up to `inputs.num_rounds` rounds on `inputs.rows`.

  Args:
    target: the model.
    drafter: who drafts; None decodes plainly.
    state: all rows; donate it.
    inputs: what the host decides.
    policies: what `inputs.policy` chooses from.
    rule: how drafts are verified.
    sizes: budgets of a round, see `decode.scoring`.
    width: most tokens a launch emits for a row.
    is_plain: draft nothing.
  """
  some = _begin(state, inputs, width)
  num_rounds, given = inputs.num_rounds, inputs.given
  if given is not None:
    num_rounds = jnp.where(given.is_one_round(), 1, num_rounds)
  prior = scores_lib.prior(state.scores)

  def plan(draft, state):
    return 1 + _plan(draft, state, inputs, policies, prior)

  def go_on(carry):
    i, now, _ = carry
    is_active = now.remaining > 0
    freed = jnp.any((some.remaining > 0) & ~is_active)
    is_wanted = jnp.any(is_active) & ~(inputs.wants_rows & freed)
    return (i < num_rounds) & is_wanted

  def body(carry):
    i, before, seen = carry
    now, last = round_lib.run_round(
      target,
      drafter,
      before,
      rule=rule,
      sizes=sizes,
      plan=None if is_plain or drafter is None else plan,
      is_plain=is_plain,
      given=given,
      wants_lessons=inputs.wants_lessons,
    )
    seen = _see(seen, last, before, sizes, inputs.temperatures)
    if not is_plain:
      is_real = (before.remaining > 0) & ~inputs.is_measuring
      kept = scores_lib.kept(before.scores, seen.scores, is_real)
      now = dataclasses.replace(now, scores=kept)
    return i + 1, now, seen

  num_rows, num_drafts = some.stats.num_drafted.shape
  nothing = _Seen(
    by_depth=jnp.zeros((num_drafts + 1,), jnp.int32),
    by_budget=jnp.zeros((len(sizes),), jnp.int32),
    scores=jnp.zeros((num_rows, num_drafts), jnp.float32),
    confidence=jnp.zeros((num_rows, num_drafts), jnp.float32),
    parents=jnp.zeros((num_rows, num_drafts), jnp.int32),
    num_verified=jnp.full((num_rows,), -1, jnp.int32),
    path=jnp.zeros((num_rows, num_drafts), jnp.int32),
    origins=jnp.zeros((num_rows, width), jnp.int8),
    lessons=lessons_lib.none(
      num_rows, 0 if drafter is None else len(drafter.taps), target.width
    ),
  )
  num_done, some, seen = jax.lax.while_loop(
    go_on, body, (jnp.int32(0), some, nothing)
  )
  report = Report(
    tokens=some.output,
    origins=seen.origins,
    num_tokens=some.num_output,
    is_stopped=some.is_stopped,
    lengths=some.cache.table.lengths,
    stats=some.stats,
    num_rounds=num_done,
    dropped=some.cache.table.dropped,
    num_by_depth=seen.by_depth,
    num_by_budget=seen.by_budget,
    scores=seen.scores,
    confidence=seen.confidence,
    parents=seen.parents,
    num_verified=seen.num_verified,
    path=seen.path,
    logprobs={
      name: getattr(some.asks, name)
      for name in ('chosen', 'rank', 'ids', 'values')
    },
    lessons=seen.lessons,
  )
  return _end(state, some, inputs), report


def propose(
  drafter,
  state: round_lib.State,
  rows: Int[Array, 'B'],
  page_ids: Int[Array, 'B M'],
  *,
  rule: str,
) -> tree.Draft:
  """Drafts for a round that the host judges first; `run` verifies them.

  Args:
    drafter: who drafts.
    state: all rows; not donated, nothing of it changes.
    rows: as in `Inputs`.
    page_ids: likewise.
    rule: how the drafts will be verified.
  """
  some = _with_pages(rows_lib.take(state, rows), page_ids)
  return round_lib.propose(drafter, some, rule)


def _with_pages(some, page_ids):
  table = dataclasses.replace(some.cache.table, page_ids=page_ids)
  return dataclasses.replace(
    some, cache=dataclasses.replace(some.cache, table=table)
  )


def _begin(state, inputs, width):
  """The rows of the launch, with nothing emitted or counted yet."""
  some = _with_pages(rows_lib.take(state, inputs.rows), inputs.page_ids)
  is_row = inputs.rows < state.remaining.shape[0]
  zeros = jnp.zeros_like(some.num_output)
  asks = asks_lib.with_places(some.asks, width)
  asks = dataclasses.replace(asks, wants_logprobs=asks.wants_logprobs & is_row)
  return dataclasses.replace(
    some,
    asks=asks,
    remaining=jnp.where(is_row, some.remaining, 0),
    output=jnp.zeros((zeros.shape[0], width), jnp.int32),
    num_output=zeros,
    stats=jax.tree.map(jnp.zeros_like, some.stats),
  )


def _end(state, some, inputs):
  """All rows, with those of the launch written back; `output` stays empty."""
  some = dataclasses.replace(
    some,
    output=jnp.zeros((some.output.shape[0], 0), jnp.int32),
    stats=rows_lib.take(state, inputs.rows).stats,
    asks=asks_lib.with_places(some.asks, 0),
  )
  return rows_lib.put(state, some, inputs.rows)


class _Seen(NamedTuple):
  """What is reported of the rounds beside their tokens; see `Report`."""

  by_depth: Int[Array, 'G1']
  by_budget: Int[Array, 'K']
  scores: Float[Array, 'B G']
  confidence: Float[Array, 'B G']
  parents: Int[Array, 'B G']
  num_verified: Int[Array, 'B']
  path: Int[Array, 'B G']
  origins: Int[Array, 'B W']
  lessons: lessons_lib.Lessons


def _see(seen, last, before, sizes, temperatures):
  """Adds a round; of the last one the drafts are kept."""
  is_row = before.remaining > 0
  drafts = last.draft.num_nodes - 1
  number = jnp.arange(seen.by_depth.shape[0])
  is_at = is_row[:, None] & (drafts[:, None] == number)
  budget = scoring.budget_of(jnp.where(is_row, 1 + drafts, 0), sizes)
  every = dataclasses.replace(
    last.draft, num_nodes=jnp.full_like(drafts, last.draft.tokens.shape[1])
  )
  scores = scores_lib.live(every, temperatures)
  missing = seen.scores.shape[1] - scores.shape[1]  # All of them if plain.
  fill = ((0, 0), (0, missing))
  return _Seen(
    by_depth=seen.by_depth + jnp.sum(is_at, axis=0, dtype=jnp.int32),
    by_budget=seen.by_budget.at[budget].add(1),
    scores=jnp.pad(scores, fill),
    confidence=jnp.pad(every.confidence[:, 1:].astype(jnp.float32), fill),
    parents=jnp.pad(every.parents[:, 1:], fill),
    num_verified=jnp.where(is_row, drafts, -1),
    path=jnp.pad(last.path, fill),
    origins=_with_origins(seen.origins, before.num_output, last),
    lessons=last.lessons,
  )


def _with_origins(origins, num_output, last):
  """How the tokens of a round came, behind those of the rounds before."""
  num_rows, num_nodes = last.draft.tokens.shape
  num_accepted = jnp.sum(last.path > 0, axis=1)[:, None]
  step = jnp.arange(num_nodes)
  behind = jnp.where(last.draft.num_nodes > 1, BONUS, PLAIN)[:, None]
  came = jnp.where(step < num_accepted, DRAFT, behind).astype(origins.dtype)
  # Past the end on purpose where there is nothing to write.
  columns = jnp.where(
    step < last.num_committed[:, None],
    num_output[:, None] + step,
    origins.shape[1],
  )
  rows = jnp.arange(num_rows)[:, None]
  return origins.at[rows, columns].set(came, mode='drop')


def _plan(draft, state, inputs, policies, prior):
  """Drafts that each row verifies."""
  is_active = state.remaining > 0
  load = depth_lib.Load(is_active=is_active, limits=draft.num_nodes - 1)
  live = scores_lib.live(draft, inputs.temperatures)

  # The first budget holds anchors and no draft (`scoring.budget_of`), however
  # few the rows are that decode.
  num_active = jnp.sum(is_active, dtype=jnp.int32)
  costs = dataclasses.replace(
    inputs.costs, nodes=inputs.costs.nodes.at[0].set(num_active)
  )

  def by(policy):
    if policy.reads == depth_lib.STALE:
      return policy.plan(scores_lib.stale(state.scores, prior), load, costs)
    return policy.plan(live, load, costs)

  own = state.asks.policy

  def alike():
    branches = [functools.partial(by, policy) for policy in policies]
    return jax.lax.switch(inputs.policy, branches)

  def row_by_row():
    # Every policy plans as if all rows were its own, and says no more than the
    # largest budget holds; that holds all drafts, so any mixture fits too.
    counts = jnp.stack([by(policy) for policy in policies])
    chosen = jnp.where(own == asks_lib.ANY_POLICY, inputs.policy, own)
    return jnp.take_along_axis(counts, chosen[None], axis=0)[0]

  def by_policy():
    if len(policies) == 1:
      return by(policies[0])
    differ = is_active & (own != asks_lib.ANY_POLICY) & (own != inputs.policy)
    return jax.lax.cond(jnp.any(differ), row_by_row, alike)

  def evenly():
    nodes = inputs.costs.nodes[jnp.maximum(inputs.budget, 0)]
    limits = jnp.where(inputs.is_measuring, live.shape[1], load.limits)
    return spread(nodes, is_active, limits)

  return jax.lax.cond(inputs.budget == BY_POLICY, by_policy, evenly)


def spread(
  num_nodes: Int[Array, ''],
  is_active: Bool[Array, 'B'],
  limits: Int[Array, 'B'],
) -> Int[Array, 'B']:
  """Drafts of each row when `num_nodes` are dealt out evenly."""
  num_active = jnp.maximum(jnp.sum(is_active, dtype=jnp.int32), 1)
  drafts = jnp.maximum(num_nodes - num_active, 0)
  rank = jnp.cumsum(is_active, dtype=jnp.int32) - 1
  counts = drafts // num_active + (rank < drafts % num_active)
  return jnp.where(is_active, jnp.minimum(counts, limits), 0)
