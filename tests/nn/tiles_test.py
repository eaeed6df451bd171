# SPDX-License-Identifier: MIT
"""Weights in tiles multiply as they do whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.cache import paged
from jspec.nn import tiles
from jspec.targets import transformer
from jspec.testing import toy


@pytest.mark.parametrize('batch', [(1,), (4,), (2, 3)])
def test_tiles_multiply_like_the_whole_weight(batch):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(*batch, 24)), jnp.float32)
  weight = jnp.asarray(rng.normal(size=(24, 192)), jnp.float32)
  cut = tiles.cut(weight)
  assert cut.shape == (3, 24, 64)
  np.testing.assert_allclose(tiles.matmul(x, cut), x @ weight, atol=1e-5)


def test_columns_that_do_not_divide_stay_whole():
  weight = jnp.ones((8, 100))
  assert tiles.cut(weight) is weight


@pytest.mark.parametrize('rows, small', [(1, False), (2, True), (7, False)])
def test_tiles_are_for_a_few_rows(rows, small):
  assert tiles.is_small(jnp.ones((rows, 1, 8))) == small


@pytest.mark.slow
def test_a_target_with_tiles_scores_the_same():
  shapes = dict(num_heads=8, num_kv_heads=4, width=64, ff_width=64)
  config = toy.target(**shapes, vocab_size=128).config
  key = jax.random.key(0)
  arrays = {}
  for name, shape in transformer.array_shapes(config).items():
    key, subkey = jax.random.split(key)
    arrays[name] = 0.3 * jax.random.normal(subkey, shape)
  whole = transformer.Transformer(config, arrays, is_split=True)
  cut = transformer.Transformer(config, arrays, is_split=True)
  cut.add_tiles()
  assert cut.tiled[0].down[...].ndim == cut.tiled_head[...].ndim == 3
  tokens = jnp.arange(4, dtype=jnp.int32)[None]
  cache = paged.PagedCache(
    paged.init_pages(config.num_layers, 2, 4, 4, config.head_width),
    paged.contiguous_table(1, 2),
  )

  def logits(target):
    scored = target.score(tokens, tokens, tree.chain_words(1, 4), cache, ())
    return target.logits(scored.hidden)

  np.testing.assert_allclose(logits(cut), logits(whole), atol=1e-4, rtol=1e-4)
  # The tiles took part: they are read, so other ones give other logits.
  cut.tiled_head[...] = 2 * cut.tiled_head[...]
  assert np.abs(logits(cut) - logits(whole)).max() > 0.1
