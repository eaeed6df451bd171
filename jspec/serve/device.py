# SPDX-License-Identifier: MIT
"""`Device`: the state and the programs that change it.

Every call sends work and returns at once; only `read` waits. Calls run in the
order in which they were sent, each on the state the one before leaves behind.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jspec import tree
from jspec.decode import asks as asks_lib
from jspec.decode import lessons as lessons_lib
from jspec.decode import options as options_lib
from jspec.decode import round as round_lib
from jspec.decode import sampling
from jspec.depth import costs as costs_lib
from jspec.serve import (
  bare,
  calls,
  followers,
  launch,
  members,
  plan,
  programs,
)


@dataclasses.dataclass(frozen=True)
class Answer:
  """What one row of a launch emitted, on the host.

  Attributes:
    row: the device's row.
    tokens: in order, without the failure.
    origins: how each came, by number (`launch.PLAIN` and so on).
    is_stopped: a stop id ended the row.
    has_failed: the target gave no finite logit behind the tokens.
    num_rounds: rounds the row took part in.
    num_drafted: draft nodes verified at each depth.
    num_accepted: drafts accepted at each depth.
    num_broken: rounds whose draft was dropped.
    logprobs: arrays of the row's tokens, by the names of `logprobs.Logprobs`;
      None if nobody wanted them.
  """

  row: int
  tokens: tuple[int, ...]
  origins: tuple[int, ...]
  is_stopped: bool
  has_failed: bool
  num_rounds: int
  num_drafted: np.ndarray
  num_accepted: np.ndarray
  num_broken: int
  logprobs: dict[str, np.ndarray] | None


@dataclasses.dataclass(frozen=True)
class Used:
  """What the rounds of a launch verified.

  Attributes:
    num_rounds: rounds that were run.
    by_depth: rounds of rows that verified 0, 1, ... drafts.
    by_budget: rounds that ran each budget.
    scores: survival of the last round's drafts by scaled confidence, row by row
      [B, G].
    confidence: of each, as its drafter said.
    parents: nodes they hang from.
    num_verified: how many of them were verified; -1: the row took no part.
    path: nodes of them that were right, from the first draft on and then 0.
    lessons: of the last round, in the order of the rows; None if they were not
      asked for.
  """

  num_rounds: int
  by_depth: np.ndarray
  by_budget: np.ndarray
  scores: np.ndarray
  confidence: np.ndarray
  parents: np.ndarray
  num_verified: np.ndarray
  path: np.ndarray
  lessons: lessons_lib.Lessons | None = None


class Device:
  """One target and one drafter on the device."""

  def __init__(
    self,
    target,
    drafter,
    state: round_lib.State,
    compiled: programs.Programs,
    shapes: programs.Shapes,
    max_len: int,
    leader: followers.Leader | None = None,
    policy_names: Sequence[str] = (),
  ):
    self._calls = calls.Calls(target, drafter, state, compiled, shapes, leader)
    self._drafter, self._shapes = drafter, shapes
    self._num_rows, self._capacity = state.cache.table.page_ids.shape
    self._max_len, self._policy_names = max_len, policy_names
    self._start = programs.start(max_len, self._capacity)
    self._num_drafts = 0 if drafter is None else drafter.num_draft_tokens

  def set_drafter(self, drafter) -> None:
    """Lets another one draft, of the same form (`swap`).

    Raises:
      UserError: the engine runs on several hosts.
    """
    self._calls.set_drafter(drafter)
    self._drafter = drafter

  def follow(self, receive: Callable[[], Any]) -> None:
    """Makes the calls of a leader (`calls.Calls.follow`)."""
    self._calls.follow(receive)

  def close(self) -> None:
    """Lets followers end; nothing is called afterwards."""
    self._calls.close()

  @property
  def drafters(self) -> tuple[str | None, ...]:
    """Names that a request may choose from (`members.names`)."""
    return members.names(self._drafter)

  def bucket(self, num_rows: int) -> int:
    """The compiled number of rows that holds so many."""
    return next(b for b in self._shapes.row_buckets if b >= num_rows)

  def sizes(self, form: str, bucket: int) -> tuple[int, ...]:
    """Budgets of a round."""
    num_drafts = self._num_drafts if form == programs.FUSED else 0
    return self._shapes.sizes(bucket, num_drafts)

  def admit(self, admission: plan.Admission, num_prompt: int) -> None:
    """Gives a row to a request whose prompt has `num_prompt` tokens."""
    ask = admission.params
    stop_ids = np.full((programs.NUM_STOP_IDS,), -1, np.int32)
    stop_ids[: len(ask.params.stop_ids)] = ask.params.stop_ids
    tokens = np.zeros((self._max_len,), np.int32)
    tokens[: len(admission.tokens)] = admission.tokens
    whole, real = self._start.pack(
      dict(
        row=np.asarray(admission.row, np.int32),
        tokens=tokens,
        num_prompt=np.asarray(num_prompt, np.int32),
        num_tokens=np.asarray(len(admission.tokens), np.int32),
        num_cached=np.asarray(admission.num_cached, np.int32),
        page_ids=self._page_ids([admission.pages], 1)[0],
        sampling=sampling.columns([ask.params]),
        stop_ids=stop_ids,
        options=options_lib.columns([ask.options]),
        wants_logprobs=np.asarray(ask.num_logprobs is not None),
        max_drafts=np.asarray(ask.most_drafts, np.int32),
        policy=np.asarray(self._policy_index(ask.policy), np.int32),
        drafter=np.asarray(members.index(self._drafter, ask.drafter), np.int32),
      )
    )
    self._calls(programs.Key(programs.ADMIT), whole, real)

  def _policy_index(self, wanted):
    if wanted is None:
      return asks_lib.ANY_POLICY
    return self._policy_names.index(wanted)

  def prefill(
    self, chunk: plan.Chunk, wants_logprobs: bool
  ) -> dict[str, jax.Array]:
    """Reads a chunk of a prompt; log-probabilities are 0 if not wanted."""
    tokens = np.zeros((chunk.size,), np.int32)
    tokens[: len(chunk.tokens)] = chunk.tokens
    return self._calls(
      programs.Key(programs.PREFILL, chunk.size),
      np.int32(chunk.row),
      tokens,
      np.int32(len(chunk.tokens)),
      np.int32(chunk.next_token),
      np.bool_(wants_logprobs),
    )

  def start(self, row: int, max_tokens: int) -> None:
    """Lets the rounds decode a row."""
    self._calls(
      programs.Key(programs.START), np.int32(row), np.int32(max_tokens)
    )

  def run(
    self,
    form: str,
    rows: Sequence[int],
    pages: Sequence[Sequence[int]],
    *,
    num_rounds: int,
    wants_rows: bool,
    costs: costs_lib.Costs,
    temperatures: np.ndarray | None = None,
    policy: int = 0,
    budget: int = launch.BY_POLICY,
    is_measuring: bool = False,
    given: dict[str, Any] | None = None,
    wants_lessons: bool = False,
  ) -> launch.Report:
    """Sends rounds of some rows; the report is read later.

    With what the host says of them, `given` (`split.judge`), it is one round.
    `temperatures` [rows, G] are of their confidence; None: as it is. The rest
    is as in `launch.Inputs`.
    """
    bucket = self.bucket(len(rows))
    scale = np.ones((bucket, self._num_drafts), np.float32)
    if temperatures is not None:
      scale[: len(rows)] = temperatures
    row_ids, page_ids = self._places(rows, pages, bucket)
    return self._calls(
      programs.Key(form, bucket),
      dict(
        rows=row_ids,
        page_ids=page_ids,
        num_rounds=np.int32(num_rounds),
        wants_rows=np.bool_(wants_rows),
        policy=np.int32(policy),
        budget=np.int32(budget),
        is_measuring=np.bool_(is_measuring),
        wants_lessons=np.bool_(wants_lessons),
        temperatures=scale,
        costs=bare.of(costs),
        given=self._said(given, bucket),
      ),
    )

  def propose(
    self, rows: Sequence[int], pages: Sequence[Sequence[int]]
  ) -> tree.Draft:
    """Sends for drafts that the host will judge; `run` then verifies them."""
    bucket = self.bucket(len(rows))
    places = self._places(rows, pages, bucket)
    return self._calls(programs.Key(programs.PROPOSE, bucket), *places)

  def no_draft(self, num_rows: int) -> tree.Draft:
    """The draft of a round that is given none, and judged all the same."""
    return self._calls.no_draft(self.bucket(num_rows))

  def _said(self, given, bucket):
    """What the host says of a round; drafts that never left the device stay."""
    if not self._shapes.is_split:
      return None
    if given is None:
      return bare.NOTHING
    draft = given['draft']
    if draft is self._calls.proposed:
      draft = bare.PROPOSED
    elif draft is self._calls.no_draft(bucket):
      draft = bare.NO_DRAFT
    else:
      draft = bare.of(draft)
    return {**given, 'draft': draft}

  def _places(self, rows, pages, bucket):
    padding = [self._num_rows] * (bucket - len(rows))
    row_ids = np.asarray([*rows, *padding], np.int32)
    return row_ids, self._page_ids(pages, bucket)

  def wait(self, found: Any = None) -> bool:
    """Waits for arrays on their way, or for all; whether any of them was.

    Raises:
      Lost: a follower is gone.
    """
    found = self._calls.state.remaining if found is None else found
    was_running = not all(leaf.is_ready() for leaf in jax.tree.leaves(found))
    self._calls.wait(found)
    return was_running

  def _page_ids(self, pages, num_rows):
    page_ids = np.full((num_rows, self._capacity), -1, np.int32)
    for row, owned in enumerate(pages):
      page_ids[row, : len(owned)] = owned
    return page_ids


def read(
  report: launch.Report,
  rows: Sequence[int],
  *,
  with_logprobs: bool,
  with_lessons: bool = False,
) -> tuple[list[Answer], Used]:
  """Waits for a launch and takes its report apart.

  Args:
    report: of the launch.
    rows: those it ran, in their order.
    with_logprobs: whether any of them wants log-probabilities.
    with_lessons: whether the launch was asked for lessons.

  Raises:
    RuntimeError: a row was committed without a page to hold it, so nothing of
      this state can be trusted any more; a defect of the scheduler.
  """
  stats = report.stats
  got = jax.device_get(
    dict(
      dropped=report.dropped,
      tokens=report.tokens,
      origins=report.origins,
      num_tokens=report.num_tokens,
      run=report.num_rounds,
      by_depth=report.num_by_depth,
      by_budget=report.num_by_budget,
      scores=report.scores,
      confidence=report.confidence,
      parents=report.parents,
      num_verified=report.num_verified,
      path=report.path,
      is_stopped=report.is_stopped,
      num_rounds=stats.num_rounds,
      num_drafted=stats.num_drafted,
      num_accepted=stats.num_accepted,
      num_broken=stats.num_broken,
      logprobs=report.logprobs if with_logprobs else {},
      lessons=report.lessons if with_lessons else None,
    )
  )
  if got['dropped']:
    raise RuntimeError('a row was committed without a page to hold it')
  answers = []
  for i, row in enumerate(rows):
    tokens = got['tokens'][i, : got['num_tokens'][i]].tolist()
    has_failed = bool(tokens) and tokens[-1] < 0
    answers.append(
      Answer(
        row=row,
        tokens=tuple(tokens[:-1] if has_failed else tokens),
        origins=tuple(got['origins'][i, : len(tokens)].tolist()),
        is_stopped=bool(got['is_stopped'][i]) and not has_failed,
        has_failed=has_failed,
        num_rounds=int(got['num_rounds'][i]),
        num_drafted=got['num_drafted'][i],
        num_accepted=got['num_accepted'][i],
        num_broken=int(got['num_broken'][i]),
        logprobs={name: x[i] for name, x in got['logprobs'].items()} or None,
      )
    )
  used = Used(
    num_rounds=int(got['run']),
    by_depth=got['by_depth'],
    by_budget=got['by_budget'],
    scores=got['scores'][: len(rows)],
    confidence=got['confidence'][: len(rows)],
    parents=got['parents'][: len(rows)],
    num_verified=got['num_verified'][: len(rows)],
    path=got['path'][: len(rows)],
    lessons=jax.tree.map(lambda leaf: leaf[: len(rows)], got['lessons']),
  )
  return answers, used


def no_costs(sizes: Sequence[int]) -> costs_lib.Costs:
  """Costs for a launch whose plan does not look at them."""
  return costs_lib.make(sizes, [float(size) for size in sizes], 0.0)
