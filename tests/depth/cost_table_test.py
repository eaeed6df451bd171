# SPDX-License-Identifier: MIT
"""The cost table: monotone, exact where measured, and never of another key."""

import itertools
import json

import numpy as np
import pytest

from jspec import errors
from jspec.depth import cost_table, surface

KEY = cost_table.Key('cpu', 'smollm2_135m', 'dflash', '0.1.0')
# Measured on a CPU; 12 points: rows, nodes, context.
POINTS = [
  *[(1, n, 256) for n in (1, 4, 8, 16)],
  *[(4, n, 256) for n in (4, 16, 64)],
  *[(16, n, 256) for n in (16, 64, 256)],
  (1, 8, 2048),
  (16, 64, 2048),
]


def true_seconds(rows, nodes, context):
  tiles = -(-nodes // 8)  # A staircase.
  return 0.018 + 0.0002 * rows + 0.004 * tiles + 1.2e-6 * rows * context


def filled():
  table = cost_table.CostTable(KEY)
  for point in POINTS:
    table.add(*point, true_seconds(*point))
  table.add_draft(1, 256, 0.004)
  table.add_draft(16, 256, 0.012)
  return table


def test_twelve_points_give_the_rest():
  table = filled()
  assert len(POINTS) == 12
  for point in POINTS:
    assert table.seconds(*point) == pytest.approx(true_seconds(*point))
  for rows, nodes, context in [(2, 8, 300), (8, 64, 512), (16, 128, 1000)]:
    assert table.seconds(rows, nodes, context) == pytest.approx(
      true_seconds(rows, nodes, context), rel=0.2
    )


def assert_monotone(at):
  grid = list(
    itertools.product((1, 3, 8, 20), (1, 5, 20, 90, 300), (0, 300, 4000))
  )
  seconds = dict(zip(grid, at(np.array(grid, float)), strict=True))
  for a, b in itertools.product(grid, grid):
    if all(x <= y for x, y in zip(a, b, strict=True)):
      assert seconds[a] <= seconds[b] * (1 + 1e-12), (a, b)


def test_surface_never_falls_whatever_was_measured():
  rng = np.random.default_rng(0)
  for _ in range(20):
    count = int(rng.integers(1, 13))
    points = np.stack(
      [
        rng.choice([1, 4, 16], count),
        rng.choice([1, 8, 64, 256], count),
        rng.choice([64, 512, 4096], count),
      ],
      axis=1,
    )
    noisy = rng.uniform(0.01, 1.0, count)
    assert_monotone(surface.fit(points, noisy).at)


def test_model_alone_or_bounds_alone_would_not_do():
  """Negative control: neither passes through a staircase's points."""
  points = np.array(POINTS, float)
  seconds = np.array([true_seconds(*point) for point in POINTS])
  fitted = surface.fit(points, seconds)
  model = surface.features(points) @ fitted.weights
  assert np.max(np.abs(model / seconds - 1)) > 0.01
  np.testing.assert_allclose(fitted.at(points), seconds)
  with pytest.raises(AssertionError):
    assert_monotone(lambda q: np.sin(q[:, 1]))


def test_measurements_that_contradict_meet_in_the_middle():
  points = np.array([[1, 8, 0], [1, 16, 0], [1, 32, 0]])
  np.testing.assert_allclose(
    surface.isotonic(points, np.array([1.0, 3.0, 2.0])), [1.0, 2.5, 2.5]
  )


def test_one_point_is_a_flat_table():
  table = cost_table.CostTable(KEY)
  table.add(4, 16, 128, 0.05)
  assert table.seconds(1, 4, 64) == pytest.approx(0.05)
  assert table.seconds(8, 64, 900) == pytest.approx(0.05)


def test_costs_are_the_staircase_of_the_budgets():
  costs = filled().costs(16, 256, (16, 64, 256))
  np.testing.assert_array_equal(costs.nodes, [16, 64, 256])
  np.testing.assert_allclose(
    costs.verify_s, [true_seconds(16, n, 256) for n in (16, 64, 256)], rtol=1e-6
  )
  assert float(costs.draft_s) == pytest.approx(0.012)


def test_empty_table_is_refused_not_free():
  table = cost_table.CostTable(KEY)
  with pytest.raises(errors.UserError, match='no time of verifying'):
    table.costs(1, 10, (4, 8))
  table.add(1, 4, 10, 0.1)
  with pytest.raises(errors.UserError, match='no time of proposing'):
    table.costs(1, 10, (4, 8))


def test_live_rounds_replace_what_they_hit():
  table = filled()
  for _ in range(cost_table.REFIT_EVERY + cost_table.NUM_RECENT):
    assert table.update(4, 16, 256, 0.033)
  table.update(4, 16, 256, 0.033)
  assert dict(((r, n), s) for r, n, c, s in table.entries() if c < 1000)[
    4, 16
  ] == pytest.approx(0.033)
  assert table.seconds(4, 16, 256) == pytest.approx(0.033)
  assert_monotone(
    lambda q: np.array([table.seconds(int(r), int(n), c) for r, n, c in q])
  )


def test_round_that_compiled_is_ignored_unless_it_stays_slow():
  table = filled()
  before = table.entries()
  assert not table.update(4, 16, 256, 5.0)
  assert not table.update(4, 16, 256, 5.0)
  assert table.entries() == before
  assert table.update(4, 16, 256, true_seconds(4, 16, 256))
  assert not table.update(4, 16, 256, 5.0)  # Counting starts again.
  assert not table.update(4, 16, 256, 5.0)
  assert table.update(4, 16, 256, 5.0)  # The machine is slower now.


def test_outlier_at_an_entry_never_measured_is_ignored_too():
  table = filled()
  assert not table.update(4, 32, 256, 5.0)
  assert table.seconds(4, 32, 256) < 0.1
  assert table.update_draft(4, 256, 0.006)
  assert not table.update_draft(4, 256, 6.0)


def test_what_was_measured_far_too_low_is_learned_soon():
  """Else every live round would be an outlier until the next fit."""
  table = cost_table.CostTable()
  table.add_draft(4, 256, 0.0)
  taken = [table.update_draft(4, 256, 0.005) for _ in range(8)]
  assert taken == [False, False] + [True] * 6


def test_table_that_nobody_named_is_not_saved(tmp_path):
  table = cost_table.CostTable()
  table.add(1, 1, 256, 0.02)
  with pytest.raises(ValueError, match='without a key'):
    table.save(tmp_path / 'costs.json')
  assert list(tmp_path.iterdir()) == []


def test_saved_table_is_read_again(tmp_path):
  table = filled()
  path = tmp_path / 'costs.json'
  table.save(path)
  again = cost_table.load(path, KEY)
  assert again.entries() == table.entries()
  assert float(again.costs(4, 256, (4,)).draft_s) == pytest.approx(
    float(table.costs(4, 256, (4,)).draft_s)
  )
  assert [p.name for p in tmp_path.iterdir()] == ['costs.json']


@pytest.mark.parametrize(
  'field', ['device_kind', 'target', 'drafter', 'version', 'shapes']
)
def test_table_of_another_key_is_refused(tmp_path, field):
  path = tmp_path / 'costs.json'
  filled().save(path)
  other = cost_table.Key(**{**vars(KEY), field: 'other'})
  with pytest.raises(errors.UserError, match=f"{field} .* and not 'other'"):
    cost_table.load(path, other)


@pytest.mark.parametrize(
  'text', ['', '{}', '[]', '{"key": {"device": 1}}', '{"key": 3}']
)
def test_damaged_table_is_refused(tmp_path, text):
  path = tmp_path / 'costs.json'
  path.write_text(text)
  with pytest.raises(errors.UserError, match='measured again'):
    cost_table.load(path, KEY)
  with pytest.raises(errors.UserError, match='measured again'):
    cost_table.load(tmp_path / 'none.json', KEY)


def test_damaged_entry_is_refused(tmp_path):
  path = tmp_path / 'costs.json'
  filled().save(path)
  document = json.loads(path.read_text())
  document['verify'][0][3] = -1.0
  path.write_text(json.dumps(document))
  with pytest.raises(errors.UserError, match='cannot be read'):
    cost_table.load(path, KEY)


@pytest.mark.parametrize(
  'point', [(0, 1, 0, 1.0), (1, 0, 0, 1.0), (1, 1, -1, 1.0), (1, 1, 0, 0.0)]
)
def test_time_that_is_none_is_refused(point):
  with pytest.raises(errors.UserError, match='rows='):
    cost_table.CostTable(KEY).add(*point)
