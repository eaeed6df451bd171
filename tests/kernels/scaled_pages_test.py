# SPDX-License-Identifier: MIT
"""Pools of eight bits with a scale for every row, and of bfloat16."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jspec.cache import forms
from jspec.kernels.block_tree_attention import api, cases, check, sharded
from tests.kernels import attention_problem, tpu_interpreter

BY_NAME = {case.name: case for case in cases.CASES}
CASES = ('window_and_sinks', 'chain_ragged')
FORMS = ('int8', 'fp8')


def problem(name, form):
  """Arguments with pools in a form, and the answer for what they stand for."""
  arrays, named = attention_problem.make(BY_NAME[name])
  # No int8 is NaN: where nothing may be read there are large numbers.
  nodes, pools = arrays[:3], [jnp.nan_to_num(x, nan=9e3) for x in arrays[3:]]
  small, scales = zip(
    *(forms.quantise(pool, form) for pool in pools), strict=True
  )
  meant = [forms.dequantised(*both) for both in zip(small, scales, strict=True)]
  want = attention_problem.naive((*nodes, *meant), named)
  named |= dict(zip(('k_scale', 'v_scale'), scales, strict=True))
  return (*nodes, *small), named, want


def run(function, arrays, named, **static):
  static |= dict(window=named['window'])
  rest = {name: x for name, x in named.items() if name != 'window'}
  return jax.jit(functools.partial(function, **static))(*arrays, **rest)


@pytest.mark.few(1)
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('implementation', ['reference', 'xla'])
def test_equals_softmax_over_what_is_meant(name, form, implementation):
  arrays, named, want = problem(name, form)
  attend = functools.partial(
    run, api.block_tree_attention, implementation=implementation
  )
  np.testing.assert_allclose(attend(arrays, named), want, atol=1e-5)
  for scale in ('k_scale', 'v_scale'):  # Each of them counts.
    turned = named | {scale: named[scale][..., ::-1]}
    assert np.abs(attend(arrays, turned) - want).max() > 1e-3


def test_scales_are_shared_out_with_their_heads():
  arrays, named, want = problem('window_and_sinks', 'int8')
  mesh = Mesh(
    np.array(jax.devices()[: arrays[1].shape[2]]),
    ('model',),
    axis_types=(AxisType.Auto,),
  )
  got = run(
    sharded.block_tree_attention, arrays, named, mesh=mesh, heads='model'
  )
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize('implementation', ['tpu', 'gpu'])
def test_kernels_refuse_them_by_name(implementation):
  arrays, named, want = problem('chain_ragged', 'int8')
  attend = functools.partial(run, api.block_tree_attention, arrays, named)
  with pytest.raises(NotImplementedError, match="int8 .*implementation='xla'"):
    attend(implementation=implementation)
  got = attend(implementation=[implementation, 'xla'])
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_scales_must_come_with_eight_bits_and_with_nothing_else():
  arrays, named, _ = problem('chain_ragged', 'fp8')
  attend = functools.partial(run, api.block_tree_attention)
  bare = named | dict(k_scale=None)
  with pytest.raises(ValueError, match='k_pages is float8_e4m3fn and k_scale'):
    attend(arrays, bare)
  floats = (*arrays[:4], arrays[4].astype(jnp.float32))
  with pytest.raises(
    ValueError, match='v_pages is float32 and v_scale is give'
  ):
    attend(floats, named)
  with pytest.raises(ValueError, match='k_pages is int32; it must be one of'):
    attend((*arrays[:3], arrays[3].astype(jnp.int32), arrays[4]), named)
  # Itself: under test, the annotations of the API would refuse first.
  names = ('q', 'k', 'v', 'k_pages', 'v_pages')
  good = dict(zip(names, arrays, strict=True), **named)
  check.check(**good)
  with pytest.raises(ValueError, match='v_scale has shape'):
    check.check(**(good | dict(v_scale=named['v_scale'][..., :1])))


def halved(name):
  """A case with pools of bfloat16 below nodes of float32."""
  arrays, named = attention_problem.make(BY_NAME[name])
  arrays = (*arrays[:3], *(x.astype(jnp.bfloat16) for x in arrays[3:]))
  meant = (*arrays[:3], *(x.astype(jnp.float32) for x in arrays[3:]))
  return arrays, named, attention_problem.naive(meant, named)


@pytest.mark.parametrize('implementation', ['reference', 'xla'])
def test_pages_of_half_the_width_lose_nothing_more(implementation):
  arrays, named, want = halved('window_and_sinks')
  got = run(
    api.block_tree_attention, arrays, named, implementation=implementation
  )
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_the_tpu_kernel_reads_them_too():
  arrays, named, want = halved('window_and_sinks')
  with tpu_interpreter.running():
    got = run(
      api.block_tree_attention, arrays, named, implementation='tpu'
    ).block_until_ready()
  np.testing.assert_allclose(got, want, atol=1e-5)
