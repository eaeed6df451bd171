# SPDX-License-Identifier: MIT
"""A fixed depth, whatever the scores say."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.depth import static
from tests.depth import cases

TABLE = cases.even_costs(40)


@pytest.mark.parametrize('depth, expected', [(None, 5), (0, 0), (3, 3), (9, 5)])
def test_depth_of_every_row(depth, expected):
  scores = cases.scores_of(np.full((3, 5), 0.01))
  got = cases.plan(
    static.Static(depth=depth), scores, cases.full_load(3, 5), TABLE
  )
  np.testing.assert_array_equal(got, [expected] * 3)


def test_scores_do_not_decide_who_is_cut_for_the_budget():
  low_first = jnp.array([[0.1] * 4, [0.9] * 4, [0.9] * 4])
  table = cases.even_costs(3 + 7)
  for scores in (low_first, low_first[::-1]):
    got = cases.plan(static.Static(), scores, cases.full_load(3, 4), table)
    np.testing.assert_array_equal(got, [3, 2, 2])


def test_no_score_decides_anything_not_even_zero():
  """With sampled drafts a score may know the token that it judges."""
  for limit in (4, 2):
    load = cases.full_load(1, limit)
    for scores in ([[0.9, 0.5, 0.0, 0.0]], [[0.9, 0.5, 0.4, 0.3]]):
      got = cases.plan(static.Static(), jnp.array(scores), load, TABLE)
      assert int(got[0]) == limit


def test_negative_depth_is_refused():
  with pytest.raises(errors.UserError, match='depth=-1'):
    static.Static(depth=-1)
