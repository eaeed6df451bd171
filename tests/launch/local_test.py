# SPDX-License-Identifier: MIT
"""Scripts of one machine: local.sh, gpu.sh and local_processes.sh."""

import signal
import subprocess
import time

import pytest

from jspec import config as config_lib
from jspec.cli import main
from tests.launch import serving

# Process 1 ends as the test says; the others work until they are stopped.
WORKER = r"""
if [[ " $* " == *' --process-id 1 '* ]]; then exit "$(take statuses)"; fi
trap 'echo stopped >>"$PRETENDED/stopped"; exit 143' TERM
echo started >>"$PRETENDED/started"
for _ in {1..600}; do sleep 0.1; done
exit 9
"""


def parsed(words):
  """What the real parser makes of a command; its config must exist too."""
  args = main.parse(words[1:])
  if hasattr(args, 'config'):
    path = args.config.removeprefix('configs/')
    values = config_lib.load_file(str(serving.ROOT / 'configs' / path))
    config_lib.apply_overrides(
      values, [word.removeprefix('--config.') for word in args.overrides]
    )
  return args


def test_chain_on_a_cpu_is_made_of_real_commands(world):
  done = world.run(world.tree / 'launch' / 'local.sh', 'folder')
  assert done.returncode == 0, done.stderr
  regen, train, generate = map(parsed, world.asked('jspec'))
  assert str(regen.out) == 'folder/answers.jsonl'
  assert train.workdir == 'folder/run'
  assert generate.drafter == 'folder/run/export'


def test_gpu_host_trains_and_measures(world):
  done = world.run(
    *(world.tree / 'launch' / 'gpu.sh', 'a.jsonl', 'run'),
    '--config.data.num_rows=16',
  )
  assert done.returncode == 0, done.stderr
  train, bench = map(parsed, world.asked('jspec'))
  assert train.workdir == f'{world.folder}/run'
  assert '--config.data.num_rows=16' in train.overrides
  assert bench.drafter == f'{world.folder}/run/export'


def processes(world, *words):
  return [str(world.tree / 'launch' / 'local_processes.sh'), *words]


@pytest.mark.parametrize(
  'words', [['serve', '--rows=4'], ['train', '--config=c.py', '--config.x=4']]
)
def test_processes_get_one_coordinator_and_ids_of_their_own(world, words):
  done = world.run(*processes(world, '3', *words))
  assert done.returncode == 0, done.stderr
  found = [serving.flags(words[1:]) for words in world.asked('jspec')]
  assert sorted(args.process_id for args in found) == [0, 1, 2]
  assert {args.num_processes for args in found} == {3}
  assert all(words[-1] in call for call in world.asked('jspec'))
  (coordinator,) = {args.coordinator for args in found}
  assert coordinator.startswith('127.0.0.1:')


@pytest.mark.parametrize('status', [2, 139])
def test_first_failure_ends_the_others(world, status):
  world.program('jspec', WORKER)
  world.says('statuses', status)
  began = time.monotonic()
  # They may be stopped before they can tell; then the shell ends them.
  done = world.run(*processes(world, '3', 'train'))
  assert done.returncode == status
  assert time.monotonic() - began < 30


def test_sigterm_reaches_all_once(world):
  world.program('jspec', WORKER.replace("== *' --process-id 1 '*", '== none'))
  script = subprocess.Popen(
    processes(world, '2', 'train'),
    env=world.environment(),
    stderr=subprocess.DEVNULL,
  )
  started, stopped = world.folder / 'started', world.folder / 'stopped'
  began = time.monotonic()
  while not started.exists() or started.read_text().count('\n') < 2:
    assert time.monotonic() - began < 60
    time.sleep(0.05)
  script.send_signal(signal.SIGTERM)
  assert script.wait(60) == 143
  assert stopped.read_text().split() == ['stopped', 'stopped']


@pytest.mark.parametrize('words', [[], ['2'], ['0', 'train'], ['x', 'train']])
def test_number_of_processes_is_wanted(world, words):
  done = world.run(*processes(world, *words))
  assert done.returncode == 2 and done.stderr.startswith('usage: ')
  assert not world.asked('make')
