# SPDX-License-Identifier: MIT
"""Draft blocks see what they should, in value and gradient, and no more."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.kernels.draft_block_attention import api, blockwise, cases
from tests.kernels import draft_block_problem as problem

ON_CPU = ('reference', 'xla')
NAMES = ('out', 'q', 'k', 'v', 'context_k', 'context_v')


def attend(named, implementation):
  return functools.partial(
    api.draft_block_attention, **named, implementation=implementation
  )


@pytest.mark.few(2)
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
def test_equals_dense_attention_on_the_expanded_problem(case):
  arrays, named = problem.make(case)
  seen = problem.mask(**named, block_size=case.block_size)
  want = problem.value_and_gradients(
    lambda *arrays: problem.expanded(arrays, seen), arrays
  )
  for implementation in ON_CPU:
    got = problem.value_and_gradients(attend(named, implementation), arrays)
    for name, x, y in zip(NAMES, got, want, strict=True):
      np.testing.assert_allclose(
        x, y, atol=2e-5, err_msg=f'{implementation} {name}'
      )
  assert all(np.abs(x).max() > 1e-2 for x in want)


@pytest.mark.parametrize('implementation', ON_CPU)
def test_an_anchor_sees_its_own_document_and_block_only(implementation):
  """The gradient of one block's output marks what it sees, exactly."""
  case = cases.CASES[1]
  arrays, named = problem.make(case)
  seen = problem.mask(**named, block_size=case.block_size)
  run = attend(named, implementation)
  length = case.context_len

  @jax.jit
  def touched(row, anchor):
    grads = jax.grad(
      lambda *arrays: jnp.sum(jnp.square(run(*arrays)[row, anchor])),
      argnums=(1, 2, 3, 4),
    )(*arrays)
    return [jnp.any(x != 0, axis=(-2, -1)) for x in grads]

  for row, anchor in ((0, 0), (0, 20), (1, 11), (1, case.num_anchors - 1)):
    own_k, own_v, context_k, context_v = touched(row, anchor)
    expected = np.zeros((case.rows, seen.shape[-1]), bool)
    expected[row] = seen[row, anchor].any(0)
    for own, context in ((own_k, context_k), (own_v, context_v)):
      got = np.concatenate([context, own.reshape(case.rows, -1)], axis=1)
      np.testing.assert_array_equal(got, expected)
  # The control: the blocks differ, and the last one of row 1 is none at all.
  assert seen[0, 20, 0, :length].sum() > seen[0, 0, 0, :length].sum() == 0
  assert not expected.any()


@pytest.mark.parametrize('implementation', ON_CPU)
def test_a_missing_block_gives_zeros_whatever_it_holds(implementation):
  arrays, named = problem.make(cases.CASES[1])
  missing = np.asarray(named['anchors']) < 0
  padding = np.asarray(named['segments']) == 0
  # An anchor in padding is none either.
  named['anchors'] = named['anchors'].at[0, 3].set(int(padding[0].argmax()))
  missing[0, 3] = True
  blank = jnp.asarray(missing)[:, :, None, None, None]
  dirty = [jnp.where(blank, jnp.nan, x) for x in arrays[:3]]
  got = problem.value_and_gradients(
    attend(named, implementation), (*dirty, *arrays[3:])
  )
  for name, x in zip(NAMES, got, strict=True):
    assert np.all(np.isfinite(x)), name
  for x in got[:4]:
    assert np.all(np.asarray(x)[missing] == 0)
    assert np.any(np.asarray(x)[~missing] != 0)


def test_bfloat16_is_within_its_rounding():
  arrays, named = problem.make(cases.CASES[1])
  narrow = tuple(x.astype(jnp.bfloat16) for x in arrays)
  wide = tuple(x.astype(jnp.float32) for x in narrow)
  want = problem.value_and_gradients(attend(named, 'reference'), wide)
  got = problem.value_and_gradients(attend(named, 'xla'), narrow)
  for name, x, y in zip(NAMES, got, want, strict=True):
    assert x.dtype == jnp.bfloat16
    # Products of bfloat16 weights: 2 ** -8 of the largest term or so.
    tolerance = 0.02 * np.abs(y).max()
    np.testing.assert_allclose(
      x.astype(jnp.float32), y, atol=tolerance, err_msg=name
    )


def test_equals_decoding_one_block_behind_a_cache_under_a_window():
  case = cases.CASES[2]
  arrays, named = problem.make(case)
  q, k, v, context_k, context_v = arrays
  trained = jax.jit(attend(named, 'xla'))(*arrays)
  row, block, size = 0, 12, case.block_size
  anchor = int(named['anchors'][row, block])
  segments = np.asarray(named['segments'][row])
  start = int((segments == segments[anchor]).argmax())
  num_rows = anchor - start
  assert num_rows > case.window
  pool = jnp.zeros((1, 1, case.num_kv_heads, num_rows, case.head_width))

  def page(rows):
    rows = rows[row, start:anchor].swapaxes(0, 1)
    return pool.at[0, 0].set(rows)

  decoded = block_tree_attention.block_tree_attention(
    *(x[row, block][None] for x in (q, k, v)),
    page(context_k),
    page(context_v),
    layer=jnp.zeros((), jnp.int32),
    page_ids=jnp.zeros((1, 1), jnp.int32),
    lengths=jnp.full((1,), num_rows, jnp.int32),
    ancestors=jnp.full((1, size, 1), 2**size - 1, jnp.uint32),
    depths=jnp.arange(size)[None],
    window=case.window,
    implementation='reference',
  )
  np.testing.assert_allclose(trained[row, block], decoded[0], atol=1e-5)


def test_context_that_no_anchor_sees_is_not_visited():
  case = dataclasses.replace(cases.CASES[1], num_documents=1, context_len=1024)
  arrays, named = problem.make(case)
  anchors = named['anchors']
  named['anchors'] = jnp.where(anchors < 0, -1, anchors % 100 + 300)
  # What is visited shows as NaN, masked or not.
  first, end = 256, 512
  assert first % blockwise.BLOCK_LEN == end % blockwise.BLOCK_LEN == 0
  named['window'] = 40
  index = np.arange(case.context_len)[:, None, None]
  hidden = (index < first) | (index >= end)
  dirty = (*arrays[:3], *(jnp.where(hidden, jnp.nan, x) for x in arrays[3:]))
  for x in problem.value_and_gradients(attend(named, 'xla'), dirty):
    assert np.all(np.isfinite(x))
  out = jax.jit(attend(named, 'reference'))(*dirty)
  assert np.any(np.isnan(out)), 'the control visits everything'


def test_memory_does_not_grow_with_anchors_times_context():
  def peak(implementation, factor):
    case = dataclasses.replace(
      cases.CASES[1],
      num_anchors=64 * factor,
      context_len=1024 * factor,
      num_documents=1,
    )
    arrays, named = jax.eval_shape(lambda: problem_shapes(case))

    def loss(arrays, named):
      out = api.draft_block_attention(
        *arrays, **named, implementation=implementation
      )
      return jnp.sum(jnp.square(out))

    compiled = jax.jit(jax.grad(loss)).lower(arrays, named).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert peak('xla', 4) < 5 * peak('xla', 1)
  assert peak('reference', 4) > 12 * peak('reference', 1)


def problem_shapes(case):
  """Arrays of a case without their numbers."""
  block = (case.rows, case.num_anchors, case.block_size)
  own = jnp.zeros((*block, case.num_kv_heads, case.head_width))
  context = jnp.zeros(
    (case.rows, case.context_len, case.num_kv_heads, case.head_width)
  )
  q = jnp.zeros((*block, case.num_heads, case.head_width))
  named = dict(
    anchors=jnp.zeros(block[:2], jnp.int32),
    segments=jnp.zeros(context.shape[:2], jnp.int32),
  )
  return (q, own, own, context, context), named


@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
@pytest.mark.parametrize(
  'dtype', [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.bfloat16]
)
@pytest.mark.parametrize('implementation', ['reference', 'xla', 'tpu'])
@pytest.mark.parametrize('case', cases.LARGE, ids=lambda case: case.name)
def test_lowers_forward_and_backward(case, implementation, dtype, platform):
  if platform == 'cuda' and implementation == 'tpu':
    pytest.skip('a kernel of TPUs')
  arrays, named = jax.eval_shape(lambda: problem_shapes(case))
  arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), arrays)

  def loss(arrays, named):
    out = api.draft_block_attention(
      *arrays, **named, implementation=implementation
    )
    return jnp.sum(out.astype(jnp.float32))

  exported = jax.export.export(
    jax.jit(jax.value_and_grad(loss)), platforms=[platform]
  )(arrays, named)
  assert exported.platforms == (platform,)
  assert exported.out_avals[1].shape == arrays[0].shape
  is_kernel = 'tpu_custom_call' in exported.mlir_module()
  assert is_kernel == (implementation == 'tpu')


def test_what_cannot_be_meant_is_refused():
  case = cases.CASES[1]
  arrays, named = problem.make(case)
  q, k, v, context_k, context_v = arrays

  def refused(match, error=ValueError, arrays=arrays, **changes):
    with pytest.raises(error, match=match):
      api.draft_block_attention(*arrays, **{**named, **changes})

  refused('choose from', implementation='cuda')
  refused('use xla', NotImplementedError, implementation='gpu')
  refused('whole number from 7', window=6)
  refused('do not divide', arrays=(q[:, :, :, :5], *arrays[1:]))
  refused('cast it', arrays=(q.astype(jnp.float8_e5m2), *arrays[1:]))
  with pytest.raises(ValueError, match='segments has shape'):
    api._check(*arrays, named['anchors'], named['segments'][:, 1:], None)
  wide = jnp.zeros((*q.shape[:-1], 320))
  refused('at most 256', arrays=tuple(_widen(x, wide) for x in arrays))
  # A list takes the first that can.
  narrow = tuple(x.astype(jnp.float16) for x in arrays)
  refused('cast all', NotImplementedError, narrow, implementation='tpu')
  out = api.draft_block_attention(
    *narrow, **named, implementation=('gpu', 'tpu', 'xla')
  )
  assert out.dtype == jnp.float16
  refused('none of', NotImplementedError, narrow, implementation=('gpu', 'tpu'))


def _widen(x, like):
  return jnp.zeros((*x.shape[:-1], like.shape[-1]))
