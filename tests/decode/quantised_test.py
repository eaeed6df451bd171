# SPDX-License-Identifier: MIT
"""A target in fewer bits decodes with drafts exactly as it does without."""

import pytest

from jspec.decode import generate, sampling
from jspec.drafters import ngram
from jspec.serve import asks
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked
from tests.serve import small

pytestmark = pytest.mark.slow

FORMS = (
  ('int8', None),
  ('fp8', None),
  (None, 'bf16'),
  (None, 'int8'),
  (None, 'fp8'),
  ('int8', 'int8'),
  ('fp8', 'fp8'),
)
DRAFTERS = {
  'ngram': lambda target: ngram.NGram(num_draft_tokens=3),
  'dflash': lambda target: toy.drafter(target, tree_size=4),
  # Right for three tokens, so that drafts are accepted and refused.
  'known': lambda target: drafters.Known(target, 4, num_right=3),
}


@pytest.fixture(scope='module', autouse=True)
def unchecked_constructors():
  with unchecked.constructors():
    yield


def prompts():
  """The first repeats itself, so that n-grams are found."""
  one, two = (toy.prompts(1, n, seed=n)[0].tolist() for n in (5, 19))
  return [one * 4, two, one[:2]]


def params():
  kinds = ({}, {}, {'temperature': 0.8})
  return [
    sampling.SamplingParams(seed=i, max_tokens=30, **kind)
    for i, kind in enumerate(kinds)
  ]


def decode(target, drafter, num_rows):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(
      target, drafter, max_len=64, num_rows=num_rows, page_size=8
    )
  return decoder.generate(prompts(), params())


def tokens(outputs):
  return [output.tokens for output in outputs]


@pytest.mark.parametrize('weights, cache', FORMS)
def test_answers_with_drafts_are_those_without(weights, cache):
  target = toy.target(max_len=64, weights=weights, cache_form=cache)
  plain = tokens(decode(target, None, num_rows=1))
  for name, make in DRAFTERS.items():
    outputs = decode(target, make(target), num_rows=3)
    assert tokens(outputs) == plain, name
    if name == 'known':
      assert sum(sum(out.num_accepted) for out in outputs) > 30


def test_the_engine_gives_them_too():
  target = toy.target(max_len=small.MAX_LEN, weights='int8', cache_form='int8')
  plain = tokens(decode(target, None, num_rows=1))
  engine = small.make(target, drafters.Known(target, 4, num_right=3))
  wanted = [asks.Ask(params=one) for one in params()]
  assert offline_lib.generate(engine, prompts(), wanted) == plain
  assert engine.metrics.tokens_per_round > 1.2
