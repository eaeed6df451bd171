# SPDX-License-Identifier: MIT
"""Options and log-probabilities are those of plain decoding, drafts or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.decode import options as options_lib
from jspec.decode import sampling
from jspec.serve import asks
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters
from tests.serve import small

pytestmark = pytest.mark.slow  # Two engines: 50 s to compile.

LENGTHS = (1, 5, 19, 33, 3, 9)
OPTIONS = (
  {'repetition_penalty': 1.3},
  {'presence_penalty': 1.5, 'frequency_penalty': -0.7},
  {'logit_bias': ((3, 4.0), (9, -100.0))},
  {'min_tokens': 9},
  {},
  {'repetition_penalty': 0.8, 'frequency_penalty': 1.1, 'min_tokens': 2},
)


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN)


@pytest.fixture(scope='module')
def plain(target):
  return small.make(target, None)


@pytest.fixture(scope='module')
def served(target):
  """Three of four drafts are what greedy decoding without options says."""
  return small.make(
    target, drafters.Known(target, 4, num_right=3), num_pages=14
  )


def prompts():
  return [toy.prompts(1, length, seed=length)[0].tolist() for length in LENGTHS]


def wanted(temperature, **fields):
  return [
    asks.Ask(
      params=sampling.SamplingParams(
        seed=i, max_tokens=20, temperature=temperature, stop_ids=(7, 8)
      ),
      options=options_lib.LogitOptions(**options),
      **fields,
    )
    for i, options in enumerate(OPTIONS)
  ]


def events(engine, asked, given=None):
  """Tokens, log-probabilities and those of the prompt, request by request."""
  given = prompts() if given is None else given
  ids = [
    engine.submit(prompt, ask) for prompt, ask in zip(given, asked, strict=True)
  ]
  found = {request_id: ([], [], []) for request_id in ids}
  while engine.has_work:
    for event in engine.step():
      tokens, logprobs, of_prompt = found[event.request_id]
      tokens += event.tokens
      logprobs += event.logprobs or ()
      of_prompt += event.prompt_logprobs or ()
  return [found[request_id] for request_id in ids]


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_options_give_the_tokens_of_plain_decoding(plain, served, temperature):
  """With drafts, neighbours and preemptions on the one side."""
  want = [
    offline_lib.generate(plain, [prompt], ask)[0]
    for prompt, ask in zip(prompts(), wanted(temperature), strict=True)
  ]
  before = served._scheduler.num_preemptions
  got = offline_lib.generate(served, prompts(), wanted(temperature))
  assert got == want
  assert served._scheduler.num_preemptions > before
  nothing = [
    dataclasses.replace(ask, options=options_lib.LogitOptions())
    for ask in wanted(temperature)
  ]
  other = offline_lib.generate(plain, prompts(), nothing)
  changed = [i for i in range(len(LENGTHS)) if other[i] != want[i]]
  assert set(changed) >= {0, 1, 2} and 4 not in changed


def test_a_minimum_holds_back_stop_ids_and_bad_words_never_come(plain, served):
  free = sampling.SamplingParams(max_tokens=12)
  prompt = prompts()[1]
  (first,) = offline_lib.generate(plain, [prompt], free)
  stop = dataclasses.replace(free, stop_ids=(first[1],))
  assert offline_lib.generate(served, [prompt], stop)[0] == first[:2]
  held = asks.Ask(params=stop, options=options_lib.LogitOptions(min_tokens=5))
  (got,) = offline_lib.generate(served, [prompt], held)
  assert got == offline_lib.generate(plain, [prompt], held)[0]
  assert len(got) >= 5 and first[1] not in got[:5]
  word = tuple(first[2:5])  # Straddles the rounds.
  banned = asks.Ask(
    params=free, options=options_lib.LogitOptions(bad_words=(word,))
  )
  (got,) = offline_lib.generate(served, [prompt], banned)
  assert got == offline_lib.generate(plain, [prompt], banned)[0]
  assert got[:4] == first[:4] and got[4] != first[4]


def laws(target, tokens):
  """Log-probabilities of the token behind each of `tokens`, [S, V]."""
  tokens = jnp.asarray([tokens], jnp.int32)
  hidden, _ = target.encode(
    tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens), ()
  )
  return np.asarray(jax.nn.log_softmax(target.logits(hidden[0])))


def test_logprobs_are_those_of_the_model_for_answer_and_prompt(target, served):
  asked = wanted(0.7, num_logprobs=3, num_prompt_logprobs=2)
  # One that wants none among those that do.
  asked[4] = dataclasses.replace(
    asked[4], num_logprobs=None, num_prompt_logprobs=None
  )
  before = served._scheduler.num_preemptions
  found = events(served, asked)
  assert served._scheduler.num_preemptions > before
  for i, (prompt, (tokens, logprobs, of_prompt)) in enumerate(
    zip(prompts(), found, strict=True)
  ):
    if i == 4:
      assert not logprobs and not of_prompt
      continue
    law = laws(target, prompt + tokens)
    assert len(logprobs) == len(tokens)
    assert len(of_prompt) == len(prompt) - 1
    everything = prompt + tokens
    entries = of_prompt + logprobs
    for at, entry in enumerate(entries):
      token = everything[at + 1]
      np.testing.assert_allclose(entry.logprob, law[at, token], atol=2e-5)
      assert entry.rank == 1 + int(np.sum(law[at] > law[at, token]))
      num = 2 if at < len(of_prompt) else 3
      best = np.argsort(-law[at], kind='stable')[:num]
      assert [token for token, _ in entry.top] == best.tolist()
      np.testing.assert_allclose(
        [value for _, value in entry.top], law[at, best], atol=2e-5
      )


@pytest.mark.parametrize(
  ('ask', 'message'),
  [
    (asks.Ask(num_logprobs=21), 'num_logprobs=21; give 0 to 20'),
    (asks.Ask(num_prompt_logprobs=-1), 'num_prompt_logprobs=-1'),
    (
      asks.Ask(
        params=sampling.SamplingParams(max_tokens=3),
        options=options_lib.LogitOptions(min_tokens=4),
      ),
      'min_tokens=4 is more than max_tokens=3',
    ),
    (
      asks.Ask(
        options=options_lib.LogitOptions(logit_bias=((toy.VOCAB_SIZE, 1.0),))
      ),
      'logit_bias',
    ),
  ],
)
def test_what_cannot_be_honoured_is_refused(plain, ask, message):
  with pytest.raises(errors.UserError, match=message):
    plain.submit([1, 2], ask)
  assert not plain.has_work
