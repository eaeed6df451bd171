# SPDX-License-Identifier: MIT
"""Sampled drafts under a grammar: the law of plain sampling under the masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.decode import sampling
from jspec.serve import asks, structured, structured_draft
from jspec.testing import toy
from tests.evals import drafters
from tests.serve import constrained, small

pytestmark = pytest.mark.slow

pytest.importorskip('llguidance', reason="needs the extra 'structured'")

PROMPT = 50
NUM_REQUESTS = 1600
LETTERS = 'ABCDEFGH'  # No piece of the vocabulary holds two.
PATTERN = structured.Constraint('regex', f'[{LETTERS}]' * 2)
TEMPERATURE = 2.0
ALPHA, CAUGHT = 1e-3, 1e-6


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=16, vocab_size=constrained.VOCAB_SIZE)


@pytest.fixture(scope='module')
def letters():
  return np.array(
    [constrained.byte_tokenizer().encode(letter)[0] for letter in LETTERS]
  )


@pytest.fixture(scope='module')
def law(target, letters):
  """Of two letters [8, 8], each drawn from those the pattern allows."""

  @jax.jit
  def behind(target, tokens):
    at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = target.encode(tokens, at, jnp.ones_like(tokens), ())
    logits = target.logits(hidden[:, -1])[:, letters]
    return jax.nn.softmax(logits / TEMPERATURE, axis=-1)

  first = np.asarray(behind(target, np.full((1, 1), PROMPT, np.int32)))[0]
  texts = np.stack([np.full(len(letters), PROMPT), letters], axis=1)
  second = np.asarray(behind(target, texts.astype(np.int32)))
  return first[:, None].astype(np.float64) * second


@pytest.fixture(scope='module')
def served(target, letters):
  """Drafts letters unlike the target does, and half the time none of them."""
  draft = np.full((constrained.VOCAB_SIZE,), 0.5 / constrained.VOCAB_SIZE)
  draft[letters] += 0.5 * np.array([8, 4, 2, 1, 1, 1, 1, 2]) / 20
  engine = small.make(
    target,
    drafters.Sampled(draft / draft.sum()),
    constrained.compiler(),
    rule='token',
    policies=('static',),
    max_len=16,
  )
  engine.forms.pinned = 'full'
  return engine


def counts(engine, letters, seed):
  answers = {}
  for i in range(NUM_REQUESTS):
    params = sampling.SamplingParams(
      temperature=TEMPERATURE, max_tokens=2, seed=seed * NUM_REQUESTS + i
    )
    ask = asks.Ask(params=params, constraint=PATTERN)
    answers[engine.submit([PROMPT], ask)] = []
  while engine.has_work:
    for event in engine.step():
      answers[event.request_id] += event.tokens
  found = np.zeros((len(letters),) * 2, np.int64)
  index = {int(token): i for i, token in enumerate(letters)}
  for first, second in answers.values():
    found[index[first], index[second]] += 1
  return found


def p_value(found, law):
  """Pearson's chi-square; cells that expect little are put together."""
  expected = law * (found.sum() / law.sum())
  is_common = expected >= 8
  assert is_common.sum() > 30
  return stats.chisquare(
    np.append(found[is_common], found[~is_common].sum()),
    np.append(expected[is_common], expected[~is_common].sum()),
  ).pvalue


def test_sampled_drafts_keep_the_law_under_the_masks(served, law, letters):
  before = served.metrics.num_accepted.sum()
  assert p_value(counts(served, letters, seed=0), law) > ALPHA
  assert served.metrics.num_accepted.sum() - before > NUM_REQUESTS / 10


def test_to_take_refused_drafts_out_is_another_law(
  served, law, letters, monkeypatch
):
  real = structured_draft.verified
  monkeypatch.setattr(
    structured_draft,
    'verified',
    lambda *args, is_sampled: functools.partial(real, is_sampled=False)(*args),
  )
  assert p_value(counts(served, letters, seed=1), law) < CAUGHT
