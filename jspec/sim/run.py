# SPDX-License-Identifier: MIT
"""Rounds of a batch on a machine, under one contender.

A round, as in the engine: rows that are free take the next request that has
arrived and pay for its prompt; every row proposes the whole block; the policy
counts; each row commits what is accepted of its count, and the bonus; the clock
advances by proposing and by the budget that holds all nodes.

  clock += draft_s + staircase(active rows + sum of counts)
  clock += plain_s                       in a round that does not propose
  clock += other_s                       in any

Everyone waits while a prompt is read, there is no host time, and memory for the
context never runs out. Drafts are chains that are a function of the text, so
any policy is lossless with them. Only requests of this run are counted.
"""

import dataclasses

import numpy as np

from jspec import errors
from jspec.depth import guard, labels, outlook
from jspec.sim import acceptance, contender, costs, traces

# Rows are padded to one of these, so that few programs are compiled.
ROW_BUCKETS = (8, 64, 256, 1024)
_LEAST = 1e-30  # A survival of 0 would say that there is no draft.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a run measured; None where there was nothing to measure.

  Attributes:
    policy: its name.
    seconds: simulated.
    num_tokens: committed, the first tokens of answers included.
    num_rounds: of the batch.
    num_finished: requests.
    tokens_per_round: committed tokens of a row in a round, bonus included.
    nodes_per_round: of the batch, anchors included.
    depths: share of (row, round) by number of drafts verified, from 0.
    depth_0_share: share of rounds that verify no draft.
    tpot_p50_s: seconds per output token of a request behind its first, median
      over the finished ones.
    tpot_p99_s: the 99th percentile of the same.
    ttft_p99_s: from arrival to the first token, 99th percentile.
    bucket_rows: the largest bucket of the machine that was used.
  """

  policy: str
  seconds: float
  num_tokens: int
  num_rounds: int
  num_finished: int
  tokens_per_round: float | None
  nodes_per_round: float | None
  depths: list[float]
  depth_0_share: float | None
  tpot_p50_s: float | None
  tpot_p99_s: float | None
  ttft_p99_s: float | None
  bucket_rows: int

  @property
  def tokens_per_s(self) -> float:
    return self.num_tokens / self.seconds


def simulate(
  who: contender.Contender,
  requests: traces.Requests,
  tokens: acceptance.Tokens,
  machine: costs.Machine,
  *,
  max_rows: int,
  ratios: tuple[float, ...] = (),
) -> Result:
  """Serves all requests, at most `max_rows` at a time.

  Args:
    who: decides about the rounds.
    requests: N of them.
    tokens: their answers, `draw`n with at least the longest output and a block
      of tokens.
    machine: what a round takes.
    max_rows: concurrency.
    ratios: budgets as shares of the whole draft (`Machine.staircase`).

  Raises:
    UserError: more rows than the machine was measured with, plain rounds on one
      that has no time of them, or a run that takes no time.
  """
  machine.bucket(max_rows)
  if who.is_plain and not machine.has_plain:
    raise errors.UserError(
      f'{machine.name} has no time of plain decoding; leave out plain and'
      ' static,depth=0, or measure one node a row'
    )
  batch = _Batch(requests, machine.prefill_s, max_rows)
  rounds = _Rounds(who, tokens, machine, ratios)
  while batch.admit():
    batch.advance(*rounds.next(batch))
  if not batch.clock:
    raise errors.UserError(
      'no time passed: answers of one token and prompts that cost nothing; give'
      ' longer answers'
    )
  return _result(who, batch, rounds, machine)


class _Batch:
  """Rows, the queue and the clock."""

  def __init__(self, requests, prefill_s, max_rows):
    self.requests = requests
    self.prefill_s = prefill_s
    self.max_rows = max_rows
    self.num_padded = _padded(max_rows)
    self.request = np.full(self.num_padded, -1)
    self.done = np.zeros(self.num_padded, int)
    self.clock = 0.0
    self.queue = 0  # The next request.
    number = len(requests.arrival_s)
    self.arrival_s = np.array(requests.arrival_s, float)
    self.first_s = np.full(number, np.nan)
    self.end_s = np.full(number, np.nan)
    self.num_tokens = 0

  @property
  def is_active(self):
    return self.request >= 0

  def limits(self):
    """Drafts that each row can use: the bonus is a token too."""
    left = self.requests.output_len[self.request] - self.done
    return np.where(self.is_active, left - 1, 0)

  def admit(self):
    """Fills free rows; False when the run is over."""
    requests = self.requests
    number = len(requests.arrival_s)
    while self.queue < number:
      free = np.flatnonzero(self.request[: self.max_rows] < 0)
      if not len(free):
        return True
      if requests.arrival_s[self.queue] > self.clock:
        if len(free) < self.max_rows:
          return True
        self.clock = float(requests.arrival_s[self.queue])
      self._start(free[0])
    if requests.is_closed:
      return bool(np.all(self.is_active[: self.max_rows]))
    return bool(np.any(self.is_active))

  def advance(self, seconds, committed):
    self.clock += seconds
    self.num_tokens += int(committed.sum())
    self.done += committed
    is_active = self.is_active
    output_len = self.requests.output_len[self.request]
    for row in np.flatnonzero(is_active & (self.done >= output_len)):
      self.end_s[self.request[row]] = self.clock
      self.request[row] = -1

  def _start(self, row):
    request = self.queue
    self.queue += 1
    if self.requests.is_closed:
      self.arrival_s[request] = self.clock  # Sent when the row became free.
    self.clock += self.prefill_s * float(self.requests.prompt_len[request])
    self.first_s[request] = self.clock
    self.num_tokens += 1
    if self.requests.output_len[request] == 1:
      self.end_s[request] = self.clock
    else:
      self.request[row], self.done[row] = request, 1


class _Rounds:
  """Decides, accepts and counts."""

  def __init__(self, who, tokens, machine, ratios):
    self.who, self.tokens, self.machine = who, tokens, machine
    self.num_drafts = machine.num_drafts
    self.tables = {}
    for bucket in machine.buckets:
      table = machine.staircase(bucket, ratios)
      if who.is_oracle:  # It knows what else a round takes, too.
        draft_s = table.draft_s + bucket.other_s
        table = dataclasses.replace(table, draft_s=draft_s)
      self.tables[bucket.rows] = (
        table,
        np.asarray(table.nodes),
        np.asarray(table.verify_s, float) + bucket.draft_s,
      )
    self.guard = None
    if who.is_guarded:
      plain = (guard.PLAIN,) if machine.has_plain else ()
      forms = (guard.ADAPTIVE, guard.FULL, *plain)
      self.guard = guard.Guard(self.num_drafts, forms=forms)
    self.depths = np.zeros(self.num_drafts + 1, int)
    self.num_rounds = self.num_nodes = self.num_empty = self.num_committed = 0
    self.bucket_rows = 0

  def next(self, batch):
    """Seconds and tokens of each row."""
    is_active = batch.is_active
    rows = int(is_active.sum())
    bucket = self.machine.bucket(rows)
    form = guard.ADAPTIVE
    if self.guard:
      turn = self.guard.choose(rows, 1, self._prices(bucket))
      form = turn.form
    elif self.who.is_plain:
      form = guard.PLAIN
    counts, accepted = np.zeros((2, batch.num_padded), int)
    if form != guard.PLAIN:
      scores, is_accepted = self._propose(batch)
      accepted = is_accepted.sum(axis=1)
      counts = self._plan(form, scores, is_accepted, batch, bucket)
    seconds = self._seconds(bucket, rows + int(counts.sum()))
    if form == guard.PLAIN or self._is_better_plain(
      bucket, seconds, np.minimum(counts, accepted).sum(), rows
    ):
      counts, seconds = np.zeros_like(counts), bucket.plain_s
    price_s = seconds
    seconds += bucket.other_s
    committed = np.where(is_active, np.minimum(counts, accepted) + 1, 0)
    if self.guard:
      seen = labels.of_chain(counts, accepted, self.num_drafts)
      total = int(committed.sum())
      self.guard.record(turn, rows, seconds, total, price_s, seen)
    self.num_rounds += 1
    self.num_nodes += rows + int(counts.sum())
    self.num_empty += not counts.any()
    self.num_committed += int(committed.sum())
    self.depths += np.bincount(counts[is_active], minlength=self.num_drafts + 1)
    self.bucket_rows = max(self.bucket_rows, bucket.rows)
    return seconds, committed

  def _propose(self, batch):
    """Survival as the drafter sees it, and which drafts will be accepted."""
    step = np.arange(self.num_drafts)
    request = batch.request[:, None]
    token = batch.done[:, None] + step
    decay = self.tokens.decay[batch.request][:, None] ** step
    is_accepted = self.tokens.luck[request, token] < (
      self.tokens.easiness[request, token] * decay
    )
    seen = np.cumprod(self.tokens.confidence[request, token] * decay, axis=1)
    return np.maximum(seen, _LEAST), np.cumprod(is_accepted, axis=1)

  def _plan(self, form, scores, is_accepted, batch, bucket):
    limits = np.minimum(batch.limits(), self.num_drafts).astype(np.int32)
    if form == guard.FULL:
      return limits
    table = self.tables[bucket.rows][0]
    if self.who.is_oracle:
      plan, seen = contender.hindsight(), is_accepted.astype(np.int32)
    else:
      plan = contender.planner(self.who.policy)
      seen = scores.astype(np.float32)
    return np.asarray(plan(seen, batch.is_active, limits, table))

  def _prices(self, bucket):
    table, budgets, _ = self.tables[bucket.rows]
    return outlook.Prices(
      plain_s=bucket.plain_s,
      draft_s=bucket.draft_s,
      nodes=budgets.tolist(),
      verify_s=np.asarray(table.verify_s, float).tolist(),
    )

  def _seconds(self, bucket, nodes):
    _, budgets, seconds = self.tables[bucket.rows]
    return float(seconds[np.searchsorted(budgets, nodes)])

  def _is_better_plain(self, bucket, seconds, gained, rows):
    """Whether the oracle had better not proposed."""
    if not self.who.is_oracle or not self.machine.has_plain:
      return False
    plain_s = bucket.plain_s + bucket.other_s
    return rows / plain_s > (rows + gained) / (seconds + bucket.other_s)


def _padded(rows):
  for padded in ROW_BUCKETS:
    if rows <= padded:
      return padded
  raise errors.UserError(
    f'{rows} rows at a time: at most {ROW_BUCKETS[-1]} are simulated'
  )


def _result(who, batch, rounds, machine):
  requests = batch.requests
  ended = ~np.isnan(batch.end_s)
  started = ~np.isnan(batch.first_s)
  later = np.maximum(requests.output_len - 1, 1)
  tpot_s = ((batch.end_s - batch.first_s) / later)[
    ended & (requests.output_len > 1)
  ]
  ttft_s = (batch.first_s - batch.arrival_s)[started]
  row_rounds = int(rounds.depths.sum())
  return Result(
    policy=who.name,
    seconds=batch.clock,
    num_tokens=batch.num_tokens,
    num_rounds=rounds.num_rounds,
    num_finished=int(ended.sum()),
    tokens_per_round=_share(rounds.num_committed, row_rounds),
    nodes_per_round=_share(rounds.num_nodes, rounds.num_rounds),
    depths=(rounds.depths / max(row_rounds, 1)).tolist(),
    depth_0_share=_share(rounds.num_empty, rounds.num_rounds),
    tpot_p50_s=_percentile(tpot_s, 50),
    tpot_p99_s=_percentile(tpot_s, 99),
    ttft_p99_s=_percentile(ttft_s, 99),
    bucket_rows=rounds.bucket_rows,
  )


def _share(part, whole):
  return part / whole if whole else None


def _percentile(values, percent):
  return float(np.percentile(values, percent)) if len(values) else None
