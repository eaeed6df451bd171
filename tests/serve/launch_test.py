# SPDX-License-Identifier: MIT
"""What a launch tells the policy that plans its rounds."""

import types

import jax.numpy as jnp
import pytest

from jspec import tree
from jspec.decode import asks
from jspec.depth import api as depth
from jspec.depth import costs as costs_lib
from jspec.serve import launch

NUM_ROWS, NUM_DRAFTS = 4, 3


def plan(policy, remaining, verify_s):
  """Drafts of each row under costs of budgets of 4, 9 and 16 nodes."""
  shape = (NUM_ROWS, NUM_DRAFTS + 1)
  draft = tree.Draft(
    tokens=jnp.zeros(shape, jnp.int32),
    parents=tree.chain_parents(*shape),
    num_nodes=jnp.full((NUM_ROWS,), NUM_DRAFTS + 1, jnp.int32),
    confidence=jnp.full(shape, 0.9),
  )
  inputs = launch.Inputs(
    rows=jnp.arange(NUM_ROWS),
    page_ids=jnp.zeros((NUM_ROWS, 1), jnp.int32),
    num_rounds=jnp.int32(1),
    wants_rows=jnp.bool_(False),
    policy=jnp.int32(0),
    budget=jnp.int32(launch.BY_POLICY),
    is_measuring=jnp.bool_(False),
    wants_lessons=jnp.bool_(False),
    costs=costs_lib.make((4, 9, 16), verify_s, 0.0),
    given=None,
    temperatures=jnp.ones((NUM_ROWS, NUM_DRAFTS)),
  )
  state = types.SimpleNamespace(
    remaining=jnp.asarray(remaining), asks=asks.init(NUM_ROWS, 16)
  )
  policies = (depth.make(policy),)
  return launch._plan(draft, state, inputs, policies, None).tolist()


@pytest.mark.parametrize('policy', ['dcut', 'first_drop', 'dinkelbach'])
def test_drafts_are_not_free_where_rows_of_a_program_rest(policy):
  """Two rows of four and two drafts are 4 nodes, but run the second budget."""
  two = [9, 0, 0, 9]
  assert plan(policy, two, (1.0, 10.0, 20.0)) == [0, 0, 0, 0]
  # Where the second budget is cheap all that fits it is drafted.
  assert plan(policy, two, (1.0, 1.0, 20.0)) == [3, 0, 0, 3]
  assert sum(plan(policy, [9] * 4, (1.0, 1.0, 20.0))) == 5
