# SPDX-License-Identifier: MIT
"""The toy engine of tests/serve behind HTTP, and what it must answer."""

import contextlib

import numpy as np
import pytest

from jspec.decode import generate, sampling
from jspec.drafters import ngram
from jspec.testing import toy
from tests.evals import unchecked
from tests.serve import small
from tests.server import fake, running

MAX_TOKENS = 24
NUM_PROMPTS = 24


def prompts():
  """Texts of printable characters, of which some repeat themselves."""
  rng = np.random.default_rng(5)
  found = []
  for i in range(NUM_PROMPTS):
    stem = ''.join(map(chr, rng.integers(97, 101, 3 + i % 5)))
    found.append((stem * 9)[: 4 + i])
  return found


def make():
  """A target whose answers end, and an engine of it with drafts."""
  target = toy.target(vocab_size=fake.VOCAB_SIZE, max_len=small.MAX_LEN)
  return target, small.make(target, ngram.NGram(3))


def expected(target, texts, **params):
  """What plain decoding says to each text."""
  tokenizer = fake.vocabulary()
  with unchecked.constructors(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(target, None, max_len=small.MAX_LEN, num_rows=8)
  outputs = decoder.generate(
    [tokenizer.encode(text) for text in texts],
    [
      sampling.SamplingParams(
        max_tokens=MAX_TOKENS, stop_ids=(fake.END,), **params
      )
    ]
    * len(texts),
  )
  return [tokenizer.decode(output.tokens) for output in outputs]


@contextlib.contextmanager
def serving(engine, **changes):
  """Serves a toy engine."""
  with running.serving(
    engine,
    context_len=engine.sizes.scheduler.limit,
    drafters={'ngram': None},
    **changes,
  ) as server:
    yield server
