# SPDX-License-Identifier: MIT
"""The Mosaic GPU back end: lowered, and interpreted where there is no GPU."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.kernels.block_tree_attention import cases, gpu
from tests.kernels import attention_problem, gpu_interpreter

P = jax.sharding.PartitionSpec
BF16 = jnp.bfloat16
ALL = {
  case.name: case
  for case in cases.CASES
  if case.name != 'odd_page_count'  # Pages of 24 rows are refused, below.
}
PAGES = cases.Case(
  name='pages',
  lengths=(300, 64, 1),
  num_nodes=5,
  num_heads=4,
  num_kv_heads=2,
  head_width=32,
  pages_per_row=40,
  shape='tree',
)
SIZES = {
  f'pages_of_{size}': dataclasses.replace(
    PAGES, page_size=size, pages_per_row=-(-320 // size)
  )
  for size in (8, 64, 128)
}
SIZES['head_of_80'] = dataclasses.replace(PAGES, head_width=80)


def attend(arrays, named):
  """Calls the back end as the API does, compiled anew."""
  static = {
    'window': named['window'],
    'scale': arrays[0].shape[-1] ** -0.5,
  }
  rest = {name: value for name, value in named.items() if name != 'window'}
  function = functools.partial(gpu.block_tree_attention, **static)
  return jax.jit(function)(*arrays, **rest)


def interpreted(arrays, named):
  with gpu_interpreter.running():
    return np.asarray(attend(arrays, named).astype(jnp.float32))


def expect_naive(got, arrays, named, atol):
  np.testing.assert_allclose(
    got, attention_problem.naive(arrays, named), atol=atol
  )


def lowered(arrays, named, **changes):
  named = {'scale': 0.125, **named, **changes}
  static = {name: named.pop(name) for name in ('window', 'scale')}
  function = functools.partial(gpu.block_tree_attention, **static)
  exported = jax.export.export(jax.jit(function), platforms=['cuda'])(
    *arrays, **named
  )
  return exported.mlir_module()


# ------------------------------------------------------------ lowering, CUDA


@pytest.mark.few(1)
@pytest.mark.parametrize('name', [*ALL, *SIZES])
def test_lowers_to_one_mosaic_kernel(name):
  arrays, named = attention_problem.make((ALL | SIZES)[name], dtype=BF16)
  assert lowered(arrays, named).count('stablehlo.custom_call @mosaic_gpu') == 1


def test_float16_lowers_as_well():
  arrays, named = attention_problem.make(ALL['window'], dtype=jnp.float16)
  assert '@mosaic_gpu' in lowered(arrays, named)


def test_lowers_under_shard_map_over_key_value_heads():
  arrays, named = attention_problem.make(ALL['window'], dtype=BF16)
  axes = jax.sharding.AxisType.Auto
  mesh = jax.make_mesh((2,), ('heads',), axis_types=(axes,))
  by_head = P(None, None, 'heads')

  def one_shard(arrays, rest):
    return gpu.block_tree_attention(
      *arrays, **rest, window=16, sinks=None, scale=0.125, num_nodes=None
    )

  names = ('layer', 'page_ids', 'lengths', 'ancestors', 'depths')
  rest = {name: named[name] for name in names}
  run = jax.shard_map(
    one_shard, mesh=mesh, in_specs=(by_head, P()), out_specs=by_head
  )
  exported = jax.export.export(jax.jit(run), platforms=['cuda'])(arrays, rest)
  assert '@mosaic_gpu' in exported.mlir_module()
  assert exported.nr_devices == 2


# ---------------------------------------------------------------- interpreted

# The rest say the same at more length.
FAST = (
  'plain_one_row',
  'tree_two_words',
  'unequal_depth',
  'pages_of_128',
)


@pytest.mark.parametrize(
  'name',
  [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in [*ALL, *SIZES]
  ],
)
def test_equals_naive_softmax(name):
  """Half precision: the values and the weights are rounded to 11 bits."""
  arrays, named = attention_problem.make((ALL | SIZES)[name], dtype=jnp.float16)
  expect_naive(interpreted(arrays, named), arrays, named, atol=4e-3)


@pytest.mark.slow
def test_bfloat16_is_as_close_as_its_rounding():
  arrays, named = attention_problem.make(ALL['window_and_sinks'], dtype=BF16)
  expect_naive(interpreted(arrays, named), arrays, named, atol=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize('num_shares', [3, 7])
def test_shares_of_a_context_merge_to_the_whole(num_shares, monkeypatch):
  case = dataclasses.replace(
    PAGES, lengths=(1, 64, 300), page_size=16, pages_per_row=19
  )
  asked = []

  def shares(num_programs, capacity):
    asked.append((num_programs, capacity))
    return num_shares

  monkeypatch.setattr(gpu, '_num_shares', shares)
  arrays, named = attention_problem.make(case, dtype=jnp.float16)
  named['sinks'] = jnp.array([1.0, -2.0, 0.0, 30.0])
  expect_naive(interpreted(arrays, named), arrays, named, atol=4e-3)
  assert asked == [(3 * 2 * 1, 304)]


def test_shares_fill_the_device_and_are_worth_their_merge():
  assert gpu._num_shares(8, 2**17) == gpu.MAX_SHARES
  assert gpu._num_shares(88, 2**17) == 3
  assert gpu._num_shares(8, 2048) == 8
  assert gpu._num_shares(5000, 2**17) == 1
  assert gpu._num_shares(1, 16) == 1


@pytest.mark.slow
def test_a_node_outside_the_ancestors_has_no_influence():
  arrays, named = attention_problem.make(ALL['empty_prefix'], dtype=jnp.float16)
  q, k, v, *pools = arrays
  before = interpreted(arrays, named)
  changed = interpreted(
    (q, k.at[:, 3].add(1.0), v.at[:, 3].add(1.0), *pools), named
  )
  np.testing.assert_array_equal(changed[:, :3], before[:, :3])
  assert np.abs(changed[:, 3:] - before[:, 3:]).max(axis=-1).min() > 0


@pytest.mark.slow
def test_a_tree_row_equals_the_chain_of_its_path():
  num_nodes = 65
  case = dataclasses.replace(
    PAGES, lengths=(37,), num_nodes=num_nodes, pages_per_row=2
  )
  arrays, named = attention_problem.make(case, dtype=jnp.float16)
  whole = interpreted(arrays, named)[0]
  words = np.asarray(named['ancestors'])[0, num_nodes - 1]
  path = [j for j in range(num_nodes) if words[j // 32] >> (j % 32) & 1]
  assert 1 < len(path) < num_nodes
  q, k, v, *pools = arrays
  picked = [x[:, np.array(path)] for x in (q, k, v)]
  chain = dict(named, ancestors=tree.chain_words(1, len(path)), depths=None)
  out = interpreted((*picked, *pools), chain)[0]
  np.testing.assert_allclose(whole[path], out, atol=1e-3)


def test_the_interpreter_notices_a_wait_that_is_missing(monkeypatch):
  """Negative control: else the runs above would prove nothing of barriers."""
  arrays, named = attention_problem.make(ALL['empty_prefix'], dtype=jnp.float16)
  plgpu = gpu.gpu_kernel.plgpu
  wait, waits = plgpu.barrier_wait, []

  def wait_but_not_for_the_queries(barrier):
    waits.append(barrier)
    if len(waits) > 1:
      wait(barrier)

  monkeypatch.setattr(plgpu, 'barrier_wait', wait_but_not_for_the_queries)
  with pytest.raises(RuntimeError, match='the kernel races'):
    interpreted(arrays, named)
  assert len(waits) > 1


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
  ('changes', 'dtype', 'message'),
  [
    ({}, jnp.float32, 'operands are float32; they must all be bfloat16'),
    ({'head_width': 72}, BF16, '72 wide; it takes multiples of 16'),
    ({'head_width': 272}, BF16, '272 wide; it takes .* up to 256'),
    ({'page_size': 24}, BF16, 'pages have 24 rows; it takes 8, 16'),
    ({'page_size': 96}, BF16, 'pages have 96 rows'),
  ],
)
def test_what_the_kernel_cannot_do_is_refused(
  changes, dtype, message, monkeypatch
):
  monkeypatch.setattr(gpu.gpu_kernel, 'run', None)  # Refused before tracing.
  case = dataclasses.replace(PAGES, lengths=(3,), pages_per_row=2, **changes)
  arrays, named = attention_problem.make(case, dtype=dtype)
  with pytest.raises(NotImplementedError, match=message) as refusal:
    gpu.block_tree_attention(*arrays, **named, scale=1.0)
  assert "use implementation='xla'" in str(refusal.value)
  assert '\n' not in str(refusal.value)


def test_mixed_dtypes_are_refused():
  arrays, named = attention_problem.make(ALL['window'], dtype=BF16)
  arrays = (arrays[0].astype(jnp.float16), *arrays[1:])
  with pytest.raises(NotImplementedError, match='bfloat16 and float16'):
    gpu.block_tree_attention(*arrays, **named, scale=1.0)


# --------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize('dtype', [BF16, jnp.float16])
@pytest.mark.parametrize('name', [*ALL, *SIZES])
def test_equals_naive_softmax_on_a_gpu(name, dtype):
  arrays, named = attention_problem.make((ALL | SIZES)[name], dtype=dtype)
  got = np.asarray(attend(arrays, named).astype(jnp.float32))
  atol = {BF16: 3e-2, jnp.float16: 4e-3}[dtype]
  expect_naive(got, arrays, named, atol)
