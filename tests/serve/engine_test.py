# SPDX-License-Identifier: MIT
"""The engine gives the tokens of offline decoding, whatever happens around."""

import dataclasses
import time

import jax.numpy as jnp
import pytest

from jspec import errors
from jspec.decode import generate, sampling
from jspec.serve import asks
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked
from tests.serve import small


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN)


@pytest.fixture(scope='module')
def offline(target):
  with unchecked.constructors(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    return generate.Decoder(
      target, None, max_len=small.MAX_LEN, num_rows=1, num_rounds=4, page_size=8
    )


@pytest.fixture(scope='module')
def served(target):
  """An engine whose drafter is right most of the time, for three tokens."""
  return small.make(target, drafters.Known(target, 4, num_right=3))


def answer(engine, wanted=None):
  wanted = small.requests() if wanted is None else wanted
  return offline_lib.generate(
    engine, small.prompts(), [asks.Ask(params=params) for params in wanted]
  )


def want(offline):
  return [
    out.tokens for out in offline.generate(small.prompts(), small.requests())
  ]


def test_mixed_requests_give_the_tokens_of_offline_decoding(served, offline):
  got = answer(served)
  assert got == want(offline)
  assert served.metrics.tokens_per_round > 1.2
  assert served.programs.num_missing == 0


@pytest.mark.slow
def test_programs_of_several_sizes_give_the_same_tokens(target, offline):
  engine = small.make(
    target,
    drafters.Known(target, 4, num_right=3),
    row_buckets=(1, 2, 4),
    num_budgets=5,
    chunk_sizes=(4, 16),
    policies=('first_drop', 'dcut'),
  )
  assert answer(engine) == want(offline)


def test_neighbours_and_arrival_change_no_token(served, offline):
  """Requests that come one by one, in another order, some in between."""
  answers = {}
  order = [5, 0, 7, 3, 1, 6, 2, 4]
  waiting = list(order)
  for visit in range(200):
    if waiting and visit % 2 == 0:
      i = waiting.pop(0)
      served.submit(
        small.prompts()[i],
        asks.Ask(params=small.requests()[i]),
        request_id=('late', i),
      )
      answers['late', i] = []
    for output in served.step():
      answers[output.request_id] += output.tokens
    if not waiting and not served.has_work:
      break
  assert not served.has_work
  assert [answers['late', i] for i in range(len(order))] == want(offline)


@pytest.mark.slow
def test_a_small_pool_preempts_and_resumes_to_the_same_tokens(target, offline):
  engine = small.make(
    target, drafters.Known(target, 4, num_right=3), num_pages=9
  )
  long = [
    sampling.SamplingParams(seed=i, max_tokens=24, temperature=0.7 * (i % 2))
    for i in range(len(small.LENGTHS))
  ]
  # Of each as much as fits: the pool holds 72 tokens, some prompts are long.
  got = answer(engine, long)
  assert got == [out.tokens for out in offline.generate(small.prompts(), long)]
  assert engine._scheduler.num_preemptions > 0
  engine._scheduler.check()


@pytest.mark.slow
def test_a_prompt_that_was_seen_is_not_read_again(target, offline):
  engine = small.make(target, toy.drafter(target), num_pages=24)
  prompt = toy.prompts(1, 41, seed=3)[0].tolist()
  request = sampling.SamplingParams(max_tokens=12)
  cold = offline_lib.generate(engine, [prompt], request)
  warm = offline_lib.generate(engine, [prompt], request)
  assert cold == warm == [offline.generate([prompt], request)[0].tokens]
  trie = engine._scheduler.ledger.trie
  assert trie.num_hit_tokens == 32  # Whole pages, and one token at least left.


@pytest.mark.slow
def test_drafts_after_a_prefix_hit_are_those_of_a_cold_start(target):
  """Not the tokens alone: the drafter knows what it would have known."""
  prompt = toy.prompts(1, 41, seed=3)[0].tolist()
  request = sampling.SamplingParams(max_tokens=20)
  counts = []
  for num_times in (1, 2):
    engine = small.make(target, toy.drafter(target), num_pages=24)
    engine.forms.pinned = 'full'  # What is drafted must not depend on a clock.
    for _ in range(num_times):
      before = engine.metrics.num_accepted.copy()
      offline_lib.generate(engine, [prompt], request)
    counts.append((engine.metrics.num_accepted - before).tolist())
  assert counts[0] == counts[1]


def test_a_cancelled_request_leaves_the_others_alone(served, offline):
  ids = [
    served.submit(prompt, asks.Ask(params=request), request_id=('cut', i))
    for i, (prompt, request) in enumerate(
      zip(small.prompts(), small.requests(), strict=True)
    )
  ]
  answers = {request_id: [] for request_id in ids}
  for _ in range(2):
    for output in served.step():
      answers[output.request_id] += output.tokens
  assert served.cancel(('cut', 3)) and served.cancel(('cut', 7))
  assert not served.cancel(('cut', 3)) and not served.cancel('nobody')
  while served.has_work:
    for output in served.step():
      answers[output.request_id] += output.tokens
  expected = want(offline)
  for i in (0, 1, 2, 4, 5, 6):
    assert answers['cut', i] == expected[i]
  for i in (3, 7):
    assert answers['cut', i] == expected[i][: len(answers['cut', i])]
    assert len(answers['cut', i]) < len(expected[i])
  served._scheduler.check()


def test_a_stop_id_ends_a_request_where_plain_decoding_ends(served, offline):
  expected = want(offline)
  i = next(i for i, out in enumerate(expected) if out[4] not in out[:4])
  request = dataclasses.replace(small.requests()[i], stop_ids=(expected[i][4],))
  assert offline_lib.generate(served, [small.prompts()[i]], request) == [
    expected[i][:5]
  ]


@pytest.mark.slow
def test_a_row_without_finite_logits_fails_alone(target, offline):
  greedy = sampling.SamplingParams(max_tokens=12)
  expected = [out.tokens for out in offline.generate(small.prompts(), greedy)]
  token = expected[4][6]
  broken = {i for i, out in enumerate(expected) if token in out}
  assert 0 < len(broken) < len(expected)
  engine = small.make(
    small.Poisoned(target, token), drafters.Known(target, 4, num_right=3)
  )
  for i, prompt in enumerate(small.prompts()):
    engine.submit(prompt, asks.Ask(params=greedy), request_id=i)
  answers, reasons = [[] for _ in expected], {}
  while engine.has_work:
    for output in engine.step():
      answers[output.request_id] += output.tokens
      if output.finish_reason is not None:
        reasons[output.request_id] = output.finish_reason
  for i, out in enumerate(expected):
    cut = out.index(token) if i in broken else len(out)
    assert answers[i] == out[:cut]
    assert reasons[i] == ('failed' if i in broken else 'length')
  assert engine.metrics.num_failed == len(broken)
  engine._scheduler.check()
  with pytest.raises(errors.UserError, match='no finite logit behind'):
    offline_lib.generate(engine, small.prompts(), greedy)


class Broken(drafters.Known):
  """Drafts that cannot be, in the rows whose length is odd."""

  def __init__(self, target, what):
    super().__init__(target, 4)
    self.what = what

  def propose(self, state, table, anchor, temperature, keys):
    draft = super().propose(state, table, anchor, temperature, keys)
    is_bad = (table.lengths % 2 == 1)[:, None] & (jnp.arange(5) == 2)
    if self.what == 'confidence':
      confidence = jnp.where(is_bad, jnp.nan, draft.confidence)
      return dataclasses.replace(draft, confidence=confidence)
    tokens = jnp.where(is_bad, toy.VOCAB_SIZE, draft.tokens)
    return dataclasses.replace(draft, tokens=tokens)


@pytest.mark.slow
@pytest.mark.parametrize('what', ['confidence', 'token'])
def test_a_broken_draft_is_dropped_and_counted(target, offline, what):
  engine = small.make(target, Broken(target, what))
  assert answer(engine) == want(offline)
  assert engine.metrics.num_broken > 0
  assert engine.metrics.tokens_per_round > 1  # The other rounds go on.


def test_requests_that_cannot_be_are_refused(served):
  def ask(**fields):
    return asks.Ask(params=sampling.SamplingParams(**fields))

  with pytest.raises(errors.UserError, match='prompt is empty'):
    served.submit([], ask())
  with pytest.raises(errors.UserError, match='has 64 tokens'):
    served.submit([1] * small.MAX_LEN, ask())
  with pytest.raises(errors.UserError, match='outside the target'):
    served.submit([1, toy.VOCAB_SIZE], ask())
  with pytest.raises(errors.UserError, match='9 stop ids'):
    served.submit([1], ask(stop_ids=tuple(range(9))))
  assert not served.has_work


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'max_len': 65}, "the target's context of 64"),
    ({'max_rows': 0}, 'max_rows=0'),
    ({'row_buckets': (2, 3)}, 'row_buckets'),
    ({'num_budgets': 1}, 'num_budgets=1'),
    ({'policies': ('newest',)}, "no depth policy 'newest'"),
    ({'policies': ()}, 'no policy is given'),
    ({'page_size': 0}, 'page_size=0'),
    ({'chunk_sizes': (64,)}, 'max_prefill_tokens=32'),
  ],
)
def test_settings_that_cannot_be_are_refused(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    small.make(target, None, **changes)


def test_an_engine_rests_when_drained_and_goes_on_to_the_same_tokens(
  served, offline
):
  answers = {}
  for i, (prompt, params) in enumerate(
    zip(small.prompts(), small.requests(), strict=True)
  ):
    served.submit(prompt, asks.Ask(params=params), request_id=('drained', i))
    answers['drained', i] = []
  for visit in range(200):
    events = served.step()
    if visit % 3 == 0:
      events += served.drain()
      assert served.drain() == []
    for event in events:
      answers[event.request_id] += event.tokens
    if not served.has_work:
      break
  assert list(answers.values()) == want(offline)


def test_forgotten_prefixes_are_read_again(served):
  answer(served)
  trie = served._scheduler.ledger.trie
  assert trie.num_cached_tokens > 0
  served.forget_prefixes()
  assert trie.num_cached_tokens == 0
  before = trie.num_hit_tokens
  offline_lib.generate(served, small.prompts()[4:5], small.requests()[4])
  assert trie.num_hit_tokens == before
  served._scheduler.check()


def test_events_tell_what_the_prefix_cache_had(served):
  served.forget_prefixes()
  before = served.metrics.pool
  prompt, params = small.prompts()[4], sampling.SamplingParams(max_tokens=9)
  found = []
  for _ in range(2):
    served.submit(prompt, asks.Ask(params=params))
    events = []
    while served.has_work:
      events += served.step()
    found.append({event.num_cached for event in events if event.tokens})
  # Whole pages, and the last token and one before it are run in any case.
  page = small.SETTINGS.page_size
  assert found == [{0}, {(len(prompt) - 2) // page * page}]
  pool = served.metrics.pool
  assert pool.num_queried_tokens - before.num_queried_tokens == 2 * len(prompt)
  assert pool.num_hit_tokens - before.num_hit_tokens == max(found[1])
  assert pool.num_used == 0 < pool.num_idle
  assert pool.num_free + pool.num_idle == pool.num_pages


def test_a_launch_is_timed_only_if_its_begin_and_end_were_seen(served):
  """None behind a launch that read a prompt, for nobody waited for that."""
  served.forget_prefixes()
  seen = []
  served.on_launch = lambda sent, used, num_tokens, seconds: seen.append(
    (sent.plan.launch, seconds)
  )
  first = served.num_launches + 1
  before = served.metrics.host_s, served.metrics.wait_s
  began = time.perf_counter()
  params = sampling.SamplingParams(max_tokens=20)
  offline_lib.generate(served, small.prompts()[4:5], params)
  seconds = time.perf_counter() - began
  served.on_launch = None
  launches = [number for number, _ in seen]
  assert launches[0] > first  # The prompt takes two launches of its own.
  assert seen[0][1] is None
  for _, found in seen:
    assert found is None or 0 < found < seconds
  host_s = served.metrics.host_s - before[0]
  wait_s = served.metrics.wait_s - before[1]
  assert host_s > 0 and wait_s >= 0 and host_s + wait_s <= seconds
