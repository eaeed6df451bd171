# SPDX-License-Identifier: MIT
"""Packed grammar masks, bit by bit."""

import jax
import numpy as np
import pytest

from jspec.decode import grammar, sampling

mask = jax.jit(grammar.mask)
argmax = jax.jit(sampling.argmax)
sample = jax.jit(sampling.sample)


def pack(allowed):
  """Bit v % 32 of word v // 32, with Python's integers."""
  rows, vocab = allowed.shape
  words = np.zeros((rows, grammar.num_words(vocab)), np.uint32)
  for row, v in np.argwhere(allowed):
    words[row, v // 32] |= np.uint32(1 << (int(v) % 32))
  return words


@pytest.mark.parametrize('vocab', [1, 31, 32, 33, 70, 256])
def test_only_allowed_tokens_keep_their_logits(vocab):
  rng = np.random.default_rng(vocab)
  z = rng.normal(size=(6, vocab)).astype(np.float32)
  allowed = rng.uniform(size=z.shape) < 0.5
  has_mask = np.array([True, False, True, True, False, True])
  # One more word than needed, with bits that stand for no token.
  words = np.pad(pack(allowed), ((0, 0), (0, 1)), constant_values=2**32 - 1)
  expected = np.where(allowed | ~has_mask[:, None], z, -np.inf)
  np.testing.assert_array_equal(mask(z, words, has_mask), expected)
  # Words the other way round are another mask.
  if vocab > 32:
    turned = mask(z, pack(allowed)[:, ::-1].copy(), has_mask)
    assert (np.asarray(turned) != expected).any()


def test_logits_keep_every_bit_without_a_mask():
  z = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45]], np.float32)
  z = z.repeat(2, 0)
  words = np.zeros((2, 1), np.uint32)
  for has_mask in ([False, False], [False, True]):
    found = np.asarray(mask(z, words, np.array(has_mask)))
    np.testing.assert_array_equal(
      found.view(np.uint32)[0], z.view(np.uint32)[0]
    )
  assert (found[1] == -np.inf).all()


def test_a_mask_that_allows_nothing_is_reported_by_the_sampler():
  z = np.zeros((2, 40), np.float32)
  words = np.zeros((2, 2), np.uint32)
  words[1, 1] = 1 << 3
  found = mask(z, words, np.array([True, True]))
  assert argmax(found).tolist() == [-1, 35]
  params = sampling.stack([sampling.SamplingParams(temperature=1.0)] * 2)
  tokens = sample(found, params, np.array([0.5, 0.5], np.float32))
  assert tokens.tolist() == [-1, 35]


def test_too_few_words_are_refused():
  with pytest.raises(ValueError, match='pad the mask'):
    mask(
      np.zeros((1, 33), np.float32),
      np.zeros((1, 1), np.uint32),
      np.ones(1, bool),
    )
