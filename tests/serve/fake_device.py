# SPDX-License-Identifier: MIT
"""A device in plain Python: pages, rows, and a model that reads its pages.

The next token is a hash of all tokens before it, as they are found in the
pages, so a page that was overwritten or given to the wrong row shows in the
answer. A cell also holds the token behind it, as a drafter's row may.

Launches run in order but late: the host has planned one more by then. Two
launches in flight may not touch the same page unless both only read it.
"""

import array
import dataclasses
import zlib

from jspec.serve import plan as plan_lib

ALPHABET = 1000  # Tokens of an answer stay in the thousand of the first token.
END = 61  # A multiple of it ends the answer.


def next_token(tokens):
  """The model: a hash of the text, in the alphabet of its first token."""
  value = zlib.crc32(array.array('q', tokens))
  return tokens[0] // ALPHABET * ALPHABET + 1 + value % (ALPHABET - 1)


def answer(prompt, max_tokens):
  """What an undisturbed request gets, and why it ends."""
  tokens = list(prompt)
  for _ in range(max_tokens):
    tokens.append(next_token(tokens))
    if tokens[-1] % END == 0:
      return tuple(tokens[len(prompt) :]), 'stop'
  return tuple(tokens[len(prompt) :]), 'length'


@dataclasses.dataclass
class Row:
  number: int
  epoch: int
  pages: tuple
  prompt: tuple
  anchor: int
  remaining: int
  length: int


class Device:
  """Runs plans; `accepted(row)` says how many drafts a round accepts."""

  def __init__(self, config, rng, accepted=None):
    self.config, self.rng = config, rng
    self.accepted = accepted or (
      lambda row: int(rng.integers(0, config.max_drafts + 1))
    )
    self.cells = [[None] * config.page_size for _ in range(config.num_pages)]
    self.rows = {}
    self.owned = {}  # (row, epoch): pages, as planned
    self.lengths = {}  # (row, epoch): rows written by launches that ran
    self.flying = []  # (plan, {(row, epoch): pages})

  def launch(self, plan):
    """Takes a plan; it runs later."""
    for entry in plan.admitted:
      self.lengths[entry.row, entry.epoch] = entry.num_cached
    for entry in (*plan.admitted, *plan.decodes):
      self.owned[entry.row, entry.epoch] = entry.pages
    touched = {
      (entry.row, entry.epoch): self.owned[entry.row, entry.epoch]
      for entry in (*plan.chunks, *plan.decodes)
    }
    for _, others in self.flying:
      for key, pages in touched.items():
        for other, taken in others.items():
          if key != other:
            both = set(pages) & set(self.written(other, taken))
            both |= set(self.written(key, pages)) & set(taken)
            assert not both, f'{key} and {other} in flight share {both}'
    self.flying.append((plan, touched))

  def written(self, key, pages):
    """Those of a row's pages that a launch in flight may still write to."""
    return pages[self.lengths[key] // self.config.page_size :]

  def land(self):
    """Runs the oldest launch: its number and results."""
    plan, _ = self.flying.pop(0)
    for row in plan.freed:
      self.rows.pop(row, None)
    for start in plan.admitted:
      assert start.row not in self.rows
      assert start.num_cached <= max(len(start.tokens) - 2, 0)
      row = Row(
        start.row,
        start.epoch,
        start.pages,
        start.tokens,
        start.tokens[-1],
        start.max_tokens,
        start.num_cached,
      )
      self.rows[start.row] = row
      cached = [self.cell(row, i) for i in range(row.length)]
      wanted = zip(row.prompt, row.prompt[1:], strict=False)
      assert cached == list(wanted)[: row.length], 'a cached page is wrong'
    num_prefilled = 0
    for chunk in plan.chunks:
      row = self.rows[chunk.row]
      assert (row.epoch, row.length) == (chunk.epoch, chunk.start)
      assert 0 < len(chunk.tokens) <= chunk.size
      assert chunk.size in self.config.chunk_sizes
      num_prefilled += chunk.size
      behind = (*chunk.tokens[1:], chunk.next_token)
      for token, following in zip(chunk.tokens, behind, strict=True):
        self.write(row, token, following)
      assert chunk.is_last == (row.length == len(row.prompt) - 1)
    assert num_prefilled <= self.config.max_prefill_tokens
    results = [self.decode(d, plan.num_rounds) for d in plan.decodes]
    return plan.launch, results

  def decode(self, decode, num_rounds):
    row = self.rows[decode.row]
    assert row.epoch == decode.epoch
    assert decode.pages[: len(row.pages)] == row.pages
    assert len(set(decode.pages)) == len(decode.pages)
    row.pages = decode.pages
    tokens = [self.cell(row, i)[0] for i in range(row.length)] + [row.anchor]
    assert row.length >= len(row.prompt) - 1, 'decoded before its prompt was in'
    begin, is_stopped = len(tokens), False
    for _ in range(num_rounds):
      for _ in range(self.accepted(decode.row) + 1):
        if not row.remaining:
          break
        following = next_token(tokens)
        self.write(row, tokens[-1], following)
        tokens.append(following)
        row.remaining -= 1
        if following % END == 0:
          row.remaining, is_stopped = 0, True
    row.anchor = tokens[-1]
    assert row.length <= decode.max_rows
    return plan_lib.Result(
      row=decode.row,
      epoch=decode.epoch,
      tokens=tuple(tokens[begin:]),
      is_stopped=is_stopped,
    )

  def cell(self, row, position):
    page, offset = divmod(position, self.config.page_size)
    return self.cells[row.pages[page]][offset]

  def write(self, row, token, following):
    page, offset = divmod(row.length, self.config.page_size)
    assert page < len(row.pages), 'a row has no page to write to'
    self.cells[row.pages[page]][offset] = token, following
    row.length += 1
    self.lengths[row.number, row.epoch] = row.length


@dataclasses.dataclass
class Answer:
  tokens: tuple = ()
  finish_reason: str | None = None


class Server:
  """The engine's loop, `num_in_flight` launches behind."""

  def __init__(self, scheduler, device, num_in_flight=1):
    self.scheduler, self.device = scheduler, device
    self.num_in_flight = num_in_flight
    self.answers, self.requests, self.plans = {}, {}, []

  def submit(self, request):
    progress = self.scheduler.submit(request)
    self.answers[request.id] = Answer()
    self.requests[request.id] = progress
    return progress

  def step(self):
    """Plans a launch and observes one that is due."""
    plan = self.scheduler.plan()
    self.scheduler.check()
    self.plans.append(plan)
    self.device.launch(plan)
    while len(self.device.flying) > self.num_in_flight:
      self.observe()

  def observe(self):
    for output in self.scheduler.observe(*self.device.land()):
      answer = self.answers[output.request_id]
      assert answer.finish_reason is None
      answer.tokens += output.tokens
      answer.finish_reason = output.finish_reason
    self.scheduler.check()

  def drain(self, most=10_000):
    """Until nobody waits or runs and every launch is back; how many steps."""
    steps = 0
    while self.scheduler.num_waiting or self.scheduler.num_running:
      self.step()
      steps += 1
      assert steps <= most, 'the requests do not finish'
    while self.device.flying:
      self.observe()
    return steps

  def check_answers(self, cancelled=()):
    """Every request got its own tokens; a cancelled one, some of them."""
    for name, got in self.answers.items():
      progress = self.requests[name]
      expected, reason = answer(progress.request.prompt, progress.max_tokens)
      if name in cancelled:
        assert got.tokens == expected[: len(got.tokens)], name
      else:
        assert (got.tokens, got.finish_reason) == (expected, reason), name

  def check_balance(self):
    """All pages are free or only cached."""
    pool = self.scheduler.ledger.pool
    assert pool.num_free + pool.num_idle == pool.num_pages
    assert self.scheduler.num_in_flight == 0
    self.scheduler.check()
