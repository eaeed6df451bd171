# SPDX-License-Identifier: MIT
"""Real processes train together, over gloo on this machine."""

import re
import time

import numpy as np
import pytest

from jspec import metrics
from tests.train import processes, tiny

pytestmark = pytest.mark.slow

ONLINE = dict(data__mode='online', data__store='', optim__ema_decay=0.9)


def folder_of(path):
  tiny.write_answers(path / 'answers.jsonl')
  return path


def losses(folder):
  rows = metrics.read(folder / 'run' / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(1, len(rows) + 1))
  return [row['loss'] for row in rows]


def run(folder, *args, **named):
  texts, codes = processes.ended(processes.start(folder, *args, **named))
  assert codes == [0] * len(codes), '\n'.join(texts)
  return texts


def ended_soon(started):
  """As `processes.ended`, of processes that end soon after one of them."""
  first = None
  while None in [one.poll() for one in started]:
    if first is None and any(one.poll() is not None for one in started):
      first = time.monotonic()
    time.sleep(0.1)
    assert first is None or time.monotonic() - first < 15, 'one still waits'
  return processes.ended(started)


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """Losses of one process with four devices, all weights everywhere."""
  folder = folder_of(tmp_path_factory.mktemp('alone'))
  run(folder, 1, 4, ONLINE)
  return losses(folder)


def test_four_processes_have_the_losses_of_one(alone, tmp_path):
  folder = folder_of(tmp_path)
  texts = run(folder, 4, 4, ONLINE | dict(mesh__preset='fsdp'))
  np.testing.assert_allclose(losses(folder), alone, rtol=1e-5)
  assert (folder / 'run' / 'export' / 'config.json').is_file()
  assert (folder / 'run' / 'provenance.json').is_file()
  # One of them speaks for all.
  assert ['step 8 is best' in text or 'is best' in text for text in texts] == [
    True,
    False,
    False,
    False,
  ]


@pytest.mark.parametrize('lost', [1, 0])
def test_a_run_goes_on_when_a_process_was_lost(alone, tmp_path, lost):
  """The other ends soon, with a line; other processes and another preset
  then go on with the very next loss."""
  folder = folder_of(tmp_path)
  started = processes.start(
    folder,
    2,
    4,
    ONLINE | dict(mesh__preset='fsdp_tp'),
    what={lost: 'kill 5'},
  )
  texts, codes = ended_soon(started)
  assert codes[lost] == -9
  assert codes[1 - lost] == 2, texts[1 - lost]
  line = (
    f'error: process {lost} is gone: see its output; the same command goes on'
    ' from the newest checkpoint\n'
  )
  assert texts[1 - lost].endswith(line)
  # The first speaks for all until then: this is all that the other says.
  assert lost or texts[1] == line
  assert 'Traceback' not in texts[1 - lost]
  np.testing.assert_allclose(
    losses(folder), alone[: len(losses(folder))], rtol=1e-5
  )
  texts = run(folder, 4, 4, ONLINE | dict(mesh__preset='dp'))
  # The save of step 4 may not have come to its end.
  assert re.search(r'resumed from step [24]\n', texts[0]), texts[0]
  np.testing.assert_allclose(losses(folder), alone, rtol=1e-5)


def test_a_signal_to_one_process_saves_the_run_of_all(alone, tmp_path):
  folder = folder_of(tmp_path)
  texts, codes = processes.ended(
    processes.start(
      folder, 2, 4, ONLINE | dict(mesh__preset='fsdp'), what={1: 'term 3'}
    )
  )
  assert codes == [143, 143], '\n'.join(texts)
  assert 'SIGTERM: step' in texts[0]
  run(folder, 1, 4, ONLINE | dict(mesh__preset='sp'))
  np.testing.assert_allclose(losses(folder), alone, rtol=1e-5)


# At a checkpoint of all, where process 0 makes the folder, and at a row that is
# of process 0 alone.
@pytest.mark.parametrize('full, step', [(1, 5), (0, 6), (0, 5)])
def test_a_write_that_fails_in_one_process_stops_all_with_its_cause(
  alone, tmp_path, full, step
):
  folder = folder_of(tmp_path)
  changes = ONLINE | dict(mesh__preset='fsdp')
  texts, codes = ended_soon(
    processes.start(folder, 2, 4, changes, what={full: f'full {step}'})
  )
  assert codes == [2, 2], '\n'.join(texts)
  for text in texts:
    (line,) = (x for x in text.splitlines() if 'error' in x.lower())
    assert 'make room there' in line and 'File too large' in line
    assert 'the same command then goes on from the' in line
    assert 'Traceback' not in text
  assert f'error: process {full}: ' in texts[1 - full]
  assert f'process {full}' not in texts[full]
  texts = run(folder, 1, 4, changes)
  assert re.search(r'resumed from step [24]\n', texts[0]), texts[0]
  np.testing.assert_allclose(losses(folder), alone, rtol=1e-5)


def test_processes_with_other_configs_are_refused(tmp_path):
  folder = folder_of(tmp_path)
  texts, codes = processes.ended(
    processes.start(folder, 2, 2, ONLINE, of={1: dict(seed=1)})
  )
  assert codes == [2, 2], '\n'.join(texts)
  for text in texts:
    assert 'process 1 has another config than process 0' in text
  assert not (folder / 'run').exists()


def test_several_processes_do_not_fill_a_store(tmp_path):
  texts, codes = processes.ended(processes.start(folder_of(tmp_path), 2, 2))
  assert codes == [2, 2], '\n'.join(texts)
  assert 'run `jspec capture` with this config' in texts[0]
