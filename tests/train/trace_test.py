# SPDX-License-Identifier: MIT
"""A trace holds the steps that were asked for, and nothing is left open."""

import jax
import jax.numpy as jnp
import pytest

from jspec import errors
from jspec.train import settings, trace
from tests.train import tiny


def steps_in(folder):
  """Numbers of the steps that a folder's trace holds."""
  (path,) = folder.rglob('*.xplane.pb')
  data = jax.profiler.ProfileData.from_file(str(path))
  return sorted(
    int(dict(event.stats)['step_num'])
    for plane in data.planes
    for line in plane.lines
    for event in line.events
    if event.name == 'train'
  )


def run(folder, start, num_steps, numbers):
  said = []
  traced = trace.Trace(
    settings.ProfileConfig(start=start, num_steps=num_steps),
    folder,
    on_message=said.append,
  )
  state = jnp.zeros(())
  for number in numbers:
    with traced.step(number, state):
      state = state + 1
  traced.close()
  return said


def test_the_wanted_steps_are_traced(tmp_path):
  (said,) = run(tmp_path, 3, 2, range(1, 8))
  assert steps_in(tmp_path / 'profile') == [3, 4]
  assert 'steps 3 to 4' in said and str(tmp_path / 'profile') in said


def test_trace_ends_with_the_run(tmp_path):
  (said,) = run(tmp_path, 3, 4, range(1, 4))
  assert steps_in(tmp_path / 'profile') == [3] and 'steps 3 to 3' in said


def test_resumed_run_traces_what_is_left(tmp_path):
  (said,) = run(tmp_path, 3, 4, range(5, 9))
  assert steps_in(tmp_path / 'profile') == [5, 6] and 'steps 5 to 6' in said


@pytest.mark.parametrize('start, num_steps', [(10, 0), (3, 2)])
def test_nothing_is_written_where_no_step_is_wanted(tmp_path, start, num_steps):
  assert run(tmp_path, start, num_steps, range(20, 23)) == []
  assert not (tmp_path / 'profile').exists()


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'profile': {'start': 0}}, 'profile.start is 0'),
    ({'profile': {'num_steps': -1}}, 'profile.num_steps is -1'),
    ({'profile': {'start': 7, 'num_steps': 3}}, 'end with step 9'),
    ({'eval__max_tokens': 0}, 'eval.max_tokens is 0'),
    ({'eval__num_prompts': -1}, 'eval.num_prompts is -1'),
  ],
)
def test_steps_outside_the_run_are_refused(tmp_path, changes, said):
  with pytest.raises(errors.UserError, match=said):
    tiny.train(tmp_path, **changes)
  assert not (tmp_path / 'run').exists()
