# SPDX-License-Identifier: MIT
"""What is packed on the host comes out of a program bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import options, sampling
from jspec.serve import packed, programs

DTYPES = (np.int32, np.uint32, np.bool_, np.float32)


def tree(rng):
  """Some arrays of any shape and bits, one of them empty."""
  made = {'empty': np.zeros((0, 3), np.int32), 'inner': {}}
  for i in range(int(rng.integers(3, 9))):
    shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 4)))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    bits = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32)
    if dtype == np.bool_:
      leaf = np.asarray(bits % 2 == 1)
    elif dtype == np.float32:
      leaf = np.asarray(rng.normal(size=shape), np.float32)
    else:
      leaf = np.asarray(bits).view(dtype)
    (made if i % 2 else made['inner'])[f'x{rng.integers(100)}'] = leaf
  return made


def same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.slow
def test_trees_go_there_and_back():
  for seed in range(20):
    want = tree(np.random.default_rng(seed))
    of = packed.layout(want)
    whole, real = of.pack(want)
    assert (whole.size, real.size) == of.sizes()
    assert (whole.dtype, real.dtype) == (np.int32, np.float32)
    same(of.unpack(jnp.asarray(whole), jnp.asarray(real)), want)


def test_numbers_that_are_no_numbers_keep_what_they_are():
  want = {
    'x': np.asarray([np.nan, -np.inf, -0.0, 1e-45], np.float32),
    'seed': np.asarray([0, 2**31, 2**32 - 1], np.uint32),
    'id': np.asarray([-1, -(2**31), 2**31 - 1], np.int32),
  }
  of = packed.layout(want)
  got = jax.jit(of.unpack)(*of.pack(want))
  same(got, want)
  assert np.signbit(got['x'][2])


def test_two_leaves_that_change_places_are_noticed():
  """Or the comparison above could not fail."""
  want = {'a': np.asarray([1, 2], np.int32), 'b': np.asarray([3], np.int32)}
  of = packed.layout(want)
  whole, real = of.pack(want)
  with pytest.raises(AssertionError):
    same(of.unpack(jnp.asarray(whole[::-1].copy()), jnp.asarray(real)), want)


@pytest.mark.parametrize(
  'wrong',
  [
    {'a': np.zeros((2,), np.int32)},
    {'a': np.zeros((3,), np.float32)},
    {'b': np.zeros((3,), np.int32)},
    {'a': np.zeros((3,), np.int32), 'b': np.zeros((), np.int32)},
  ],
)
def test_what_is_not_of_the_layout_is_refused(wrong):
  of = packed.layout({'a': jax.ShapeDtypeStruct((3,), jnp.int32)})
  with pytest.raises(ValueError, match='not of the layout'):
    of.pack(wrong)


def test_other_dtypes_are_refused():
  with pytest.raises(ValueError, match='int64 cannot be packed'):
    packed.layout({'a': np.zeros((3,), np.int64)})


def test_start_of_a_row_is_that_of_the_request():
  params = sampling.SamplingParams(
    temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, seed=2**32 - 5
  )
  wanted = options.LogitOptions(
    repetition_penalty=1.3,
    presence_penalty=-0.5,
    logit_bias=((3, -100.0), (9, 2.5)),
    min_tokens=4,
    bad_words=((1, 2, 3), (7,)),
  )
  of = programs.start(max_len=11, capacity=3)
  start = dict(
    row=np.asarray(2, np.int32),
    tokens=np.arange(11, dtype=np.int32),
    num_prompt=np.asarray(9, np.int32),
    num_tokens=np.asarray(10, np.int32),
    num_cached=np.asarray(8, np.int32),
    page_ids=np.asarray([4, 0, -1], np.int32),
    sampling=sampling.columns([params]),
    stop_ids=np.full((programs.NUM_STOP_IDS,), -1, np.int32),
    options=options.columns([wanted]),
    wants_logprobs=np.asarray(True),
    max_drafts=np.asarray(3, np.int32),
    policy=np.asarray(1, np.int32),
    drafter=np.asarray(-1, np.int32),
  )
  got = jax.jit(of.unpack)(*of.pack(start))
  same(got, start)
  same(got['sampling'], vars(sampling.stack([params])))
  same(got['options'], vars(options.stack([wanted])))
