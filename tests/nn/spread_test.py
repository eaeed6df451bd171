# SPDX-License-Identifier: MIT
"""What is traced for a mesh is what is traced for one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, PartitionSpec

from jspec.nn import moe, prefix_attention, spread

AXES = ('fsdp', 'expert', 'sequence', 'model')


def spread_over(**sizes):
  """A spread over axes of these sizes."""
  shape = [sizes.get(axis, 1) for axis in AXES]
  devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
  mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))

  def axis(name):
    return name if name in sizes else None

  return spread.Spread(
    mesh,
    rows=tuple(a for a in ('fsdp', 'expert') if a in sizes),
    tokens=axis('sequence'),
    heads=axis('model'),
    experts=axis('expert') or axis('model'),
    weight=lambda name, shape: PartitionSpec(),
  )


def values_and_grads(function, arrays, where=None):
  """Of a sum of squares; on a mesh or not."""

  def loss(*arrays):
    if where is None:
      return jnp.sum(jnp.square(function(*arrays)))
    with spread.over(where):
      return jnp.sum(jnp.square(function(*arrays)))

  return jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arrays)))))(
    *arrays
  )


def check(function, arrays, where):
  value, grads = values_and_grads(function, arrays, where)
  want, want_grads = values_and_grads(function, arrays)
  np.testing.assert_allclose(value, want, rtol=1e-5)
  for x, y in zip(grads, want_grads, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    assert np.abs(y).max() > 1e-3


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

  check(run, (x, *arrays.values()), spread_over(**sizes))


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'sizes', [dict(fsdp=2, sequence=4), dict(sequence=2, model=2)]
)
def test_rows_share_out_over_the_whole_context(sizes):
  rng = np.random.default_rng(0)
  shapes = [(2, 8, 1, 4, 8), *[(2, 8, 2, 2, 8)] * 2, *[(2, 12, 2, 8)] * 2]
  arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
  segments = jnp.asarray([[1] * 7 + [2] * 5, [1] * 10 + [0] * 2])

  def run(*arrays):
    return prefix_attention.prefix_attention(
      *arrays,
      own=jnp.ones((1, 2), bool),
      limits=jnp.asarray(
        [[0, 1, 2, 5, 6, 8, 9, 12], [-1, 0, 3, 4, 5, 6, 7, 9]]
      ),
      row_segments=jnp.asarray([[1] * 5 + [2] * 3, [1] * 7 + [0]]),
      segments=segments,
    )

  check(run, arrays, spread_over(**sizes))


def test_outside_of_a_mesh_nothing_is_done():
  x = jnp.ones((2, 4, 8))
  for function in (spread.stream, spread.context, spread.weights):
    assert function(x) is x
  assert spread.flat(jnp.ones((2, 4, 3, 5))).shape == (2, 12, 5)
  assert spread.now() is None


def test_pieces_are_those_of_a_device():
  where = spread_over(sequence=4)
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
