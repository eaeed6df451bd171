# SPDX-License-Identifier: MIT
"""Which cases of a test are left in the fast suite."""

import pytest

from tests import few


@pytest.mark.parametrize(
  'num_cases, num, kept',
  [(10, 1, [0]), (10, 3, [0, 3, 6]), (11, 2, [0, 5]), (3, 3, [0, 1, 2])],
)
def test_kept_cases_are_spread(num_cases, num, kept):
  cases = list(range(num_cases))
  assert sorted(set(cases) - set(few.others(cases, num))) == kept


def test_all_stay_where_there_are_no_more():
  assert few.others('ab', 5) == []


def test_none_is_refused():
  with pytest.raises(ValueError, match='leave one or more'):
    few.others('ab', 0)


PARAMETERS = 3


@pytest.mark.few(1)
@pytest.mark.parametrize('case', range(PARAMETERS))
def test_only_the_first_is_fast(case, request):
  assert (request.node.get_closest_marker('slow') is None) == (case == 0)
