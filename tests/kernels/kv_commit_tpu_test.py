# SPDX-License-Identifier: MIT
"""The TPU kernel of `kv_commit` in TPU interpret mode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.kv_commit import cases, ref, tpu
from tests.kernels import commit_problem, tpu_interpreter

BY_NAME = {case.name: case for case in cases.CASES}


def interpreted(problem):
  with tpu_interpreter.running() as record:
    got = jax.jit(tpu.kv_commit)(**jax.tree.map(jnp.asarray, problem))
    return jax.block_until_ready(got), record


@pytest.mark.few(1)
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
def test_equals_the_reference_without_races(case):
  problem = commit_problem.make(case)
  got, _ = interpreted(problem)
  for ours, theirs in zip(got, ref.kv_commit(**problem), strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert bool(got[2]) == commit_problem.is_dropped(case)


def test_bfloat16_bits_survive():
  problem = commit_problem.make(BY_NAME['across_tiles'], dtype=jnp.bfloat16)
  got, _ = interpreted(problem)
  for ours, theirs in zip(got, ref.kv_commit(**problem), strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(np.float32(ours), theirs.astype(np.float32))


def test_only_touched_tiles_are_copied_and_whole_ones_are_not_read():
  case = BY_NAME['chunk_of_40']
  _, record = interpreted(commit_problem.make(case))
  # Tiles of 8: positions 0 to 39 fill five, 5 to 37 three and parts of two.
  num_written, num_read = 5 + 5, 0 + 2
  tile = case.num_layers * case.num_kv_heads * 8 * case.head_width * 4
  assert record.bytes_copied == 2 * (num_written + num_read) * tile


def test_two_rows_that_write_to_one_page_are_a_race():
  problem = commit_problem.make(BY_NAME['within_a_tile'])
  problem['page_ids'][1] = problem['page_ids'][0]
  problem['lengths'][:] = 0
  with pytest.raises(RuntimeError, match='races'):
    interpreted(problem)


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(page_size=12, lengths=(0,), num_rows=(1,)), 'pages of 12'),
    (dict(path_len=500, num_nodes=500, num_kv_heads=64), 'of VMEM'),
  ],
)
def test_what_does_not_fit_is_refused_with_limit_and_mend(change, message):
  case = dataclasses.replace(BY_NAME['within_a_tile'], **change)
  problem = commit_problem.make(case)
  with pytest.raises(NotImplementedError, match=f'{message}.*(use|commit)'):
    jax.eval_shape(tpu.kv_commit, **problem)


def test_float16_is_refused():
  problem = commit_problem.make(BY_NAME['within_a_tile'], dtype=jnp.float16)
  with pytest.raises(NotImplementedError, match='float16.*use one of'):
    jax.eval_shape(tpu.kv_commit, **problem)
