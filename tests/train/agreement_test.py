# SPDX-License-Identifier: MIT
"""One process agrees with itself; `processes_test` has several."""

from jspec.train import agreement
from tests.train import spread_steps


def test_flags_count_at_once_where_there_is_one_process():
  votes = agreement.Votes(spread_steps.mesh_of())
  assert votes.count(False, True) == (False, True)
  assert votes.count(True, False) == (True, False)


def test_the_only_process_is_the_first_and_speaks():
  said = []
  agreement.told(said.append)('here')
  assert said == ['here']
  agreement.check_same({'config': {}, 'inputs': {}})


def test_votes_of_several_come_one_step_later(monkeypatch):
  votes = agreement.Votes(spread_steps.mesh_of())
  monkeypatch.setattr(votes, '_is_alone', False)
  assert votes.count(False, True) == (False, False)
  assert votes.count(True, False) == (False, True)
  assert votes.count(False, False) == (True, False)
