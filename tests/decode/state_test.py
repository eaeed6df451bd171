# SPDX-License-Identifier: MIT
"""The state holds rows as the target computes them."""

import jax
import jax.numpy as jnp
import pytest

from jspec.decode import round as round_lib
from jspec.testing import toy


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_pages_have_the_dtype_of_the_target(dtype):
  # A pool of another is cast whole, round by round.
  target = jax.tree.map(lambda leaf: leaf.astype(dtype), toy.target())
  state = round_lib.init_state(
    target, None, num_rows=1, max_len=8, page_size=8, num_stop_ids=1
  )
  assert state.cache.pages.k.dtype == state.cache.pages.v.dtype == dtype
  scored = target.score(
    jnp.zeros((1, 1), jnp.int32),
    jnp.zeros((1, 1), jnp.int32),
    jnp.ones((1, 1, 1), jnp.uint32),
    state.cache,
    (),
  )
  assert scored.k.dtype == dtype
