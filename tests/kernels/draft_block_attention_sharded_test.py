# SPDX-License-Identifier: MIT
"""Draft blocks on a mesh: heads and rows shared out, nothing changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec.kernels.draft_block_attention import api, cases, sharded
from tests.kernels import draft_block_problem as problem

NAMES = ('out', 'q', 'k', 'v', 'context_k', 'context_v')


def mesh_of(rows, heads):
  devices = np.array(jax.devices()[: rows * heads]).reshape(rows, heads)
  return Mesh(devices, ('data', 'model'), axis_types=(AxisType.Auto,) * 2)


def make(num_heads, num_kv_heads, num_anchors=5):
  return problem.make(
    cases.Case(
      name='sharded',
      rows=2,
      num_anchors=num_anchors,
      block_size=4,
      num_heads=num_heads,
      num_kv_heads=num_kv_heads,
      head_width=8,
      context_len=40,
      num_documents=2,
    )
  )


def equals_one_device(num_heads, num_kv_heads, **axes):
  arrays, named = make(num_heads, num_kv_heads)

  def on_mesh(*arrays):
    return sharded.draft_block_attention(
      *arrays, **named, **axes, implementation='xla'
    )

  want = problem.value_and_gradients(
    lambda *arrays: api.draft_block_attention(
      *arrays, **named, implementation='reference'
    ),
    arrays,
  )
  got = problem.value_and_gradients(on_mesh, arrays)
  for name, x, y in zip(NAMES, got, want, strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'num_heads, num_kv_heads, shape',
  [
    (8, 4, (2, 4)),  # A key-value head a shard.
    (8, 8, (2, 2)),  # Several.
    (8, 2, (1, 8)),  # Fewer than shards: repeated.
    (9, 3, (2, 4)),  # They do not share out: all on every shard.
  ],
)
def test_equals_one_device_in_value_and_gradient(
  num_heads, num_kv_heads, shape
):
  equals_one_device(
    num_heads, num_kv_heads, mesh=mesh_of(*shape), heads='model', rows='data'
  )


@pytest.mark.slow
def test_heads_share_out_over_two_axes():
  equals_one_device(8, 4, mesh=mesh_of(2, 2), heads=('data', 'model'))


def test_anchors_share_out_over_a_context_that_is_whole():
  arrays, named = make(4, 2, num_anchors=8)

  def on_mesh(*arrays):
    return sharded.draft_block_attention(
      *arrays,
      **named,
      mesh=mesh_of(2, 4),
      rows=('data',),
      blocks='model',
      implementation='xla',
    )

  want = problem.value_and_gradients(
    lambda *arrays: api.draft_block_attention(
      *arrays, **named, implementation='reference'
    ),
    arrays,
  )
  got = problem.value_and_gradients(on_mesh, arrays)
  for name, x, y in zip(NAMES, got, want, strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)


def test_heads_that_do_not_share_out_are_refused():
  arrays, named = make(6, 6)
  with pytest.raises(ValueError, match='6 key-value heads.*4 shards'):
    sharded.draft_block_attention(
      *arrays, **named, mesh=mesh_of(1, 4), heads='model'
    )


def test_heads_of_a_shard_need_no_communication():
  arrays, named = make(8, 4)
  mesh = mesh_of(2, 4)

  def text(heads, spec):
    def run(*arrays):
      return sharded.draft_block_attention(
        *arrays,
        **named,
        mesh=mesh,
        heads=heads,
        rows='data',
        implementation='xla',
      )

    def place(x, spec):
      return jax.device_put(x, NamedSharding(mesh, spec))

    block = PartitionSpec('data', None, None, spec)
    context = PartitionSpec('data', None, spec)
    placed = [place(x, block) for x in arrays[:3]]
    placed += [place(x, context) for x in arrays[3:]]
    return jax.jit(run).lower(*placed).compile().as_text()

  assert 'all-gather' not in text('model', 'model')
  # The control: heads that lie apart but are computed together.
  assert 'all-gather' in text(None, 'model')


@pytest.mark.slow
def test_xla_spreads_the_rows_of_a_batch_by_itself():
  """Training shards rows without a `shard_map`: no row may be gathered."""
  arrays, named = make(4, 2)
  mesh = mesh_of(2, 1)
  placed = jax.device_put(
    (arrays, named['anchors'], named['segments']),
    NamedSharding(mesh, PartitionSpec('data')),
  )

  def loss(arrays, anchors, segments):
    out = api.draft_block_attention(
      *arrays, anchors=anchors, segments=segments, implementation='xla'
    )
    return jnp.sum(jnp.square(out))

  run = jax.jit(jax.value_and_grad(loss))
  value, grads = run(*placed)
  want, want_grads = run(arrays, named['anchors'], named['segments'])
  np.testing.assert_allclose(value, want, rtol=1e-5)
  for x, y in zip(grads, want_grads, strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5)
    assert x.sharding.spec[0] == 'data'
  text = run.lower(*placed).compile().as_text()
  assert 'all-gather' not in text and 'all-to-all' not in text
