# SPDX-License-Identifier: MIT
"""The pages' only writer, against a row-by-row reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.kv_commit import api, cases, ref
from tests.kernels import commit_problem

BY_NAME = {case.name: case for case in cases.CASES}


def run(problem, implementation=None):
  function = functools.partial(api.kv_commit, implementation=implementation)
  return jax.jit(function)(**jax.tree.map(jnp.asarray, problem))


@pytest.mark.few(5)
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize('implementation', ['reference', 'xla'])
def test_equals_the_reference(case, implementation):
  problem = commit_problem.make(case)
  got = run(problem, implementation)
  for ours, theirs in zip(got, ref.kv_commit(**problem), strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert bool(got[2]) == commit_problem.is_dropped(case)


def test_rows_land_behind_the_prefix_and_nowhere_else():
  case = BY_NAME['across_pages']
  problem = commit_problem.make(case)
  k_pages, _, _ = run(problem)
  was = np.isnan(problem['k_pages']).all(axis=(0, 2, 4))
  now = np.isnan(np.asarray(k_pages)).all(axis=(0, 2, 4))
  assert was.sum() - now.sum() == sum(case.num_rows)
  for row, length in enumerate(case.lengths):
    for i in range(case.num_rows[row]):
      slot, offset = divmod(length + i, case.page_size)
      page = problem['page_ids'][row, slot]
      node = problem['path'][row, i]
      np.testing.assert_array_equal(
        k_pages[:, page, :, offset], problem['k'][:, row, node]
      )


def test_bfloat16_pools_take_bfloat16_rows():
  problem = commit_problem.make(BY_NAME['across_tiles'], dtype=jnp.bfloat16)
  got = run(problem)
  for ours, theirs in zip(got, ref.kv_commit(**problem), strict=True):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(np.float32(ours), theirs.astype(np.float32))


def test_an_implementation_that_does_not_exist_is_refused():
  with pytest.raises(ValueError, match='choose from'):
    run(commit_problem.make(cases.CASES[0]), 'cuda')
