# SPDX-License-Identifier: MIT
"""Real processes serve one target together, over gloo on this machine."""

import pytest

from tests.evals import unchecked
from tests.serve import processes

pytestmark = pytest.mark.slow


def alone(*what):
  from jspec.serve import engine

  target, drafter, chosen, compiler, asked = processes.models(what)
  with unchecked.constructors():
    made = engine.Engine(target, drafter, chosen, compiler=compiler)
  return processes.answers(made, asked)


def test_two_processes_give_the_tokens_of_one_device():
  """Greedy, sampled, with grammars, preempted and cancelled."""
  pytest.importorskip('llguidance', reason="needs the extra 'structured'")
  texts, codes = processes.ended(processes.start(2, 'grammars'))
  assert codes == [0, 0], '\n'.join(texts)
  found = processes.said(texts[0])
  assert found['answers'] == alone('grammars')
  assert found['preemptions'] and found['split'] and found['accepted']


def test_a_follower_that_is_killed_is_told_of_at_once(tmp_path):
  """And not when JAX misses it, a minute later."""
  path = tmp_path / 'pid'
  started = processes.start(2, 'plain', 'kill', str(path))
  path.write_text(str(started[1].pid))
  texts, codes = processes.ended(started)
  assert codes == [1, -9], '\n'.join(texts)
  assert 'process 1 is gone' in processes.said(texts[0])['Lost']


@pytest.mark.parametrize(
  'other, name', [('other-settings', 'settings'), ('other-weights', 'target')]
)
def test_a_process_that_would_run_something_else_is_refused(other, name):
  started = processes.start(2, 'plain', of={1: [other]})
  texts, codes = processes.ended(started)
  assert codes == [2, 2], '\n'.join(texts)
  for text in texts:
    assert (
      f'process 1 has other {name} than the leader'
      in (processes.said(text)['error'])
    )
