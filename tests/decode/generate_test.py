# SPDX-License-Identifier: MIT
"""Whole generations: drafters, rows, stops and limits change no token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.decode import generate, sampling
from jspec.decode import round as round_lib
from jspec.drafters import ngram
from jspec.testing import toy
from tests.evals import drafters

MAX_LEN = 64
K = 4
NEVER = 10**6
# Lengths around the prefill chunk (16) and the page (4 or 8) edges.
LENGTHS = (1, 2, 4, 5, 8, 9, 16, 17, 18, 33)


def params(**fields):
  return sampling.SamplingParams(**({'max_tokens': 24} | fields))


def prompts():
  return [toy.prompts(1, length, seed=length)[0].tolist() for length in LENGTHS]


def mixed():
  """Greedy and sampled requests side by side, each its own way."""
  kinds = (
    {},
    {'temperature': 0.8},
    {'temperature': 1.3, 'top_k': 5},
    {'temperature': 0.7, 'top_p': 0.8},
    {'temperature': 1.0, 'min_p': 0.05},
  )
  return [
    params(seed=i, max_tokens=20 + i % 5, **kinds[i % len(kinds)])
    for i in range(len(LENGTHS))
  ]


def make(target, drafter, chunks=(16,), **options):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', chunks)
    return generate.Decoder(
      target, drafter, **({'max_len': MAX_LEN, 'num_rows': 4} | options)
    )


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.fixture(scope='module')
def plain(target):
  """The reference: one row, small pages, no drafts, one round at a time."""
  return make(target, None, num_rows=1, page_size=4, num_rounds=1)


@pytest.fixture(scope='module')
def oracle(target):
  """All drafts are right; `drafter` takes how many."""
  return drafters.Known(target, K)


@pytest.fixture(scope='module')
def with_oracle(target, oracle):
  return make(target, oracle, page_size=8)


@pytest.fixture
def right(oracle):
  """Sets how many of the K drafts of a round are right."""

  def put(num):
    oracle.set(num)

  yield put
  oracle.set(K)


def tokens(outputs):
  return [output.tokens for output in outputs]


def dense_greedy(target, prompt, num):
  """Decoding without cache, rounds or decoder: a forward pass a token."""
  size = len(prompt) + num
  padded = np.zeros((1, size), np.int32)
  padded[0, : len(prompt)] = prompt
  positions = jnp.arange(size, dtype=jnp.int32)[None]
  score = jax.jit(
    lambda target, tokens: target.logits(
      target.encode(tokens, positions, jnp.ones_like(tokens), ())[0]
    )
  )
  for at in range(len(prompt), size):
    padded[0, at] = int(score(target, padded)[0, at - 1].argmax())
  return padded[0, len(prompt) :].tolist()


def test_plain_decoding_is_greedy_decoding(target, plain):
  prompt = prompts()[7]
  out = plain.generate([prompt], params())[0]
  assert out.tokens == dense_greedy(target, prompt, 24)
  assert out.finish_reason == 'length'
  assert out.num_rounds == 24
  assert out.num_drafted == out.num_accepted == []


@pytest.mark.slow
@pytest.mark.parametrize('num_right', [0, 2, K])
def test_tokens_do_not_depend_on_drafts_rows_or_pages(
  plain, with_oracle, right, num_right
):
  right(num_right)
  want = plain.generate(prompts(), mixed())
  got = with_oracle.generate(prompts(), mixed())
  assert tokens(got) == tokens(want)
  assert [out.finish_reason for out in got] == ['length'] * len(LENGTHS)


def test_tokens_do_not_depend_on_the_order_of_prompts(with_oracle):
  order = [3, 9, 0, 7, 1, 8, 2, 6, 4, 5]
  want = with_oracle.generate(prompts(), mixed())
  got = with_oracle.generate(
    [prompts()[i] for i in order], [mixed()[i] for i in order]
  )
  assert tokens(got) == [want[i].tokens for i in order]


def test_sampled_tokens_differ_by_seed(with_oracle):
  requests = [params(temperature=1.0, seed=seed) for seed in range(8)]
  outs = with_oracle.generate([prompts()[3]] * 8, requests)
  assert len({tuple(out.tokens) for out in outs}) == 8
  again = with_oracle.generate([prompts()[3]], requests[5])
  assert again[0].tokens == outs[5].tokens


def make_drafter(name, target):
  if name == 'ngram':
    return ngram.NGram(5)
  if name == 'dflash':
    return toy.drafter(target)
  return drafters.Garbage(target.vocab_size)


@pytest.mark.parametrize(
  'name', ['ngram', 'garbage', pytest.param('dflash', marks=pytest.mark.slow)]
)
def test_tokens_equal_plain_with_any_drafter(target, plain, name):
  decoder = make(target, make_drafter(name, target), page_size=8, num_rows=3)
  want = plain.generate(prompts(), mixed())
  got = decoder.generate(prompts(), mixed())
  assert tokens(got) == tokens(want)
  drafted = np.sum([out.num_drafted for out in got], axis=0)
  assert drafted.min() > 0


@pytest.mark.parametrize('room', [1, 2, 3, K, K + 1, K + 2, 11])
def test_rounds_stop_at_the_end_of_the_context(plain, with_oracle, room):
  prompt = toy.prompts(1, MAX_LEN - room, seed=room)[0].tolist()
  request = params(max_tokens=NEVER)
  want = plain.generate([prompt], request)[0]
  got = with_oracle.generate([prompt], request)[0]
  assert got.tokens == want.tokens
  assert len(got.tokens) == room
  assert got.finish_reason == 'length'
  # A round of K + 1 tokens each, the last one as long as there is room.
  assert got.num_rounds == -(-room // (K + 1))


def first_new(outs, at):
  """A prompt whose answer has a token at `at` that does not come before."""
  for i, out in enumerate(outs):
    if out.tokens[at] not in out.tokens[:at]:
      return i, out.tokens[at]
  raise AssertionError(f'every answer repeats itself before {at}')


# Rounds of K + 1 tokens: index 0 is the first draft, index K the bonus.
@pytest.mark.parametrize('at', [0, 1, K - 1, K, K + 1, 2 * K, 2 * K + 1])
def test_stop_id_ends_the_answer_wherever_it_is_in_a_round(
  plain, with_oracle, at
):
  i, stop_id = first_new(plain.generate(prompts(), params()), at)
  request = params(stop_ids=(63, stop_id))
  want = plain.generate([prompts()[i]], request)[0]
  got = with_oracle.generate([prompts()[i]], request)[0]
  assert got.tokens == want.tokens
  assert len(got.tokens) == at + 1 and got.tokens[-1] == stop_id
  assert got.finish_reason == want.finish_reason == 'stop'


@pytest.mark.parametrize('at', [0, 2, K, 7])
def test_counts_end_at_the_stop_id(plain, with_oracle, at):
  """Emitted tokens = accepted and emitted drafts + emitted bonuses."""
  i, stop_id = first_new(plain.generate(prompts(), params()), at)
  got = with_oracle.generate([prompts()[i]], params(stop_ids=(stop_id,)))[0]
  whole, cut = divmod(at + 1, K + 1)
  assert got.num_rounds == whole + (cut > 0)
  assert got.num_accepted == [whole + (j < cut) for j in range(K)]
  assert got.num_drafted == [got.num_rounds] * K


@pytest.mark.parametrize('max_tokens', [1, 2, K, K + 1, K + 2, 3 * K + 2])
def test_budget_is_kept_to_the_token(plain, with_oracle, max_tokens):
  request = params(max_tokens=max_tokens)
  want = plain.generate(prompts()[:3], request)
  got = with_oracle.generate(prompts()[:3], request)
  assert tokens(got) == tokens(want)
  assert [len(out.tokens) for out in got] == [max_tokens] * 3
  assert [out.finish_reason for out in got] == ['length'] * 3


def test_stop_id_as_the_last_token_of_the_budget_is_a_stop(plain, with_oracle):
  i, stop_id = first_new(plain.generate(prompts(), params()), 6)
  request = params(max_tokens=7, stop_ids=(stop_id,))
  for decoder in (plain, with_oracle):
    assert decoder.generate([prompts()[i]], request)[0].finish_reason == 'stop'


def test_counts_are_exact_with_a_known_drafter(with_oracle, right):
  request = params(max_tokens=20)  # four rounds of K + 1
  for num_right, num_rounds in ((K, 4), (0, 20)):
    right(num_right)
    out = with_oracle.generate(prompts()[:1], request)[0]
    assert out.num_rounds == num_rounds
    assert out.num_accepted == [num_rounds if num_right else 0] * K


def test_rows_are_refilled_and_nothing_is_left_behind(plain, with_oracle):
  """Many short and long requests through four rows, twice."""
  many = prompts() * 3
  requests = [params(max_tokens=1 + (7 * i) % 23) for i in range(len(many))]
  want = plain.generate(many, requests)
  seen = []
  got = with_oracle.generate(
    many, requests, on_progress=lambda *counts: seen.append(counts)
  )
  assert tokens(got) == tokens(want)
  assert tokens(with_oracle.generate(many, requests)) == tokens(want)
  assert [done for done, _ in seen] == list(range(1, len(many) + 1))
  assert seen[-1][1] == sum(len(out.tokens) for out in got)


@pytest.mark.slow
def test_prefill_chunks_change_nothing(target, plain):
  """Known drafts right only if its own cache is: so accepted counts agree."""
  decoder = make(
    target, drafters.Known(target, K), chunks=(4, 32), num_rows=2, page_size=4
  )
  want = plain.generate(prompts(), params())
  got = decoder.generate(prompts(), params())
  assert tokens(got) == tokens(want)
  assert [out.num_rounds for out in got] == [5] * len(got)


@pytest.mark.parametrize(
  'prompt, message',
  [
    ([], 'empty'),
    ([1] * MAX_LEN, f'{MAX_LEN} tokens'),
    ([1] * (MAX_LEN + 9), 'shorten it'),
    ([1, toy.VOCAB_SIZE], 'vocabulary'),
    ([-1, 1], 'vocabulary'),
  ],
)
def test_bad_prompt_is_refused_before_any_work(with_oracle, prompt, message):
  before = with_oracle.timing.decode_s
  with pytest.raises(errors.UserError, match=message) as caught:
    with_oracle.generate([[1, 2], prompt], params())
  assert 'prompt 1' in str(caught.value) and '\n' not in str(caught.value)
  assert with_oracle.timing.decode_s == before


def test_too_many_stop_ids_are_refused(with_oracle):
  with pytest.raises(errors.UserError, match='stop ids'):
    with_oracle.generate([[1]], params(stop_ids=tuple(range(9))))


def test_no_prompts_is_no_work(with_oracle):
  assert with_oracle.generate([], params()) == []


def test_max_len_beyond_the_context_is_refused(target):
  with pytest.raises(errors.UserError, match='context'):
    generate.Decoder(target, None, max_len=MAX_LEN + 1)


def test_state_is_donated(with_oracle):
  """The old pages are gone: a round does not copy the cache."""
  old = with_oracle._state
  with_oracle.generate(prompts()[:1], params(max_tokens=1))
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))


def test_nothing_compiles_after_the_decoder_is_made(with_oracle, right):
  """Other lengths, parameters and drafts run the programs there are."""
  with_oracle.generate(prompts()[:1], mixed()[:1])  # eager host helpers
  compiled = []

  def count(event, duration, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      compiled.append(duration)

  jax.monitoring.register_event_duration_secs_listener(count)
  try:
    right(1)
    compiled.clear()
    with_oracle.generate(prompts(), mixed())
    assert compiled == []
    jax.jit(lambda x: x + 17.25)(1.0)
    assert compiled != []  # the counter counts
  finally:
    jax.monitoring.unregister_event_duration_listener(count)


def test_dropped_row_is_an_error(target, with_oracle):
  """A row without pages must not pass for one that decoded."""
  state = with_oracle._state
  page_ids = np.asarray(state.cache.table.page_ids)

  def put(state, page_ids):
    table = dataclasses.replace(
      state.cache.table, page_ids=jnp.asarray(page_ids)
    )
    cache = dataclasses.replace(state.cache, table=table)
    return dataclasses.replace(state, cache=cache)

  with_oracle._state = put(state, np.full_like(page_ids, -1))
  with pytest.raises(RuntimeError, match='page'):
    with_oracle.generate(prompts()[:1], params())
  fresh = round_lib.init_state(
    target,
    with_oracle._drafter,
    num_rows=4,
    max_len=MAX_LEN,
    page_size=8,
    num_stop_ids=generate.NUM_STOP_IDS,
  )
  with_oracle._state = fresh
