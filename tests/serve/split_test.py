# SPDX-License-Identifier: MIT
"""Answers obey their grammars, and drafts change no token of them."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.decode import options as options_lib
from jspec.decode import sampling
from jspec.drafters import ngram
from jspec.serve import asks, structured
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters
from tests.serve import compiles, constrained, small

pytestmark = pytest.mark.slow

pytest.importorskip('llguidance', reason="needs the extra 'structured'")

LOOP = '(ab|cd){12,14}'
PATTERNS = (LOOP, '[a-f]+x[0-9]{2}', None, 'abd?', '(yes|no)!*', LOOP, None)
SCHEMA = {
  'type': 'object',
  'properties': {'a': {'enum': [True, 12]}, 'b': {'type': 'boolean'}},
  'required': ['a', 'b'],
  'additionalProperties': False,
}


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN, vocab_size=constrained.VOCAB_SIZE)


@pytest.fixture(scope='module')
def tok():
  return constrained.byte_tokenizer()


@pytest.fixture(scope='module')
def plain(target, tok):
  return small.make(target, None, constrained.compiler(tok))


@pytest.fixture(scope='module')
def served(target, tok):
  """Copies from the text, which a grammar that repeats makes right."""
  drafter = ngram.NGram(num_draft_tokens=4)
  return small.make(target, drafter, constrained.compiler(tok))


def prompts():
  rng = np.random.default_rng(3)
  return [
    rng.integers(2, 200, size=length).tolist()
    for length in (3, 9, 17, 1, 6, 33, 5, 4)
  ]


def wanted(temperature=0.0):
  limits = [structured.Constraint('regex', p) if p else None for p in PATTERNS]
  limits.append(constrained.schema(SCHEMA))
  return [
    asks.Ask(
      params=sampling.SamplingParams(
        temperature=temperature,
        max_tokens=26,
        seed=i,
        stop_ids=(constrained.EOS,),
      ),
      constraint=limit,
    )
    for i, limit in enumerate(limits)
  ]


def ended(engine, asked):
  """Tokens and how each answer ended."""
  answers, reasons = {}, {}
  for i, (prompt, ask) in enumerate(zip(prompts(), asked, strict=True)):
    engine.submit(prompt, ask, request_id=i)
    answers[i] = []
  while engine.has_work:
    for event in engine.step():
      answers[event.request_id] += event.tokens
      if event.finish_reason is not None:
        reasons[event.request_id] = event.finish_reason
  engine._scheduler.check()
  return answers, reasons


def said(tok, tokens):
  return tok.decode([token for token in tokens if token != constrained.EOS])


def test_greedy_answers_are_the_best_that_the_grammar_allows(
  target, tok, plain
):
  """Against a decoder of four lines that never drafts and never caches."""
  compiler = constrained.compiler(tok)
  answers, _ = ended(plain, wanted())
  for i, ask in enumerate(wanted()):
    if ask.constraint is None:
      continue
    matcher, expected = compiler.matcher(ask.constraint), []
    while len(expected) < 26 and not matcher.is_finished:
      allowed = constrained.ids(matcher.mask_words())
      law = laws(target, prompts()[i] + expected)
      expected.append(allowed[int(np.argmax(law[allowed]))])
      if expected[-1] == constrained.EOS:
        break
      matcher.commit(expected[-1:])
    assert answers[i] == expected


def laws(target, tokens):
  """Logits of the token behind the last of `tokens`."""
  size = small.MAX_LEN  # One shape, one compilation.
  padded = jnp.asarray([tokens + [0] * (size - len(tokens))], jnp.int32)
  hidden, _ = target.encode(
    padded, jnp.arange(size)[None], jnp.ones_like(padded), ()
  )
  return np.asarray(target.logits(hidden[0, len(tokens) - 1][None]))[0]


@pytest.mark.parametrize('form', ['adaptive', 'full', 'plain'])
@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_drafts_change_no_token(plain, served, tok, temperature, form):
  before = served.metrics.num_accepted.sum()
  expected = ended(plain, wanted(temperature))
  served.forms.pinned = form
  assert ended(served, wanted(temperature)) == expected
  served.forms.pinned = None
  accepted = served.metrics.num_accepted.sum() - before
  assert (accepted > 8) == (form != 'plain')
  answers, reasons = expected
  for i, pattern in enumerate(PATTERNS):
    if pattern is not None and reasons[i] == 'stop':
      assert re.fullmatch(pattern, said(tok, answers[i]))
  assert sum(reason == 'stop' for reason in reasons.values()) >= 4


def test_a_draft_of_any_tokens_is_harmless(target, tok, plain):
  """Ids beyond the tokenizer's among them."""
  garbage = drafters.Garbage(constrained.VOCAB_SIZE)
  engine = small.make(target, garbage, constrained.compiler(tok))
  engine.forms.pinned = 'full'
  assert ended(engine, wanted(0.8)) == ended(plain, wanted(0.8))
  assert engine.metrics.num_broken == 0


def test_rows_without_grammar_are_as_they_are_without_the_others(plain, served):
  free = [ask for ask in wanted(0.9) if ask.constraint is None]
  places = [i for i, ask in enumerate(wanted(0.9)) if ask.constraint is None]
  alone = offline_lib.generate(plain, [prompts()[i] for i in places], free)
  before = served.metrics.num_split
  answers, _ = ended(served, wanted(0.9))
  assert [answers[i] for i in places] == alone
  assert served.metrics.num_split > before
  before = served.metrics.num_split
  offline_lib.generate(served, [prompts()[i] for i in places], free)
  assert served.metrics.num_split == before  # Nobody to wait for.


def test_a_small_pool_preempts_and_the_grammar_goes_on(target, tok, plain):
  drafter = ngram.NGram(num_draft_tokens=2)
  engine = small.make(target, drafter, constrained.compiler(tok), num_pages=9)
  assert ended(engine, wanted(1.0)) == ended(plain, wanted(1.0))
  assert engine._scheduler.num_preemptions > 0


def test_a_stuck_grammar_fails_alone_and_says_why(plain):
  """The only letter that may follow is taken away by the request itself."""
  stuck = asks.Ask(
    params=sampling.SamplingParams(max_tokens=8),
    options=options_lib.LogitOptions(bad_words=((ord_of('a'),),)),
    constraint=structured.Constraint('regex', 'a'),
  )
  other = wanted()[1]
  expected = offline_lib.generate(plain, [prompts()[1]], other)[0]
  plain.submit(prompts()[0], stuck, request_id='stuck')
  plain.submit(prompts()[1], other, request_id='other')
  tokens, last = [], {}
  while plain.has_work:
    for event in plain.step():
      if event.request_id == 'other':
        tokens += event.tokens
      last[event.request_id] = event
  assert tokens == expected
  assert last['stuck'].finish_reason == 'failed'
  assert last['stuck'].problem == (
    'the target gives no finite logit that the grammar and the options of the'
    ' request allow'
  )


def ord_of(letter):
  return constrained.byte_tokenizer().encode(letter)[0]


def test_clients_may_leave_and_ids_come_again(served, plain):
  ask = wanted(0.7)[0]
  expected = offline_lib.generate(plain, [prompts()[2]], ask)[0]
  for steps in range(4):
    served.submit(prompts()[0], ask, request_id='same')
    for _ in range(steps):
      served.step()
    served.cancel('same')
    served.submit(prompts()[2], ask, request_id='same')
    tokens = []
    while served.has_work:
      for event in served.step():
        tokens += event.tokens
    assert tokens == expected
  served._scheduler.check()


def test_nothing_compiles_in_traffic(served):
  with compiles.counted() as found:
    ended(served, wanted(0.5))
  assert not found


def test_what_cannot_be_is_refused(target, plain):
  ask = wanted()[0]
  without = small.make(target, None)
  with pytest.raises(errors.UserError, match='has no compiler of grammars'):
    without.submit([1], ask)
  assert not without.has_work
  both = asks.Ask(
    constraint=ask.constraint,
    options=options_lib.LogitOptions(min_tokens=2),
  )
  with pytest.raises(errors.UserError, match='min_tokens=2 with structured'):
    plain.submit([1], both)
  bad = asks.Ask(constraint=structured.Constraint('regex', '(a'))
  with pytest.raises(errors.UserError, match='the regex cannot be enforced'):
    plain.submit([1], bad)
  assert not plain.has_work
