# SPDX-License-Identifier: MIT
"""What plans go by: scaled confidence, of this round or of the last."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import asks
from jspec.depth import api as depth
from jspec.depth import costs as costs_lib
from jspec.serve import launch, scores

NUM_ROWS, NUM_DRAFTS = 3, 4
RNG = np.random.default_rng(0)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def logit(p):
  return np.log(p) - np.log1p(-p)


def chains(confidence):
  confidence = jnp.asarray(confidence, jnp.float32)
  shape = (len(confidence), confidence.shape[1] + 1)
  return tree.Draft(
    tokens=jnp.zeros(shape, jnp.int32),
    parents=tree.chain_parents(*shape),
    num_nodes=jnp.full(shape[:1], shape[1], jnp.int32),
    confidence=jnp.pad(confidence, ((0, 0), (1, 0)), constant_values=1.0),
  )


def test_chains_are_scaled_position_by_position():
  told = RNG.uniform(0.05, 0.95, (NUM_ROWS, NUM_DRAFTS))
  scale = RNG.uniform(0.5, 3, (NUM_ROWS, NUM_DRAFTS))
  expected = np.cumprod(sigmoid(logit(told) / scale), axis=1)
  got = scores.live(chains(told), jnp.asarray(scale, jnp.float32))
  np.testing.assert_allclose(got, expected, rtol=2e-5)


def test_trees_are_scaled_by_depth():
  parents = [-1, 0, 0, 1, 2, 3]
  told = RNG.uniform(0.05, 0.95, 6)
  draft = tree.Draft(
    tokens=jnp.zeros((1, 6), jnp.int32),
    parents=jnp.asarray([parents]),
    num_nodes=jnp.asarray([6]),
    confidence=jnp.asarray([[1.0, *told[1:]]], jnp.float32),
  )
  scale = [2.0, 3.0, 0.5, 9.0, 9.0]
  a = sigmoid(logit(told[1:]) / np.array(scale)[[0, 0, 1, 1, 2]])
  expected = [a[0], a[1], a[0] * a[2], a[1] * a[3], a[0] * a[2] * a[4]]
  got = scores.live(draft, jnp.asarray([scale], jnp.float32))
  np.testing.assert_allclose(got[0], expected, rtol=2e-5)


def test_temperature_one_changes_no_bit():
  draft = chains(RNG.uniform(0, 1, (NUM_ROWS, NUM_DRAFTS)))
  got = scores.live(draft, jnp.ones((NUM_ROWS, NUM_DRAFTS)))
  np.testing.assert_array_equal(got, tree.survival(draft)[:, 1:])


def test_certainty_stays_and_a_fault_shows():
  draft = chains([[1.0, 0.0, 0.5, 0.5], [1 + 1e-7, 0.5, np.nan, 0.5]])
  got = np.asarray(scores.live(draft, jnp.full((2, NUM_DRAFTS), 3.0)))
  np.testing.assert_array_equal(got[0], [1, 0, 0, 0])
  np.testing.assert_allclose(got[1, :2], [1, 0.5])
  assert np.isnan(got[1, 2:]).all()


def test_plain_round_has_no_scores():
  draft = tree.plain(jnp.zeros((NUM_ROWS,), jnp.int32))
  assert scores.live(draft, jnp.ones((NUM_ROWS, 0))).shape == (NUM_ROWS, 0)


def test_first_round_goes_by_the_mean_of_the_others():
  nothing = jnp.full((3, 2), jnp.nan)
  assert scores.prior(nothing).tolist() == [1.0, 1.0]
  known = nothing.at[0].set(jnp.array([0.9, 0.5]))
  known = known.at[2].set(jnp.array([0.7, 0.1]))
  prior = scores.prior(known)
  np.testing.assert_allclose(prior, [0.8, 0.3], rtol=1e-6)
  got = scores.stale(known, prior)
  np.testing.assert_allclose(got, [[0.9, 0.5], [0.8, 0.3], [0.7, 0.1]])


def test_scores_are_kept_of_rounds_that_were_whole():
  old = jnp.full((4, 2), 0.5).at[3].set(jnp.nan)
  new = jnp.array([[0.9, 0.8], [0.9, jnp.nan], [0.9, 0.8], [0.4, 0.3]])
  got = scores.kept(old, new, jnp.array([True, True, False, True]))
  expected = [[0.9, 0.8], [0.5, 0.5], [0.5, 0.5], [0.4, 0.3]]
  np.testing.assert_allclose(got, expected)


@functools.partial(jax.jit, static_argnums=0)
def planned(policy, before, told, num_nodes):
  inputs = launch.Inputs(
    rows=jnp.arange(NUM_ROWS),
    page_ids=jnp.zeros((NUM_ROWS, 1), jnp.int32),
    num_rounds=jnp.int32(1),
    wants_rows=jnp.bool_(False),
    policy=jnp.int32(0),
    budget=jnp.int32(launch.BY_POLICY),
    is_measuring=jnp.bool_(False),
    wants_lessons=jnp.bool_(False),
    costs=costs_lib.Costs(
      nodes=jnp.array([3, 6, 9, 15]),
      verify_s=jnp.array([1.0, 1.2, 1.5, 1.9]),
      draft_s=jnp.float32(0.0),
    ),
    temperatures=jnp.full((NUM_ROWS, NUM_DRAFTS), 1.5),
    given=None,
  )
  state = types.SimpleNamespace(
    remaining=jnp.full((NUM_ROWS,), 9),
    scores=before,
    asks=asks.init(NUM_ROWS, 16),
  )
  draft = dataclasses.replace(chains(told), num_nodes=num_nodes)
  prior = scores.prior(before)
  return launch._plan(draft, state, inputs, (depth.make(policy),), prior)


def plan(policy, before, told, num_nodes=(NUM_DRAFTS + 1,) * NUM_ROWS):
  """Drafts of each row, of scores `before` and drafts of confidence `told`."""
  given = (np.asarray(x, np.float32) for x in (before, told))
  return tuple(planned(policy, *given, np.asarray(num_nodes)).tolist())


@pytest.mark.parametrize('policy', ['dcut', 'dcut,ratios=0.5', 'dcut,floor=1'])
def test_stale_plan_does_not_look_at_the_drafts_of_its_round(policy):
  rng = np.random.default_rng(1)
  live_plans, by_before = set(), set()
  for _ in range(20):
    before = np.cumprod(rng.beta(3, 1, (NUM_ROWS, NUM_DRAFTS)), axis=1)
    before[rng.integers(3)] = np.nan  # A row in its first round.
    told = [rng.beta(2, 1, (NUM_ROWS, NUM_DRAFTS)) for _ in range(4)]
    plans = {plan(f'{policy},mode=stale', before, one) for one in told}
    assert len(plans) == 1
    by_before |= plans
    live_plans |= {plan(policy, before, one) for one in told}
    assert plan(policy, before, told[0]) == plan(policy, 1 - before, told[0])
  # Negative control: live plans look at them. And stale ones do look at scores.
  assert len(live_plans) > 5 and len(by_before) > 2


def test_stale_plan_keeps_to_the_drafts_there_are():
  before = np.full((NUM_ROWS, NUM_DRAFTS), 0.9)
  told = np.full((NUM_ROWS, NUM_DRAFTS), 0.9)
  assert plan('dcut,mode=stale', before, told) == (4, 4, 4)
  assert plan('dcut,mode=stale', before, told, (2, 5, 1)) == (1, 4, 0)
