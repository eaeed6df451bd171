# SPDX-License-Identifier: MIT
"""Hundreds of requests that come, go and get in each other's way.

Requests arrive at random, share the beginnings of their prompts, reuse ids,
take rows from one another in a pool that is too small, are cancelled, and the
way of drafting changes between launches. Every answer is that of decoding the
request alone, nothing compiles, and no page is lost.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import generate, sampling
from jspec.decode import options as options_lib
from jspec.drafters import ngram
from jspec.serve import asks
from jspec.serve import engine as engine_lib
from jspec.serve import offline as offline_lib
from jspec.serve import settings as settings_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked
from tests.serve import compiles

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimised')]

MAX_LEN = 64
NUM_KINDS = 48  # distinct requests
SETTINGS = settings_lib.Settings(
  max_rows=6,
  max_len=MAX_LEN,
  page_size=8,
  num_pages=20,
  num_rounds=2,
  row_buckets=(6,),
  num_budgets=3,
  chunk_sizes=(4, 16),
  max_prefill_tokens=24,
  policies=('dcut', 'static,depth=2'),
)
SAMPLING = (
  {},
  {'temperature': 0.8},
  {'temperature': 1.3, 'top_k': 5},
  {'temperature': 0.7, 'top_p': 0.8},
  {'temperature': 1.0, 'min_p': 0.05},
)
OPTIONS = (
  {'repetition_penalty': 1.3},
  {'presence_penalty': 1.5, 'frequency_penalty': -0.7},
  {'logit_bias': ((3, 4.0), (9, -100.0)), 'min_tokens': 3},
  {'frequency_penalty': 1.1, 'bad_words': ((5,), (11, 12))},
)
DRAFTERS = {
  'known': lambda target: drafters.Known(target, 4, num_right=3),
  'dflash': toy.drafter,
  'ngram': lambda target: ngram.NGram(3),
}


@dataclasses.dataclass(frozen=True)
class Kind:
  """A request, and what it must get."""

  prompt: tuple[int, ...]
  ask: asks.Ask
  tokens: tuple[int, ...]
  logprobs: np.ndarray  # of the tokens behind the prompt's first


def make(target, drafter, **changes):
  with unchecked.constructors():
    return engine_lib.Engine(
      target, drafter, dataclasses.replace(SETTINGS, **changes)
    )


def wanted():
  """Prompts and what is asked; many prompts begin alike."""
  rng = np.random.default_rng(3)
  stems = [rng.integers(0, 63, size).tolist() for size in (17, 24, 33)]
  for i in range(NUM_KINDS):
    tail = rng.integers(0, 63, rng.integers(1, 9)).tolist()
    stem = stems[i % 4] if i % 4 < 3 else []
    options = OPTIONS[i // 5 % 4] if i % 5 == 4 else {}
    yield (
      tuple(stem + tail),
      asks.Ask(
        params=sampling.SamplingParams(
          seed=i,
          max_tokens=int(rng.integers(3, 28)),
          stop_ids=(7, 8) if i % 3 else (),
          **SAMPLING[i // 2 % 5],
        ),
        options=options_lib.LogitOptions(**options),
        num_logprobs=2 if i % 6 == 1 else None,
        num_prompt_logprobs=1 if i % 8 == 3 else None,
      ),
    )


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.fixture(scope='module')
def kinds(target):
  """Every request with its answer, decoded alone and without drafts."""
  found = list(wanted())
  with unchecked.constructors(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(target, None, max_len=MAX_LEN, num_rows=8)
  free = [i for i in range(NUM_KINDS) if not has_options(found[i][1])]
  outputs = decoder.generate(
    [found[i][0] for i in free], [found[i][1].params for i in free]
  )
  answers = dict(zip(free, (out.tokens for out in outputs), strict=True))
  plain = make(target, None, max_rows=1, row_buckets=(1,), chunk_sizes=(16,))
  for i in set(range(NUM_KINDS)) - set(free):
    (answers[i],) = offline_lib.generate(plain, [found[i][0]], found[i][1])
  texts = np.zeros((NUM_KINDS, MAX_LEN), np.int32)
  for i, (prompt, _) in enumerate(found):
    text = [*prompt, *answers[i]]
    texts[i, : len(text)] = text
  logprobs = np.asarray(chosen(target, texts))
  kinds = [
    Kind(prompt, ask, tuple(answers[i]), logprobs[i])
    for i, (prompt, ask) in enumerate(found)
  ]
  assert 5 < sum(kind.tokens[-1] in (7, 8) for kind in kinds) < NUM_KINDS
  return kinds


@jax.jit
def chosen(target, tokens):
  """Log-probabilities of all tokens but the first of each row."""
  at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, _ = target.encode(tokens, at, jnp.ones_like(tokens), ())
  logprobs = jax.nn.log_softmax(target.logits(hidden[:, :-1]))
  return jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[:, :, 0]


def has_options(ask):
  return ask.options != options_lib.LogitOptions()


@dataclasses.dataclass
class Served:
  """What one request got so far."""

  kind: Kind
  tokens: list = dataclasses.field(default_factory=list)
  logprobs: list = dataclasses.field(default_factory=list)
  prompt_logprobs: list = dataclasses.field(default_factory=list)
  reason: str | None = None


class Traffic:
  """Drives an engine at random until so many requests are over."""

  def __init__(self, engine, kinds, seed):
    self.engine, self.kinds = engine, kinds
    self.rng = np.random.default_rng(seed)
    self.alive, self.finished, self.cancelled = {}, [], []
    self.num_submitted = 0
    self.num_events = 0

  def run(self, num_requests):
    visits = 0
    while self.num_submitted < num_requests or self.engine.has_work:
      visits += 1
      assert visits < 40 * num_requests, 'requests do not come to an end'
      for _ in range(self.rng.poisson(0.8)):
        if self.num_submitted < num_requests and len(self.alive) < 14:
          self.submit()
      if self.alive and self.rng.random() < 0.07:
        self.cancel()
      if self.rng.random() < 0.1:
        self.engine.policy = int(self.rng.integers(2))
      if self.rng.random() < 0.1:
        forms = (None, 'plain', 'adaptive', 'full')
        self.engine.forms.pinned = forms[self.rng.integers(4)]
      for event in self.engine.step():
        self.take(event)
      if visits % 16 == 0:
        self.engine._scheduler.check()

  def submit(self):
    # Ids come again as soon as nobody alive has them, cancelled ones at once.
    free = [i for i in range(40) if i not in self.alive]
    request_id = int(self.rng.choice(free[:3]))
    kind = self.kinds[self.rng.integers(len(self.kinds))]
    self.engine.submit(
      kind.prompt,
      kind.ask,
      request_id=request_id,
      priority=int(self.rng.integers(3)),
    )
    self.alive[request_id] = Served(kind)
    self.num_submitted += 1

  def cancel(self):
    request_id = int(self.rng.choice(list(self.alive)))
    assert self.engine.cancel(request_id)
    assert not self.engine.cancel(request_id)
    self.cancelled.append(self.alive.pop(request_id))
    if self.rng.random() < 0.5 and len(self.alive) < 14:
      self.submit()

  def take(self, event):
    served = self.alive[event.request_id]  # Nothing comes for others.
    self.num_events += len(event.tokens)
    served.tokens += event.tokens
    served.logprobs += event.logprobs or ()
    served.prompt_logprobs += event.prompt_logprobs or ()
    if event.finish_reason is not None:
      served.reason = event.finish_reason
      self.finished.append(self.alive.pop(event.request_id))

  def check(self):
    """All answers are what they must be."""
    for served in self.finished:
      self._check_one(served, len(served.kind.tokens))
      stops = served.kind.ask.params.stop_ids
      is_stopped = served.tokens[-1] in stops
      assert served.reason == ('stop' if is_stopped else 'length')
      wants = served.kind.ask.num_prompt_logprobs is not None
      num_read = len(served.kind.prompt) - 1 if wants else 0
      assert len(served.prompt_logprobs) == num_read
    for served in self.cancelled:
      self._check_one(served, len(served.tokens))

  def _check_one(self, served, num_tokens):
    kind = served.kind
    assert tuple(served.tokens) == kind.tokens[:num_tokens]
    num_prompt = len(kind.prompt) - 1
    if kind.ask.num_logprobs is None:
      assert not served.logprobs
    else:
      assert len(served.logprobs) == num_tokens
      np.testing.assert_allclose(
        [entry.logprob for entry in served.logprobs],
        kind.logprobs[num_prompt:][:num_tokens],
        atol=3e-5,
      )
    np.testing.assert_allclose(
      [entry.logprob for entry in served.prompt_logprobs],
      kind.logprobs[: len(served.prompt_logprobs)],
      atol=3e-5,
    )


@pytest.mark.parametrize(
  ('name', 'num_requests'), [('known', 500), ('dflash', 200), ('ngram', 200)]
)
def test_answers_survive_whatever_happens_around(
  target, kinds, name, num_requests
):
  buckets = (2, 6) if name == 'known' else (6,)
  engine = make(target, DRAFTERS[name](target), row_buckets=buckets)
  traffic = Traffic(engine, kinds, seed=len(name))
  with compiles.counted() as compiled:
    traffic.run(num_requests)
  traffic.check()
  assert compiled == []
  assert len(traffic.finished) > 0.6 * num_requests
  assert len(traffic.cancelled) > 0.05 * num_requests
  check_end(engine, traffic)
  assert engine._scheduler.num_preemptions > 10
  assert engine._scheduler.num_dropped > 10
  assert engine._scheduler.ledger.trie.num_hit_tokens > 500
  assert set(engine.metrics.num_launches) == {'plain', 'adaptive', 'full'}


def check_end(engine, traffic):
  """Nothing is alive, no page is lost and the counts are right."""
  scheduler = engine._scheduler
  scheduler.check()
  assert not traffic.alive and not engine._alive
  assert scheduler.num_running == scheduler.num_waiting == 0
  pool = scheduler.ledger.pool
  assert pool.num_free + pool.num_idle == engine.sizes.scheduler.num_pages
  assert engine.programs.num_missing == 0
  metrics = engine.metrics
  assert metrics.num_tokens == traffic.num_events
  assert metrics.num_broken == metrics.num_failed == 0
  # Each round of a row gives the accepted drafts and one more.
  most = metrics.num_accepted.sum() + metrics.num_rounds
  assert most - traffic.num_events <= len(traffic.finished)
  assert np.all(metrics.num_accepted <= metrics.num_drafted)
  assert np.all(np.diff(metrics.num_accepted) <= 0)


def test_a_wrong_answer_would_be_noticed(target, kinds):
  """The comparison can fail: one token, one logprob, one compilation."""
  kind = next(kind for kind in kinds if kind.ask.num_logprobs is not None)
  entries = [
    asks.TokenLogprobs(logprob=float(value), rank=1, top=())
    for value in kind.logprobs[len(kind.prompt) - 1 :][: len(kind.tokens)]
  ]
  traffic = Traffic(None, kinds, seed=0)
  reason = 'stop' if kind.tokens[-1] in kind.ask.params.stop_ids else 'length'
  traffic.finished = [Served(kind, list(kind.tokens), entries, [], reason)]
  traffic.check()
  for change in (
    {'tokens': [*kind.tokens[:-1], 63]},
    {'tokens': list(kind.tokens[:-1])},
    {'logprobs': entries[1:]},
    {
      'logprobs': [*entries[:-1], dataclasses.replace(entries[-1], logprob=1.0)]
    },
    {'prompt_logprobs': entries[:1]},
  ):
    traffic.finished = [
      dataclasses.replace(
        Served(kind, list(kind.tokens), entries, [], reason), **change
      )
    ]
    with pytest.raises(AssertionError):
      traffic.check()
  with compiles.counted() as compiled:
    jnp.asarray(np.zeros((3, 1, 7), np.int32))
  assert compiled


def test_nothing_compiles_when_costs_were_saved(target):
  """Nothing warms up then: the first request is the first use of all."""
  measured = make(target, DRAFTERS['ngram'](target))
  with unchecked.constructors():
    engine = engine_lib.Engine(
      target,
      DRAFTERS['ngram'](target),
      SETTINGS,
      costs=measured.costs,
    )
  ask = asks.Ask(
    params=sampling.SamplingParams(max_tokens=9, temperature=1.0),
    options=options_lib.LogitOptions(logit_bias=((3, 1.0),)),
    num_logprobs=1,
    num_prompt_logprobs=1,
  )
  given = [toy.prompts(1, n, seed=n)[0].tolist() for n in (1, 3, 20, 41)]
  with compiles.counted() as compiled:
    answers = offline_lib.generate(engine, given, ask)
  assert [len(answer) for answer in answers] == [9] * 4
  assert compiled == []
