# SPDX-License-Identifier: MIT
"""The table of budgets: a staircase, and nothing that is none."""

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.depth import costs
from tests.depth import cases


def test_cost_is_that_of_the_smallest_budget_that_holds_the_nodes():
  table = costs.make([4, 8, 16], [1.0, 1.5, 4.0], 0.5)
  nodes = np.array([0, 1, 4, 5, 8, 9, 16, 17])
  expected = [1.0, 1.0, 1.0, 1.5, 1.5, 4.0, 4.0, np.inf]
  np.testing.assert_allclose(table.of(jax.numpy.asarray(nodes)), expected)
  np.testing.assert_allclose(
    table.round(jax.numpy.asarray(nodes)), np.array(expected) + 0.5
  )


def test_other_costs_do_not_compile_again():
  traces = []

  @jax.jit
  def price(table, nodes):
    traces.append(1)
    return table.of(nodes)

  rng = np.random.default_rng(0)
  for _ in range(3):
    price(cases.random_staircase(rng, 20), jax.numpy.arange(5))
  assert len(traces) == 1


@pytest.mark.parametrize(
  'nodes, verify_s, draft_s, what',
  [
    ([], [], 0.1, 'at least one'),
    ([4, 8], [1.0], 0.1, 'one measured time'),
    ([8, 4], [1.0, 2.0], 0.1, 'ascend'),
    ([4, 4], [1.0, 2.0], 0.1, 'ascend'),
    ([0, 4], [1.0, 2.0], 0.1, 'ascend'),
    ([4, 8], [2.0, 1.0], 0.1, 'falls'),
    ([4, 8], [0.0, 1.0], 0.1, 'more than 0'),
    ([4, 8], [1.0, np.nan], 0.1, 'finite'),
    ([4, 8], [1.0, 2.0], -0.1, 'not less'),
  ],
)
def test_no_table_is_refused(nodes, verify_s, draft_s, what):
  with pytest.raises(errors.UserError, match=what):
    costs.make(nodes, verify_s, draft_s)
