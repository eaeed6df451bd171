# SPDX-License-Identifier: MIT
"""An engine that decodes nothing: its answers follow from the prompt.

It has what the server uses of `serve.engine.Engine`. An answer is what `says`
makes of the prompt and what is asked; a few tokens of it come with each step,
to as many rows as there are. Of the tokens of a step some are drafts that were
accepted, one is the bonus, and the others came plainly.
"""

import dataclasses
import random
import threading
import time
import types

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jspec import errors
from jspec.serve import asks, pool_use
from jspec.text import chat, tokenizer

SPECIAL = ('<|im_start|>', '<|im_end|>', '<tool_call>', '</tool_call>')
VOCAB_SIZE = 256 + len(SPECIAL)
POLICIES = ('dcut', 'static')
END = 257
CONTEXT_LEN = 512
TEMPLATE = (
  '{% if tools %}<|im_start|>system\n{{ tools | tojson }}<tool_call>'
  '</tool_call><|im_end|>\n{% endif %}'
  "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
  '<|im_end|>\n{% endfor %}'
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)


def vocabulary() -> tokenizer.Tokenizer:
  """One token for each byte, and a few special ones."""
  table = bytes_to_chars()
  backend = tokenizers.Tokenizer(
    models.BPE({table[byte]: byte for byte in range(256)}, [])
  )
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(
    [tokenizers.AddedToken(t, normalized=False) for t in SPECIAL]
  )
  return tokenizer.Tokenizer(backend, None, (END,))


def bytes_to_chars():
  alphabet = set(pre_tokenizers.ByteLevel.alphabet())
  table, others = {}, 0
  for byte in range(256):
    if chr(byte) in alphabet:
      table[byte] = chr(byte)
    else:
      table[byte] = chr(256 + others)
      others += 1
  return table


def target(template: str | None = TEMPLATE):
  """What `loading.load_target` returns, without a model."""
  found = vocabulary()
  return types.SimpleNamespace(
    name='fake',
    tokenizer=found,
    template=template and chat.ChatTemplate(template, None, SPECIAL[1]),
    stop_ids=found.eos_ids,
  )


def chatty(prompt, ask):
  """A text of its own for every prompt, seed and temperature; it ends."""
  params = ask.params
  seed = params.seed if params.temperature else None
  rng = random.Random(repr((tuple(prompt), seed, params.temperature)))
  return [rng.randrange(97, 123) for _ in range(rng.randrange(5, 40))] + [END]


def saying(text):
  """Answers everything with one text."""
  return lambda prompt, ask: [*text.encode(), END]


def calling(*texts):
  """Answers everything with texts in which marks of calls are tokens."""
  ids = vocabulary().encode(''.join(texts))
  return lambda prompt, ask: [*ids, END]


@dataclasses.dataclass
class Row:
  """A request and how far it is."""

  name: str
  prompt: tuple
  ask: asks.Ask
  tokens: list
  num_told: int = 0
  admitted_s: float | None = None
  was_read: bool = False


class Engine:
  """Runs rows a few tokens at a time.

  Attributes:
    per_step: tokens of a row in a step.
    pause_s: seconds a step takes.
    broken: raised by the next step.
    gate: steps wait while it is not set.
  """

  def __init__(self, says=chatty, *, max_rows=4, per_step=3, pause_s=0.0):
    self.says, self.per_step, self.pause_s = says, per_step, pause_s
    self.broken = None
    self.gate = threading.Event()
    self.gate.set()
    self.waiting, self.running = [], []
    self.num_steps = 0
    self.asked = []
    self.sizes = types.SimpleNamespace(
      row_buckets=(1, max_rows),
      scheduler=types.SimpleNamespace(
        max_rows=max_rows, limit=CONTEXT_LEN, max_drafts=2
      ),
    )
    self.metrics = types.SimpleNamespace(
      num_tokens=0,
      num_rounds=0,
      num_drafted=np.zeros((2,), np.int64),
      num_accepted=np.zeros((2,), np.int64),
      num_by_depth=np.zeros((3,), np.int64),
      num_launches={},
      num_broken=0,
      num_failed=0,
      host_s=0.0,
      wait_s=0.0,
      compile_s=0.0,
      warm_up_s=0.0,
      drafter_problem='',
      by_drafter={},
      pool=pool_use.PoolUse(
        num_pages=16,
        num_free=8,
        num_idle=4,
        num_queried_tokens=50,
        num_hit_tokens=20,
        num_preemptions=3,
      ),
    )
    self.on_launch = None
    self.version, self.swapped = 0, []

  @property
  def has_work(self):
    return bool(self.waiting or self.running)

  def submit(self, prompt, ask, *, request_id):
    asks.check(request_id, prompt, ask, VOCAB_SIZE, POLICIES)
    if ask.drafter not in (None, 'none', 'ngram', 'suffix'):
      raise errors.UserError(f'request {request_id!r}: drafter {ask.drafter!r}')
    most = min(ask.params.max_tokens, CONTEXT_LEN - len(prompt))
    tokens = self.says(prompt, ask)[:most]
    self.asked.append(ask)
    self.waiting.append(Row(request_id, tuple(prompt), ask, tokens))
    return request_id

  def forget_prefixes(self):
    pass

  def swap(self, drafter, name=None):
    if drafter == 'other':
      raise errors.UserError('the new drafter has another method')
    self.swapped.append((drafter, name))
    self.version += 1
    return self.version

  def cancel(self, request_id):
    before = len(self.waiting) + len(self.running)
    self.waiting = [row for row in self.waiting if row.name != request_id]
    self.running = [row for row in self.running if row.name != request_id]
    return len(self.waiting) + len(self.running) < before

  def step(self):
    self.gate.wait()
    if self.pause_s:
      time.sleep(self.pause_s)
    if self.broken is not None:
      raise self.broken
    self.num_steps += 1
    free = self.sizes.scheduler.max_rows - len(self.running)
    self.running += self.waiting[:free]
    del self.waiting[:free]
    found = []
    for row in self.running:
      row.admitted_s = row.admitted_s or time.monotonic()
    for row in list(self.running):
      found += self._advance(row)
    return found

  def _advance(self, row):
    ask = row.ask
    if ask.num_prompt_logprobs is not None and not row.was_read:
      row.was_read = True
      yield asks.Event(
        request_id=row.name,
        prompt_logprobs=tuple(
          said(token, ask.num_prompt_logprobs) for token in row.prompt[1:]
        ),
      )
      return
    tokens = tuple(row.tokens[row.num_told : row.num_told + self.per_step])
    row.num_told += len(tokens)
    reason = None
    for place, token in enumerate(tokens):
      if token in ask.params.stop_ids:
        tokens, reason = tokens[: place + 1], 'stop'
        break
    if reason is None and row.num_told >= len(row.tokens):
      reason = 'length'
    if reason is not None:
      self.running.remove(row)
    num_drafts = min(ask.most_drafts, len(tokens) - 1)
    origins = (asks.DRAFT,) * num_drafts + ((asks.BONUS,) if num_drafts else ())
    origins += (asks.PLAIN,) * (len(tokens) - len(origins))
    self.metrics.num_tokens += len(tokens)
    self.metrics.num_rounds += 1
    self.metrics.num_by_depth[min(num_drafts, 2)] += 1
    self.metrics.num_drafted[:num_drafts] += 1
    self.metrics.num_accepted[:num_drafts] += 1
    yield asks.Event(
      request_id=row.name,
      tokens=tokens,
      origins=origins,
      num_rounds=1,
      num_drafted=num_drafts,
      # As many of the first answer of a prompt as of the others.
      num_cached=len(row.prompt) // 2,
      admitted_s=row.admitted_s,
      finish_reason=reason,
      logprobs=(
        None
        if ask.num_logprobs is None
        else tuple(said(token, ask.num_logprobs) for token in tokens)
      ),
    )


def said(token, num_top):
  """Log-probabilities that follow from the token."""
  top = tuple((token - i, -0.25 * (i + 1)) for i in range(num_top) if token > i)
  return asks.TokenLogprobs(logprob=-0.25, rank=1, top=top)
