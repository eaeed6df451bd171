# SPDX-License-Identifier: MIT
"""Drafters on a model that writes: same stories, fewer rounds."""

import numpy as np
import pytest

from jspec.decode import generate, sampling
from jspec.drafters import ngram
from jspec.testing import toy
from tests import stories260k

pytestmark = pytest.mark.slow

MAX_LEN = 160


@pytest.fixture(scope='module')
def target():
  return stories260k.load()


def prompts(target):
  """Beginnings of the model's own story, cut at several places."""
  story = [stories260k.BOS_ID, *stories260k.greedy(target, 90)]
  return [story[:length] for length in (1, 2, 7, 16, 17, 33, 64, 90)]


def requests():
  kinds = ({}, {'temperature': 0.7, 'top_p': 0.9}, {'temperature': 1.0})
  return [
    sampling.SamplingParams(max_tokens=60, seed=i, **kinds[i % 3])
    for i in range(8)
  ]


def answers(target, drafter, num_rows):
  decoder = generate.Decoder(
    target, drafter, num_rows=num_rows, max_len=MAX_LEN
  )
  return decoder.generate(prompts(target), requests())


@pytest.fixture(scope='module')
def plain(target):
  return answers(target, None, 1)


def test_plain_decoding_tells_the_story(target, plain):
  want = stories260k.greedy(target, 60)
  assert plain[0].tokens == want


@pytest.mark.parametrize('num_rows', [1, 4])
def test_ngram_tells_the_same_stories_in_fewer_rounds(target, plain, num_rows):
  got = answers(target, ngram.NGram(), num_rows)
  assert [out.tokens for out in got] == [out.tokens for out in plain]
  assert sum(out.num_rounds for out in got) < 0.97 * 60 * len(got)


def test_random_dflash_tells_the_same_stories(target, plain):
  drafter = toy.drafter(target, mask_token_id=0)
  got = answers(target, drafter, 4)
  assert [out.tokens for out in got] == [out.tokens for out in plain]
  assert np.sum([out.num_drafted for out in got]) > 0
