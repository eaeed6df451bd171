# SPDX-License-Identifier: MIT
"""What a replay says is what trying every plan says."""

import itertools

import jax
import numpy as np
import pytest

from jspec.bench import replay
from jspec.depth import costs as costs_lib
from jspec.depth import dcut, static
from jspec.serve import device


def used(path, num_verified, scores=None):
  path = np.asarray(path)
  return device.Used(
    num_rounds=1,
    by_depth=np.zeros(1),
    by_budget=np.zeros(1),
    scores=np.zeros(path.shape, np.float32) if scores is None else scores,
    confidence=np.zeros(path.shape, np.float32),
    parents=np.zeros(path.shape, int),
    num_verified=np.asarray(num_verified),
    path=path,
  )


def random_rounds(rng, num_rounds, *, is_tree):
  """Rounds of a few rows; right nodes are a chain's first, or any of a tree."""
  rounds = []
  for _ in range(num_rounds):
    rows, depth = int(rng.integers(1, 4)), 3
    path = np.zeros((rows, depth), int)
    limits = rng.integers(0, depth + 1, rows)
    for row, limit in zip(path, limits, strict=True):
      nodes = np.arange(1, limit + 1)
      right = nodes[rng.random(limit) < 0.6] if is_tree else nodes
      right = right[: rng.integers(0, limit + 1)]
      row[: len(right)] = right
    nodes = [rows, rows + 2, 4 * rows + 2]
    costs = costs_lib.make(
      nodes, np.cumsum(rng.uniform(0.2, 1, 3)).tolist(), float(rng.random() / 2)
    )
    scores = rng.random((rows, depth)).astype(np.float32)
    rounds.append(replay.make(costs, used(path, limits, scores)))
  return rounds


def plans(one):
  """Tokens and seconds of every plan that drafts."""
  ranges = [range(limit + 1) for limit in one.limits]
  for counts in itertools.product(*ranges):
    counts = np.array(counts)
    tokens = one.num_rows
    for row, count in zip(one.path, counts, strict=True):
      tokens += sum(1 for node in row if 0 < node <= count)
    nodes = one.num_rows + counts.sum()
    size = np.asarray(one.costs.nodes)
    step = int(np.argmax(size >= nodes))
    yield (
      tokens,
      float(one.costs.draft_s) + float(one.costs.verify_s[step]),
    )


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize('may_skip', [False, True])
def test_oracle_is_the_best_of_all_plans(seed, may_skip):
  rng = np.random.default_rng(seed)
  rounds = random_rounds(rng, 2, is_tree=bool(seed % 2))
  options = [list(plans(one)) for one in rounds]
  if may_skip:
    for one, found in zip(rounds, options, strict=True):
      found.append((one.num_rows, float(one.costs.verify_s[0])))
  best = max(
    sum(t for t, _ in chosen) / sum(s for _, s in chosen)
    for chosen in itertools.product(*options)
  )
  found = replay.oracle(rounds, may_skip=may_skip)
  assert found == pytest.approx(best, rel=1e-6)


def test_best_in_each_round_is_not_best_in_all():
  """What the oracle must not do: the last round's draft pays there only."""
  cheap = replay.make(costs_lib.make([1, 2], [1.0, 1.4], 0.0), used([[1]], [1]))
  dear = replay.make(costs_lib.make([1, 2], [9.0, 16.0], 0.0), used([[1]], [1]))
  alone = [replay.oracle([one], may_skip=False) for one in (cheap, dear)]
  assert alone == [pytest.approx(2 / 1.4), pytest.approx(2 / 16)]
  both = replay.oracle([cheap, dear], may_skip=False)
  assert both == pytest.approx((2 + 1) / (1.4 + 9))
  assert both > (2 + 2) / (1.4 + 16) * 1.2


def test_nothing_beats_the_oracle():
  rng = np.random.default_rng(0)
  for _ in range(10):
    rounds = random_rounds(rng, 5, is_tree=True)
    best = replay.oracle(rounds, may_skip=True)
    assert max(replay.fixed(rounds).values()) <= best * (1 + 1e-6)
    for policy in (dcut.DCut(), static.Static()):
      assert replay.planned(rounds, policy).rate <= best * (1 + 1e-6)


def test_most_kept_pays_for_the_nodes_before_a_right_one():
  path = np.array([[2, 3, 0], [1, 0, 0], [0, 0, 0]])
  assert replay.most_kept(path, 6).tolist() == [0, 1, 1, 2, 3, 3, 3]


def test_fixed_depths_are_cut_at_each_rows_limit_and_depth_0_does_not_draft():
  costs = costs_lib.make([2, 4, 6], [1.0, 2.0, 4.0], 0.5)
  one = replay.make(costs, used([[1, 2, 3, 4], [0] * 4], [4, 1]))
  assert replay.fixed([one]) == {
    0: pytest.approx(2 / 1.0),
    1: pytest.approx((2 + 1) / 2.5),
    2: pytest.approx((2 + 2) / 4.5),  # 2 and 1 drafts.
    4: pytest.approx((2 + 3) / 4.5),  # 3 and 1, the most that a budget holds.
  }


def test_replay_leaves_out_rows_that_took_no_part():
  """Neither counted nor paid; the first budget is the anchors that decode."""
  costs = costs_lib.make([2, 4, 6, 8], [1.0, 1.2, 3.0, 6.0], 0.0)
  path = [[1, 2, 0], [0, 0, 0]]
  both = replay.make(costs, used(path, [3, 3]))
  assert replay.oracle([both], may_skip=False) == pytest.approx(4 / 1.2)
  one = replay.make(costs, used(path, [3, -1]))
  assert one.num_rows == 1 and one.costs.nodes.tolist() == [1, 4, 6, 8]
  assert replay.oracle([one], may_skip=False) == pytest.approx(3 / 1.2)
  assert replay.make(costs, used(path, [-1, -1])) is None


class Even:
  reads = 'none'

  def plan(self, scores, load, costs):
    return jax.numpy.ones((scores.shape[0],), 'int32')


def test_planned_counts_what_a_plan_would_have_kept():
  costs = costs_lib.make([2, 4, 6, 8], [1.0, 1.2, 3.0, 6.0], 0.1)
  one = replay.make(costs, used([[1, 2, 0], [0, 0, 0]], [3, 3]))
  total = replay.planned([one, one], Even())
  assert total.tokens == 6 and total.seconds == pytest.approx(2 * 1.3)


def test_mixed_weighs_by_rounds():
  totals = {'plain': replay.Total(10, 1.0), 'full': replay.Total(30, 2.0)}
  assert replay.mixed(totals, {'plain': 3}).rate == pytest.approx(10)
  assert replay.mixed(totals, {'plain': 1, 'full': 3}).rate == pytest.approx(
    (10 + 90) / (1 + 6)
  )


@pytest.mark.parametrize('seed', range(4))
def test_uniform_is_the_mean_over_who_gets_what_is_left(seed):
  (one,) = random_rounds(np.random.default_rng(seed), 1, is_tree=seed % 2)
  for num_drafts in range(int(one.limits.sum()) + 1):
    # Rows in every order, dealt one node after another, level by level.
    found = []
    for order in itertools.permutations(range(one.num_rows)):
      counts, left = np.zeros(one.num_rows, int), num_drafts
      for level in range(1, 4):
        for row in order:
          if left and one.limits[row] >= level:
            counts[row] += 1
            left -= 1
      assert counts.sum() == num_drafts
      found.append(one.kept(counts))
    assert replay.uniform(one, num_drafts) == pytest.approx(np.mean(found))


def test_scores_that_know_keep_more_than_even_nodes():
  costs = costs_lib.make([2, 4, 8], [1.0, 1.1, 9.0], 0.0)
  path = [[1, 2, 0], [0, 0, 0]]
  knows = np.array([[0.9, 0.9, 0.1], [0.1, 0.1, 0.1]], np.float32)
  good = replay.make(costs, used(path, [3, 3], knows))
  bad = replay.make(costs, used(path, [3, 3], knows[::-1]))
  assert replay.over_uniform([good], dcut.DCut()) == pytest.approx(2)
  assert replay.over_uniform([bad], dcut.DCut()) == 0
  none = replay.make(costs, used([[0] * 3] * 2, [3, 3], knows))
  assert replay.over_uniform([none], dcut.DCut()) is None
