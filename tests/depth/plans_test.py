# SPDX-License-Identifier: MIT
"""`dcut`, `dinkelbach` and `caddtree` against all plans there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.depth import caddtree, dcut, dinkelbach, first_drop, oracle
from jspec.depth import costs as costs_lib
from tests.depth import cases

OPTIMAL = {
  'dcut': dcut.DCut(),
  'dinkelbach': dinkelbach.Dinkelbach(),
  'caddtree': caddtree.CaDDTree(scope='batch'),
}


def clean_rate(plan, scores, who, table):
  return cases.rate(np.asarray(plan), scores, who, table)


@pytest.mark.few(1)
@pytest.mark.parametrize('name', OPTIMAL)
def test_no_plan_of_the_batch_is_faster(name):
  rng = np.random.default_rng(0)
  plan = cases.jitted(OPTIMAL[name].plan)
  depths = set()
  for _ in range(60):
    scores, who = cases.random_round(rng)
    table = cases.random_staircase(rng, 13)
    got = plan(scores, who, table)
    best = cases.best_rate(scores, who, table)
    assert clean_rate(got, scores, who, table) == pytest.approx(best, rel=1e-5)
    depths.add(int(got.sum()))
  assert len(depths) > 4  # Among them plans that keep nothing, some and all.
  assert 0 in depths


def test_first_drop_misses_what_lies_behind_a_step():
  """A negative control of the above, and the staircase that greed falls for."""
  table = costs_lib.make([2, 3, 8], [1.0, 1.6, 1.7], 0.0)
  scores = cases.scores_of([[0.9] * 6])
  who = cases.full_load(1, 6)
  greedy = cases.plan(first_drop.FirstDrop(), scores, who, table)
  best = cases.plan(dcut.DCut(), scores, who, table)
  assert int(greedy[0]) == 1 and int(best[0]) == 6
  rate = functools.partial(clean_rate, scores=scores, who=who, table=table)
  assert rate(best) == pytest.approx(cases.best_rate(scores, who, table))
  assert rate(greedy) < 0.8 * rate(best)


def test_first_drop_is_the_first_local_maximum():
  rng = np.random.default_rng(1)
  plan = cases.jitted(first_drop.FirstDrop().plan)
  for _ in range(40):
    scores = cases.scores_of(rng.beta(3, 1, (2, 4)))
    who = cases.full_load(2, 4)
    table = cases.random_staircase(rng, int(rng.integers(6, 11)))
    ranked = sorted(
      (-float(scores[b, g]), g, b) for b in range(2) for g in range(4)
    )
    counts = np.zeros(2, int)
    for _, _, row in ranked:
      more = counts + np.eye(2, dtype=int)[row]
      if clean_rate(more, scores, who, table) <= clean_rate(
        counts, scores, who, table
      ):
        break
      counts = more
    np.testing.assert_array_equal(plan(scores, who, table), counts)


def test_first_drop_equals_the_optimum_where_costs_grow_evenly():
  rng = np.random.default_rng(2)
  table = cases.even_costs(20)
  early = cases.jitted(first_drop.FirstDrop().plan)
  best = cases.jitted(dcut.DCut().plan)
  for _ in range(20):
    scores = cases.scores_of(rng.beta(3, 1, (3, 4)))
    who = cases.full_load(3, 4)
    np.testing.assert_array_equal(
      early(scores, who, table), best(scores, who, table)
    )


def test_caddtree_of_one_row_is_the_paper_s_rule():
  rng = np.random.default_rng(3)
  table = cases.even_costs(20, base_s=0.5)
  plan = cases.jitted(caddtree.CaDDTree().plan)
  for _ in range(20):
    # Path probabilities of a tree: falling, and no product of anything.
    scores = np.sort(rng.dirichlet(np.ones(12))[None], axis=1)[:, ::-1]
    scores = jnp.asarray(scores.copy(), jnp.float32)
    theta = (1 + np.cumsum(np.append(0, scores[0]))) / (
      0.2 + 0.5 + 0.1 * np.arange(1, 14)
    )
    stop = next((n for n in range(12) if theta[n + 1] <= theta[n]), 12)
    assert int(plan(scores, cases.full_load(1, 12), table)[0]) == stop


def test_rows_of_caddtree_choose_alone_and_together_fit():
  table = cases.even_costs(9, node_s=0.01)
  scores = jnp.array([[0.9, 0.8, 0.7, 0.6], [1e-4, 1e-5, 0, 0], [1, 1, 1, 1]])
  got = cases.plan(caddtree.CaDDTree(), scores, cases.full_load(3, 4), table)
  assert tuple(np.asarray(got)) == (2, 0, 2)


def test_floor_is_kept_and_costs_what_it_costs():
  table = cases.even_costs(20, base_s=0.01, node_s=1.0, draft_s=0.0)
  scores = cases.scores_of([[0.3, 0.3], [0.2, 0.2]])
  who = cases.full_load(2, 2)
  assert np.asarray(cases.plan(dcut.DCut(), scores, who, table)).sum() == 0
  got = cases.plan(dcut.DCut(floor=1), scores, who, table)
  np.testing.assert_array_equal(got, [1, 1])
  # A floor that fits no budget keeps the best of it.
  small = cases.even_costs(3)
  got = cases.plan(dcut.DCut(floor=1), scores, who, small)
  np.testing.assert_array_equal(got, [1, 0])


def test_four_ratios_are_the_paper_s_choice():
  rng = np.random.default_rng(4)
  policy = dcut.DCut(ratios=dcut.PAPER_RATIOS)
  plan = cases.jitted(policy.plan)
  chosen = set()
  for _ in range(40):
    scores = cases.scores_of(rng.beta(3, 1, (2, 6)))
    who = cases.full_load(2, 6)
    table = cases.random_staircase(rng, 14)
    got = np.asarray(plan(scores, who, table))
    flat = np.sort(np.asarray(scores, float).ravel())[::-1]
    nodes, seconds = np.asarray(table.nodes), np.asarray(table.verify_s, float)
    rates = []
    for ratio in dcut.PAPER_RATIOS:
      k = int(np.ceil(ratio * 12))
      cost = seconds[np.argmax(nodes >= 2 + k)] + float(table.draft_s)
      rates.append((2 + flat[:k].sum()) / cost)
    assert got.sum() == int(np.ceil(12 * dcut.PAPER_RATIOS[np.argmax(rates)]))
    chosen.add(got.sum())
  assert chosen == {3, 6, 9, 12}


def test_whole_draft_as_the_only_ratio_is_no_cut():
  scores = cases.scores_of(np.full((2, 5), 0.1))
  table = cases.even_costs(30, node_s=9.0)
  got = dcut.DCut(ratios=(1.0,)).plan(scores, cases.full_load(2, 5), table)
  np.testing.assert_array_equal(got, [5, 5])


@pytest.mark.parametrize('ratio, expected', [(0.2, 3), (0.6, 9), (0.21, 4)])
def test_ratio_of_a_draft_is_rounded_up_but_not_by_float_error(ratio, expected):
  # In float32 0.6 * 15 is 9.0000004.
  scores = cases.scores_of(np.full((1, 15), 0.9))
  policy = dcut.DCut(ratios=(ratio,))
  got = cases.plan(policy, scores, cases.full_load(1, 15), cases.even_costs(30))
  assert int(got[0]) == expected


def test_same_nodes_bring_more_tokens_than_a_uniform_depth():
  rng = np.random.default_rng(5)
  accept = rng.beta(4, 1.2, (32, 1)) * np.ones((32, 15))
  scores = np.asarray(cases.scores_of(accept), float)
  uniform = scores[:, :4].sum()
  ratio = dcut.DCut(ratios=(4 / 15,))
  got = ratio.plan(
    jnp.asarray(scores, jnp.float32),
    cases.full_load(32, 15),
    cases.even_costs(600),
  )
  assert int(got.sum()) == 128
  ranked = sum(scores[row, :n].sum() for row, n in enumerate(np.asarray(got)))
  assert ranked > 1.1 * uniform


@pytest.mark.parametrize(
  'options', [{'floor': -1}, {'ratios': (0.0,)}, {'mode': 'fresh'}]
)
def test_options_of_dcut_are_checked(options):
  with pytest.raises(errors.UserError, match=next(iter(options))):
    dcut.DCut(**options)


def test_price_of_time_rises_to_the_best_ratio():
  rng = np.random.default_rng(6)
  most_steps = 0
  best_at = cases.jitted(dinkelbach.best_at)
  for _ in range(50):
    tokens = jnp.asarray(rng.uniform(1, 9, 8), jnp.float32)
    seconds = jnp.asarray(rng.uniform(0.5, 4, 8), jnp.float32)
    ratio = np.asarray(tokens) / np.asarray(seconds)
    start = jnp.float32(ratio.min())
    best = int(cases.jitted(dinkelbach.best_ratio)(tokens, seconds, start))
    assert ratio[best] == pytest.approx(ratio.max(), rel=1e-6)
    rate, steps = float(start), 0
    while steps < 9:
      choice = best_at(tokens, seconds, jnp.float32(rate))
      found = float(ratio[int(choice)])
      assert found >= rate * (1 - 1e-6)
      if found <= rate:
        break
      rate, steps = found, steps + 1
    most_steps = max(most_steps, steps)
  assert 2 <= most_steps <= 8


def test_a_budget_that_cannot_be_is_never_the_best_ratio():
  tokens, seconds = jnp.array([9.0, 1.0]), jnp.array([jnp.inf, 2.0])
  assert (
    int(cases.jitted(dinkelbach.best_ratio)(tokens, seconds, jnp.float32(0)))
    == 1
  )


def test_oracle_is_the_best_plan_in_hindsight():
  rng = np.random.default_rng(7)
  plan = jax.jit(oracle.plan, static_argnums=3)
  for _ in range(40):
    _, who = cases.random_round(rng)
    accepted = rng.integers(0, 4, 3)
    table = cases.random_staircase(rng, 12)
    certain = (np.arange(3) < accepted[:, None]).astype(float)
    got = plan(jnp.asarray(accepted, jnp.int32), who, table, 3)
    assert clean_rate(got, certain, who, table) == pytest.approx(
      cases.best_rate(certain, who, table), rel=1e-5
    )
    assert np.all(np.asarray(got) <= accepted)
