# SPDX-License-Identifier: MIT
"""Tokens for heads: the attention of one device, and no whole context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jspec.nn import exchange, prefix_attention, spread
from tests.nn import meshes

S, H = 48, 8


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.mark.parametrize(
  'num_heads, num_kv_heads, num_shards, copies',
  [
    (32, 8, 8, 1),
    (32, 8, 4, 1),
    (32, 8, 16, 2),
    (32, 8, 32, 4),
    (32, 8, 64, None),  # Fewer query heads than devices.
    (9, 3, 3, 1),
    (9, 3, 9, 3),
    (9, 3, 8, None),
    (24, 4, 6, 3),  # Neither number divides the other: 2 copies a device.
    (24, 4, 8, 2),
    (
      40,
      8,
      16,
      None,
    ),  # A key-value head has 5 query heads, which do not halve.
    (7, 1, 2, None),
    (4, 2, 1, 1),
  ],
)
def test_copies_with_which_heads_share_out(
  num_heads, num_kv_heads, num_shards, copies
):
  assert exchange.copies(num_heads, num_kv_heads, num_shards) == copies


@pytest.mark.parametrize(
  'sizes, num_heads, num_kv_heads, heads, copies',
  [
    (dict(sequence=8), 32, 8, ('sequence',), 1),
    (dict(fsdp=2, sequence=4), 32, 8, ('sequence',), 1),
    (dict(sequence=2, model=2), 32, 8, ('model', 'sequence'), 1),
    (dict(sequence=4, model=2), 8, 4, ('model', 'sequence'), 2),
    # `model` has none of 3 heads, so all are for `sequence`.
    (dict(sequence=3, model=2), 9, 3, ('sequence',), 1),
    (dict(sequence=4, model=2), 4, 4, None, None),
    (dict(sequence=8), 9, 3, None, None),
    (dict(fsdp=8), 32, 8, None, None),
  ],
)
def test_heads_of_a_device_are_those_that_must_share_out(
  sizes, num_heads, num_kv_heads, heads, copies
):
  found = exchange.find(
    meshes.spread_over(**sizes), (2, 48, 1, num_heads, H), num_kv_heads
  )
  if heads is None:
    assert found is None
  else:
    assert (found.within, found.copies) == (heads, copies)


def _case(num_heads, num_kv_heads, num_own, num_rows=S, num_slots=1):
  """Arrays, and an attention with documents, padding, windows and limits."""
  rng = np.random.default_rng(0)
  rows = (2, num_rows)
  shapes = [
    (*rows, num_slots, num_heads, H),
    *[(*rows, num_own, num_kv_heads, H)] * 2,
    *[(2, S, num_kv_heads, H)] * 2,
  ]
  arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
  segments = jnp.asarray([[1] * 19 + [2] * 24 + [0] * 5, [1] * 40 + [2] * 8])
  index = jnp.sort(jnp.asarray(rng.integers(0, S, rows)), axis=1)
  # Every fifth row does not exist.
  limits = jnp.where(jnp.arange(num_rows) % 5 == 3, -1, index + 1)
  begins = index[..., None] - rng.integers(0, S, (*rows, num_slots))
  own = jnp.asarray(rng.random((*rows, num_slots, num_own)) < 0.7)

  def run(*arrays):
    return prefix_attention.prefix_attention(
      *arrays,
      own=own,
      limits=limits,
      row_segments=jnp.take_along_axis(segments, index, axis=1),
      segments=segments,
      begins=begins,
    )

  return arrays, run


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'sizes, shape',
  [
    (dict(sequence=8), (8, 8, 0)),
    (dict(sequence=8), (16, 4, 2)),  # Copies.
    (dict(sequence=8), (16, 8, 2, 20, 2)),  # 20 rows do not share out.
    (dict(fsdp=2, sequence=4), (8, 4, 1)),
    (dict(fsdp=2, sequence=4), (4, 2, 0, 24)),  # Copies.
    (dict(sequence=2, model=2), (4, 4, 2, S, 2)),
    (dict(fsdp=2, sequence=2, model=2), (4, 2, 3)),  # Copies.
    (dict(sequence=8), (9, 3, 2)),  # Gathered.
    (dict(sequence=2, model=2), (6, 2, 2)),  # Gathered.
  ],
)
def test_attention_is_that_of_one_device(sizes, shape):
  arrays, run = _case(*shape)
  if not arrays[1].size:
    # No own keys, and no gradient of them.
    empty, run_all = arrays[1:3], run
    arrays = [arrays[0], *arrays[3:]]

    def run(q, *context):
      return run_all(q, *empty, *context)

  meshes.check(run, arrays, meshes.spread_over(**sizes), tolerance=1e-5)


def _compiled(sizes, num_heads, num_kv_heads):
  """The gradient of an attention over arrays that lie by tokens."""
  arrays, run = _case(num_heads, num_kv_heads, 2)
  where = meshes.spread_over(**sizes)
  lies = NamedSharding(where.mesh, PartitionSpec(None, 'sequence'))

  def loss(*arrays):
    with spread.over(where):
      return jnp.sum(jnp.square(run(*arrays)))

  shapes = [
    jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lies) for x in arrays
  ]
  gradient = jax.grad(loss, argnums=(0, 1, 2, 3, 4))
  return jax.jit(gradient, out_shardings=lies).lower(*shapes).compile()


@pytest.mark.parametrize(
  'num_heads, num_kv_heads, is_whole', [(8, 8, False), (9, 9, True)]
)
def test_no_device_holds_the_context_of_all_heads(
  num_heads, num_kv_heads, is_whole
):
  """With 9 heads 8 devices must, which is what the test would see."""
  compiled = _compiled(dict(sequence=8), num_heads, num_kv_heads)
  text = compiled.as_text()
  size = 2 * S * num_kv_heads * H
  largest = max(np.prod(shape) for shape in meshes.shapes(text))
  gathered = [
    np.prod(shape)
    for line in text.splitlines()
    if ' all-gather(' in line
    for shape in meshes.shapes(line)
  ]
  assert (largest >= size) == is_whole
  assert (size in gathered) == is_whole
  assert (' all-to-all(' in text) != is_whole
