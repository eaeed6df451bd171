# SPDX-License-Identifier: MIT
"""tpu_vm.sh, tpu_slice.sh and queued.sh, against a pretended gcloud."""

import pytest

from tests.launch import serving

ODD = ['train', '--config', 'c.py:smoke', "--config.data.answers=it's $HOME *"]


def run(world, script, *words, **environment):
  environment.setdefault('ZONE', 'here')
  return world.run(serving.LAUNCH / script, *words, **environment)


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'script, more', [('tpu_vm.sh', []), ('tpu_slice.sh', ['--all-hosts'])]
)
def test_words_arrive_as_they_are(world, script, more):
  done = run(world, script, 'name', *ODD)
  assert done.returncode == 0, done.stderr
  (words,) = world.asked('jspec')
  assert words == ['jspec', ODD[0], *more, *ODD[1:]]
  assert serving.flags(words[1:]).all_hosts == bool(more)


@pytest.mark.few(1)
@pytest.mark.parametrize('script', ['tpu_vm.sh', 'tpu_slice.sh'])
def test_second_call_makes_no_second_machine(world, script):
  for _ in range(2):
    assert run(world, script, 'name', 'doctor').returncode == 0
  vm = ['gcloud', 'compute', 'tpus', 'tpu-vm']
  assert len(world.asked(*vm, 'create')) == 1
  assert len(world.asked(*vm, 'scp')) == 2
  # The committed tree is there.
  assert (world.folder / 'vm' / 'jspec' / 'setup.py').exists()


def test_slice_is_told_all_it_needs_on_all_hosts(world):
  done = run(world, 'tpu_slice.sh', 'name', 'serve', '--rows=64', TYPE='v6e-16')
  assert done.returncode == 0, done.stderr
  calls = world.asked('gcloud', 'compute', 'tpus', 'tpu-vm')
  (create,) = [call for call in calls if call[4] == 'create']
  assert create[create.index('--accelerator-type') + 1] == 'v6e-16'
  for call in calls:
    if call[4] in ('scp', 'ssh'):
      assert call[call.index('--worker') + 1] == 'all'
  (words,) = world.asked('jspec')
  args = serving.flags(words[1:])
  assert args.all_hosts and args.rows == 64


@pytest.mark.few(1)
@pytest.mark.parametrize('script', ['tpu_vm.sh', 'tpu_slice.sh'])
def test_status_is_that_of_the_program(world, script):
  world.says('statuses', 143)
  assert run(world, script, 'name', 'doctor').returncode == 143


@pytest.mark.parametrize('script', ['tpu_vm.sh', 'tpu_slice.sh'])
def test_machine_is_not_made_where_that_is_forbidden(world, script):
  done = run(world, script, 'name', 'doctor', CREATE='0')
  assert done.returncode == 1 and 'no TPU VM name in here' in done.stderr
  assert not world.asked('jspec')


# --- queued resources -------------------------------------------------------


def queue(world):
  """Verbs of the calls about the request, without the looks at it."""
  calls = world.asked('gcloud', 'compute', 'tpus', 'queued-resources')
  return [call[4] for call in calls if call[4] != 'describe']


def test_run_resumes_when_its_capacity_was_taken_away(world):
  world.says(
    'states',
    *('ABSENT', 'WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE'),
    # The program failed; the request says why only later.
    *('SUSPENDING', 'SUSPENDING', 'SUSPENDED', 'ABSENT', 'ACTIVE'),
  )
  world.says('statuses', 255, 0)
  done = run(world, 'queued.sh', 'name', *ODD)
  assert done.returncode == 0, done.stderr
  assert world.asked('jspec') == 2 * [['jspec', *ODD]]
  assert queue(world) == ['create', 'delete', 'create', 'delete']
  (first, _) = world.asked(
    'gcloud', 'compute', 'tpus', 'queued-resources', 'create'
  )
  assert '--spot' in first
  # At full price there never was one.
  assert not world.asked('gcloud', 'compute', 'tpus', 'tpu-vm', 'create')


def test_saved_run_resumes_though_the_request_says_nothing(world):
  (world.folder / 'vm').mkdir()
  world.says('states', 'ACTIVE')
  world.says('statuses', 143, 0)
  assert run(world, 'queued.sh', 'name', 'train').returncode == 0
  assert len(world.asked('jspec')) == 2
  assert queue(world) == ['delete']


def test_failure_of_the_program_itself_is_final(world):
  (world.folder / 'vm').mkdir()
  world.says('states', 'ACTIVE')
  world.says('statuses', 2)
  assert run(world, 'queued.sh', 'name', 'train').returncode == 2
  assert len(world.asked('jspec')) == 1
  assert queue(world) == ['delete']


@pytest.mark.slow
def test_request_that_failed_is_made_again(world):
  world.says('states', 'FAILED', 'ABSENT', 'ACTIVE')
  assert run(world, 'queued.sh', 'name', 'train').returncode == 0
  assert queue(world) == ['delete', 'create', 'delete']


@pytest.mark.slow
def test_all_hosts_of_a_queued_slice_run_the_program(world):
  world.says('states', 'ABSENT', 'ACTIVE')
  done = run(world, 'queued.sh', 'name', *ODD, HOSTS='all', TYPE='v5p-16')
  assert done.returncode == 0, done.stderr
  assert world.asked('jspec') == [['jspec', 'train', '--all-hosts', *ODD[1:]]]
  (create,) = world.asked(
    'gcloud', 'compute', 'tpus', 'queued-resources', 'create'
  )
  assert create[create.index('--accelerator-type') + 1] == 'v5p-16'


def test_hosts_are_one_or_all(world):
  done = run(world, 'queued.sh', 'name', 'train', HOSTS='two')
  assert done.returncode == 2 and done.stderr.startswith('usage: ')
