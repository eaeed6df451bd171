# SPDX-License-Identifier: MIT
"""What is traced for a mesh is what is traced for one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jspec.nn import moe, spread
from tests.nn import meshes


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'sizes',
  [
    dict(expert=4),
    dict(fsdp=2, expert=2),
    dict(fsdp=2, model=4),
    dict(fsdp=4),
    dict(expert=2, sequence=2),
  ],
)
def test_experts_get_the_gradients_of_all_rows(sizes):
  config = moe.MoeConfig(width=8, num_experts=8, top_k=2, ff_width=6)
  rng = np.random.default_rng(0)
  arrays = {
    name: jnp.asarray(rng.normal(size=shape), jnp.float32)
    for name, shape in moe.array_shapes(config).items()
  }
  x = jnp.asarray(rng.normal(size=(4, 6, 8)), jnp.float32)

  def run(x, *arrays_of):
    made = moe.Moe(config, dict(zip(arrays, arrays_of, strict=True)))
    return made(x)

  meshes.check(run, (x, *arrays.values()), meshes.spread_over(**sizes))


def test_rows_of_a_table_are_looked_up_by_columns():
  """No device has all of a row's tokens, whole, at any time."""
  where = meshes.spread_over(fsdp=2, sequence=4)
  rng = np.random.default_rng(0)
  table = jnp.asarray(rng.normal(size=(512, 8)), jnp.float32)
  tokens = jnp.asarray(rng.integers(0, 512, (2, 48)))

  def run(table, tokens):
    with spread.over(where):
      return spread.lookup(table, tokens)

  lies = [
    jax.device_put(x, NamedSharding(where.mesh, PartitionSpec(*spec)))
    for x, spec in ((table, ['sequence']), (tokens, ['fsdp', 'sequence']))
  ]

  def is_whole(compiled):
    shapes = meshes.shapes(compiled.as_text())
    return any(x[-1] == 8 and np.prod(x) == 48 * 8 for x in shapes)

  compiled = jax.jit(run).lower(*lies).compile()
  np.testing.assert_array_equal(compiled(*lies), table[tokens])
  assert not is_whole(compiled)
  # The control: what is not said is added up from summands of many tokens.
  plain = jax.jit(
    lambda table, tokens: table[tokens], out_shardings=lies[1].sharding
  )
  assert is_whole(plain.lower(*lies).compile())
  with spread.over(where):
    assert spread.lookup(table[:, :7], tokens).shape == (2, 48, 7)


def test_outside_of_a_mesh_nothing_is_done():
  x = jnp.ones((2, 4, 8))
  for function in (spread.stream, spread.context, spread.weights):
    assert function(x) is x
  assert spread.flat(jnp.ones((2, 4, 3, 5))).shape == (2, 12, 5)
  assert spread.now() is None


def test_pieces_are_those_of_a_device():
  where = meshes.spread_over(sequence=4)
  x = jnp.arange(2 * 8 * 3).reshape(2, 8, 3)
  with spread.over(where):
    pieces = jax.jit(spread.flat)(x)
    odd = spread.flat(jnp.ones((2, 7, 3)))
  assert odd.shape == (2, 21)
  np.testing.assert_array_equal(pieces, x.reshape(2, 4, 6))
  assert spread.now() is None


def test_arrays_have_names_whatever_holds_them():
  class Layer(nnx.Module):
    def __init__(self):
      self.qkv = nnx.Param(jnp.ones(2))

  class Stack(nnx.Module):
    def __init__(self):
      self.layers = nnx.List([Layer()])

  for tree in (
    Stack(),
    nnx.state(Stack()),
    {'layers.qkv': 1.0},
    ({'layers.qkv.2': 1.0},),
  ):
    ((path, _),) = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert spread.name(path) == 'qkv'
