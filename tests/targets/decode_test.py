# SPDX-License-Identifier: MIT
"""Every family decodes with drafts exactly as it does without."""

import numpy as np
import pytest

from jspec.decode import generate, sampling
from jspec.drafters import ngram
from jspec.testing import toy
from tests.drafters import small_eagle3
from tests.evals import unchecked
from tests.targets import goldens

pytestmark = pytest.mark.slow

DRAFTERS = {
  'ngram': lambda target: ngram.NGram(num_draft_tokens=3),
  'dflash': lambda target: toy.drafter(target, mask_token_id=255, tree_size=4),
  'eagle3': small_eagle3.drafter,
}


@pytest.fixture(scope='module', autouse=True)
def unchecked_constructors():
  with unchecked.constructors():
    yield


def prompts():
  """Three, of which one repeats itself, so that n-grams are found."""
  rng = np.random.default_rng(0)
  return [
    [*rng.integers(3, 200, 4).tolist()] * 4,
    rng.integers(3, 200, 11).tolist(),
    rng.integers(3, 200, 3).tolist(),
  ]


def params():
  kinds = ({}, {'temperature': 0.7}, {'temperature': 1.0, 'top_k': 20})
  return [
    sampling.SamplingParams(seed=i, max_tokens=24, **kind)
    for i, kind in enumerate(kinds)
  ]


def answers(target, drafter, num_rows):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(
      target, drafter, max_len=64, num_rows=num_rows, page_size=8
    )
  outputs = decoder.generate(prompts(), params())
  return [output.tokens for output in outputs]


@pytest.fixture(scope='module')
def plain():
  """Plain answers of a family, each decoded once."""
  found = {}

  def get(name):
    if name not in found:
      found[name] = answers(goldens.model(name), None, num_rows=1)
    return found[name]

  return get


@pytest.mark.parametrize('drafter', DRAFTERS)
@pytest.mark.parametrize('name', goldens.NAMES)
def test_answers_with_drafts_are_those_without(name, drafter, plain):
  target = goldens.model(name)
  got = answers(target, DRAFTERS[drafter](target), num_rows=3)
  assert got == plain(name)
  assert all(len(tokens) > 8 for tokens in got)
