# SPDX-License-Identifier: MIT
"""A target by shapes alone is the placed one without its values."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jspec import errors
from jspec.targets import reading, sharding
from jspec.testing import toy
from tests.targets.sharding_test import (
  EVEN,
  LATENT,
  RICH,
  SPARSE,
  UNEVEN,
  mesh_of,
)


def described(target):
  return {
    path: (value.shape, value.dtype, value.sharding)
    for path, leaf in nnx.to_flat_state(nnx.state(target))
    for value in (leaf.get_value(),)
  }


@pytest.mark.parametrize(
  'num_devices, sizes',
  [
    (8, EVEN | RICH),
    (2, UNEVEN),
    (8, EVEN | SPARSE),
    (8, EVEN | SPARSE | LATENT),
  ],
)
def test_it_lies_as_the_placed_one(num_devices, sizes):
  target = toy.target(**sizes)
  placed = sharding.place(target, mesh_of(num_devices))
  found = reading.abstract(target.config, mesh=mesh_of(num_devices))
  assert jax.tree.structure(found) == jax.tree.structure(placed)
  kinds = {type(leaf) for leaf in jax.tree.leaves(found)}
  assert kinds == {jax.ShapeDtypeStruct}
  assert described(found) == described(placed)


def test_what_chooses_experts_stays_in_float32():
  config = toy.target(**EVEN | SPARSE).config
  found = reading.abstract(config, dtype='bfloat16')
  dtypes = {
    path[-1]: leaf.get_value().dtype
    for path, leaf in nnx.to_flat_state(nnx.state(found))
  }
  assert dtypes.pop('expert_bias') == jnp.float32
  assert set(dtypes.values()) == {jnp.dtype('bfloat16')}


def test_sizes_that_do_not_share_out_are_refused():
  config = toy.target(**EVEN | {'ff_width': 63}).config
  with pytest.raises(errors.UserError, match='feed-forward width of 63'):
    reading.abstract(config, mesh=mesh_of(2))
