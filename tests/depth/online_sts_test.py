# SPDX-License-Identifier: MIT
"""Temperatures follow simulated rounds whose miscalibration is known."""

import numpy as np
import pytest

from jspec.depth import calibration, online_sts, sts

DEPTH = 5
ROWS = 16


def logit(p):
  return np.log(p) - np.log1p(-p)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def chains(rng, scale, rows=ROWS, depth=DEPTH):
  """Confidences of `scale` times the true logits, parents, nodes right."""
  truth = rng.beta(4, 1.5, (rows, depth))
  num_right = np.cumprod(rng.random((rows, depth)) < truth, axis=1).sum(axis=1)
  number = np.arange(1, depth + 1)
  path = np.where(number <= num_right[:, None], number, 0)
  told = sigmoid(np.asarray(scale) * logit(truth)).astype(np.float32)
  parents = np.broadcast_to(np.arange(depth), (rows, depth))
  return told, parents, path


def kept(told, temperatures, least=0.35):
  """Drafts that a policy verifies: those likely enough to be reached."""
  survival = np.cumprod(sigmoid(logit(told) / temperatures), axis=1)
  return (survival > least).sum(axis=1)


def teach(learner, rng, scale, launches, *, cut=None, lie=False):
  """Launches of `ROWS` rows; `cut` verifies what it makes of the scores."""
  for _ in range(launches):
    told, parents, path = chains(rng, scale, depth=len(learner.temperatures))
    num_verified = np.full(len(told), told.shape[1])
    if cut is not None:
      num_verified = cut(told, learner.temperatures)
      path = np.where(path <= num_verified[:, None], path, 0)
    if lie:  # As if a draft that was cut had been rejected.
      num_verified = np.full(len(told), told.shape[1])
    learner.observe(told, parents, num_verified, path)
  return learner


def new(depth=DEPTH):
  return online_sts.OnlineSTS(depth)


@pytest.mark.parametrize('scale', [0.6, 2.0, 3.0])
def test_temperatures_become_those_of_the_confidence(scale):
  learner = teach(new(), np.random.default_rng(0), scale, 150)
  np.testing.assert_allclose(learner.temperatures, scale, rtol=0.3)
  found = learner.figures()
  assert found.num_rounds == 150 * ROWS and found.num_taken > 0
  assert found.scaled.ece < 0.03 < found.raw.ece
  assert found.scaled.brier < found.raw.brier


def test_every_depth_has_its_own():
  scale = np.array([1.0, 1.0, 2.5, 2.5])
  learner = teach(new(4), np.random.default_rng(1), scale, 300)
  np.testing.assert_allclose(learner.temperatures, scale, rtol=0.3)


@pytest.mark.parametrize('seed', range(3))
def test_calibrated_confidence_is_left_alone(seed):
  """Over a long time, and every time that it was looked at."""
  rng, learner = np.random.default_rng(seed), new()
  for _ in range(30):
    teach(learner, rng, 1.0, 20)
    np.testing.assert_allclose(np.log(learner.temperatures), 0, atol=0.35)
    found = learner.figures()
    assert found.scaled.brier < found.raw.brier + 2e-3


def test_a_change_is_followed():
  rng = np.random.default_rng(2)
  learner = teach(new(), rng, 2.5, 150)
  assert learner.temperatures.min() > 1.8
  teach(learner, rng, 0.8, 250)
  np.testing.assert_allclose(learner.temperatures, 0.8, rtol=0.3)


def test_drafts_that_are_cut_by_confidence_do_not_bend_it():
  """In a loop: what is verified depends on what was learned."""
  rng = np.random.default_rng(3)
  learner = teach(new(), rng, 2.0, 300, cut=kept)
  np.testing.assert_allclose(learner.temperatures[:3], 2.0, rtol=0.3)
  # Negative control: whoever counts them as rejected trusts nobody any more.
  rng = np.random.default_rng(3)
  censored = teach(new(), rng, 2.0, 300, cut=kept, lie=True)
  assert censored.temperatures[2:4].max() > 4
  told = chains(rng, 2.0, rows=1000)[0]
  honest, bent = (kept(told, t.temperatures) for t in (learner, censored))
  assert honest.mean() > bent.mean() + 0.1


def test_what_is_not_verified_any_more_is_kept_and_comes_back():
  rng = np.random.default_rng(4)
  learner = teach(new(), rng, 2.0, 150)
  known = learner.temperatures.copy()

  def two(told, temperatures):
    del temperatures
    return np.full(len(told), 2)

  teach(learner, rng, 0.7, 200, cut=two)
  np.testing.assert_allclose(learner.temperatures[:2], 0.7, rtol=0.3)
  np.testing.assert_allclose(learner.temperatures[2:], known[2:], rtol=0.45)
  assert learner.temperatures[2:].min() > 1.3

  # Now and then somebody verifies everything.
  for _ in range(120):
    teach(learner, rng, 0.7, 3, cut=two)
    teach(learner, rng, 0.7, 1)
  assert learner.temperatures[2:].max() < 1.1


def test_a_depth_that_was_never_verified_is_like_the_one_before():
  rng = np.random.default_rng(5)
  learner = teach(
    new(), rng, 2.0, 150, cut=lambda told, _: np.full(len(told), 3)
  )
  assert learner.temperatures[3] == learner.temperatures[4]
  assert learner.temperatures[3] == pytest.approx(
    learner.temperatures[2], rel=0.25
  )
  few = new()
  for _ in range(2):
    teach(few, rng, 2.0, online_sts.MIN_LAUNCHES - 1)
    assert few.temperatures.tolist() == [1.0] * DEPTH  # Nothing is proved yet.


def test_a_fit_is_not_taken_where_later_rounds_do_not_agree():
  rng, learner = np.random.default_rng(6), new()
  per_fit = online_sts.MIN_LAUNCHES
  teach(learner, rng, 4.0, per_fit)  # Hence the candidate, which says: 4.
  teach(learner, rng, 0.8, per_fit)
  assert learner.temperatures.tolist() == [1.0] * DEPTH
  assert learner.figures().num_refused == 1
  # And if they agree it is.
  agreed = teach(new(), np.random.default_rng(6), 4.0, 2 * per_fit)
  assert agreed.figures().num_taken == 1
  assert agreed.temperatures.min() > 1.3


@pytest.mark.parametrize('num_right', [0, DEPTH])
@pytest.mark.parametrize('told', [0.0, 0.5, 1.0, 1 + 1e-7, np.nan])
def test_temperatures_are_numbers_whatever_happens(num_right, told):
  learner = new()
  number = np.arange(1, DEPTH + 1)
  for _ in range(40):
    learner.observe(
      np.full((ROWS, DEPTH), told, np.float32),
      np.broadcast_to(np.arange(DEPTH), (ROWS, DEPTH)),
      np.full(ROWS, DEPTH),
      np.broadcast_to(np.where(number <= num_right, number, 0), (ROWS, DEPTH)),
    )
    assert np.isfinite(learner.temperatures).all()
    assert learner.temperatures.min() >= sts.GRID[0] - 1e-9
    assert learner.temperatures.max() <= sts.GRID[-1] + 1e-9


def test_rows_that_took_no_part_teach_nothing():
  told, parents, path = chains(np.random.default_rng(7), 3.0)
  one, two = new(), new()
  took_part = np.arange(ROWS) % 2 == 0
  for _ in range(40):
    one.observe(told, parents, np.where(took_part, DEPTH, -1), path)
    few = [x[took_part] for x in (told, parents, path)]
    two.observe(few[0], few[1], np.full(ROWS // 2, DEPTH), few[2])
  np.testing.assert_array_equal(one.temperatures, two.temperatures)
  assert one.figures().num_rounds == 40 * ROWS // 2
  one.observe(told, parents, np.zeros(ROWS, int), path)
  assert one.figures().num_rounds == 40 * ROWS // 2


# Two at the root, two below the first and one below the second of these.
PARENTS = np.array([0, 0, 1, 1, 4])


def trees(rng, scale, rows=ROWS):
  """At most one child is right; by depth the confidence is off by `scale`."""
  truth = np.zeros((rows, len(PARENTS)))
  path = np.zeros((rows, len(PARENTS)), int)
  for nodes in ((1, 2), (3, 4), (5,)):
    share = rng.dirichlet(np.full(len(nodes) + 1, 1.5), rows)[:, :-1]
    truth[:, np.array(nodes) - 1] = share
  for row in range(rows):
    at, depth = 0, 0
    while True:
      children = np.flatnonzero(PARENTS == at)
      draw = rng.random() - np.cumsum(truth[row, children])
      if not len(children) or draw[-1] >= 0:
        break
      at = int(children[np.argmax(draw < 0)]) + 1
      path[row, depth] = at
      depth += 1
  told = sigmoid(np.asarray(scale)[[0, 0, 1, 1, 2]] * logit(truth))
  parents = np.broadcast_to(PARENTS, truth.shape)
  return told.astype(np.float32), parents, path


def test_trees_are_counted_by_depth_along_their_own_paths():
  rng, learner = np.random.default_rng(8), new()
  scale = (2.0, 2.0, 2.0)
  for _ in range(150):
    told, parents, path = trees(rng, scale)
    learner.observe(told, parents, np.full(ROWS, 5), path)
  np.testing.assert_allclose(learner.temperatures[:3], 2.0, rtol=0.35)
  found = learner.figures()
  assert found.scaled.ece < 0.5 * found.raw.ece


def test_paths_of_a_tree_are_those_of_its_parents():
  told = np.array([[0.9, 0.2, 0.6, 0.3, 0.7]], np.float32)
  found = online_sts._by_depth(
    told, PARENTS[None], np.array([5]), np.array([[1, 4, 0, 0, 0]])
  )
  expected = [[[0.9], [0.2]], [[0.9, 0.6], [0.9, 0.3]], [[0.9, 0.3, 0.7]]]
  assert len(found) == 3
  for drafts, paths in zip(found, expected, strict=True):
    np.testing.assert_allclose(sigmoid(drafts.logits), paths, rtol=1e-5)
  assert [d.is_right.tolist() for d in found] == [
    [True, False],
    [False, True],
    [False],
  ]
  # What was not verified is not there, and neither is its depth.
  cut = online_sts._by_depth(
    told, PARENTS[None], np.array([3]), np.array([[1, 0, 0, 0, 0]])
  )
  assert [len(d.is_right) for d in cut] == [2, 1]


def test_survival_is_what_becomes_calibrated():
  """Hard rounds fail as a whole, so products of honest shares are not."""
  rng, learner = np.random.default_rng(9), new(2)
  number = np.arange(1, 3)
  for _ in range(200):
    easy = rng.random(ROWS) < 0.6
    truth = np.where(easy, 0.97, 0.3)[:, None]
    num_right = np.cumprod(rng.random((ROWS, 2)) < truth, axis=1).sum(axis=1)
    learner.observe(
      np.full((ROWS, 2), 0.7, np.float32),
      np.broadcast_to(np.arange(2), (ROWS, 2)),
      np.full(ROWS, 2),
      np.where(number <= num_right[:, None], number, 0),
    )
  told = sigmoid(logit(0.7) / learner.temperatures).prod()
  assert told == pytest.approx(0.6 * 0.97**2 + 0.4 * 0.3**2, abs=0.04)
  assert isinstance(learner.figures().raw, calibration.Calibration)
