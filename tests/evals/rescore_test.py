# SPDX-License-Identifier: MIT
"""Rescoring against whole forward passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.evals import rescore
from jspec.testing import toy


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=128)


@pytest.mark.slow
def test_logits_are_those_of_a_whole_pass(target):
  score = rescore.Rescore(target, num_nodes=5, max_len=128)
  text = toy.prompts(1, 100)[0]
  tokens = jnp.asarray(text)[None]
  positions = jnp.arange(100, dtype=jnp.int32)[None]
  hidden, _ = target.encode(tokens, positions, jnp.ones_like(tokens), ())
  want = np.asarray(target.logits(hidden[0]))
  # Less than a draft, around a chunk of 64, and as much as there is.
  for length in (1, 5, 6, 64, 65, 100):
    with jax.default_matmul_precision('highest'):
      got = score(text[:length].tolist())
    assert got.shape == (2, target.vocab_size)
    for row in got:
      np.testing.assert_allclose(row, want[length - 1], atol=2e-5)
  # Negative control: a neighbour's logits are far away.
  assert np.abs(got[0] - want[98]).max() > 0.1
