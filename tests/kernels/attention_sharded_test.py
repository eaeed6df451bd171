# SPDX-License-Identifier: MIT
"""Attention and commit on a mesh: heads shared out, nothing changes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec.kernels import choose
from jspec.kernels.block_tree_attention import api as attention_api
from jspec.kernels.block_tree_attention import cases as attention_cases
from jspec.kernels.block_tree_attention import ref as attention_ref
from jspec.kernels.block_tree_attention import sharded as attention
from jspec.kernels.kv_commit import cases as commit_cases
from jspec.kernels.kv_commit import ref as commit_ref
from jspec.kernels.kv_commit import sharded as commit
from tests.kernels import attention_problem, commit_problem, tpu_interpreter

Case = functools.partial(
  attention_cases.Case,
  name='sharded',
  lengths=(40, 0, 17),
  num_nodes=5,
  head_width=64,
  pages_per_row=2,
  live_nodes=(5, 2, 4),
  shape='tree',
  window=24,
  has_sinks=True,
)
HEADS = [
  (16, 8, 8),  # Query heads, key-value heads, shards: one head a shard.
  (8, 8, 4),  # Several.
  (8, 2, 8),  # Fewer than shards: all on every shard.
]


def mesh_of(num_devices):
  devices = np.array(jax.devices()[:num_devices])
  return Mesh(devices, ('model',), axis_types=(AxisType.Auto,))


def attend(arrays, named, mesh, implementation):
  static = dict(window=named['window'], scale=arrays[0].shape[-1] ** -0.5)
  rest = {name: x for name, x in named.items() if name != 'window'}
  if mesh is None:
    function = functools.partial(attention_ref.block_tree_attention, **static)
  else:
    function = functools.partial(
      attention.block_tree_attention,
      mesh=mesh,
      heads='model',
      implementation=implementation,
      **static,
    )
  return jax.block_until_ready(jax.jit(function)(*arrays, **rest))


@pytest.mark.few(3)
@pytest.mark.parametrize('num_heads, num_kv_heads, num_shards', HEADS)
@pytest.mark.parametrize('implementation', ['reference', 'xla'])
def test_attention_equals_one_device(
  num_heads, num_kv_heads, num_shards, implementation
):
  case = Case(num_heads=num_heads, num_kv_heads=num_kv_heads)
  arrays, named = attention_problem.make(case)
  got = attend(arrays, named, mesh_of(num_shards), implementation)
  want = attend(arrays, named, None, None)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize('num_heads, num_kv_heads, num_shards', HEADS)
def test_packed_attention_equals_one_device(
  num_heads, num_kv_heads, num_shards
):
  case = Case(num_heads=num_heads, num_kv_heads=num_kv_heads)
  (*nodes, k_pages, v_pages), named = attention_problem.make(case)
  live = np.array(case.live_nodes)
  rows, nodes_of = np.nonzero(np.arange(case.num_nodes) < live[:, None])
  packed = [x[rows, nodes_of] for x in (*nodes, named['ancestors'])]
  rest = {
    name: named[name] for name in ('layer', 'page_ids', 'lengths', 'sinks')
  }
  rest['depths'] = named['depths'][rows, nodes_of]
  rest['starts'] = jnp.asarray(np.cumsum([0, *live]), jnp.int32)
  static = dict(max_nodes=case.num_nodes, window=named['window'])

  def run(function, **more):
    function = functools.partial(function, **static, **more)
    return jax.jit(function)(
      *packed[:3], k_pages, v_pages, ancestors=packed[3], **rest
    )

  got = run(attention.packed, mesh=mesh_of(num_shards), heads='model')
  want = run(attention_api.packed)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_shards_of_a_mesh_of_tpus_take_the_kernel(monkeypatch):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  found = []

  def ask(x):
    found.append(choose.best(attention_api.IMPLEMENTATIONS))
    return x

  spread = jax.shard_map(
    ask,
    mesh=mesh_of(2),
    in_specs=PartitionSpec('model'),
    out_specs=PartitionSpec('model'),
  )
  jax.eval_shape(spread, jnp.zeros(2))
  assert found[0] == ('tpu', 'xla')
  # XLA would have to share a kernel out by itself here.
  ask(None)
  assert found[1] == ('xla',)


def write(problem, mesh, implementation):
  function = functools.partial(
    commit.kv_commit, mesh=mesh, heads='model', implementation=implementation
  )
  arrays = jax.tree.map(jnp.asarray, problem)
  return jax.block_until_ready(jax.jit(function)(**arrays))


@pytest.mark.few(3)
@pytest.mark.parametrize('_, num_kv_heads, num_shards', HEADS)
@pytest.mark.parametrize('implementation', ['reference', 'xla'])
def test_commit_equals_one_device(_, num_kv_heads, num_shards, implementation):
  case = commit_cases.Case(
    name='sharded',
    lengths=(14, 3, 30),
    num_rows=(4, 3, 0),
    num_kv_heads=num_kv_heads,
    head_width=64,
  )
  problem = commit_problem.make(case)
  got = write(problem, mesh_of(num_shards), implementation)
  for ours, theirs in zip(got, commit_ref.kv_commit(**problem), strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_pools_are_spread_and_nothing_is_communicated():
  mesh = mesh_of(4)
  case = Case(num_heads=8, num_kv_heads=4)
  (*nodes, k_pages, v_pages), named = attention_problem.make(case)

  def text(spec):
    pools = jax.device_put((k_pages, v_pages), NamedSharding(mesh, spec))
    static = dict(window=named['window'], implementation='xla')
    function = functools.partial(
      attention.block_tree_attention, mesh=mesh, heads='model', **static
    )
    rest = {name: x for name, x in named.items() if name != 'window'}
    lowered = jax.jit(function).lower(*nodes, *pools, **rest)
    return lowered.compile().as_text()

  talk = re.compile('all-gather|all-to-all|collective-permute')
  assert not talk.search(text(attention.pool_spec(4, mesh, 'model')))
  # The control: rows of a page that lie apart have to be brought together.
  assert talk.search(text(PartitionSpec(None, None, None, 'model')))


def test_heads_that_do_not_share_out_are_refused():
  case = Case(num_heads=6, num_kv_heads=6)
  arrays, named = attention_problem.make(case)
  with pytest.raises(ValueError, match='6 key-value heads.*4 shards.*use'):
    attend(arrays, named, mesh_of(4), 'xla')


@pytest.mark.slow
@pytest.mark.parametrize('num_kv_heads', [2, 1])
def test_tpu_kernels_on_two_devices(num_kv_heads):
  mesh = mesh_of(2)
  case = Case(num_heads=4, num_kv_heads=num_kv_heads, num_layers=2)
  arrays, named = attention_problem.make(case)
  with tpu_interpreter.running():
    got = attend(arrays, named, mesh, 'tpu')
  want = attend(arrays, named, None, None)
  np.testing.assert_allclose(got, want, atol=1e-5)

  problem = commit_problem.make(
    commit_cases.Case(
      name='sharded',
      lengths=(14, 3),
      num_rows=(4, 0),
      num_kv_heads=num_kv_heads,
    )
  )
  with tpu_interpreter.running():
    got = write(problem, mesh, 'tpu')
  for ours, theirs in zip(got, commit_ref.kv_commit(**problem), strict=True):
    np.testing.assert_array_equal(ours, theirs)
