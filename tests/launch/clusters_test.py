# SPDX-License-Identifier: MIT
"""gke_xpk.sh and slurm.sh, against a pretended xpk and a pretended Slurm."""

import re

import pytest

from tests.launch import serving

ODD = ['train', '--config', 'c.py:smoke', "--config.data.answers=it's $HOME *"]
TOLD = ['jspec', 'train', '--all-hosts', *ODD[1:]]
GKE = {'PROJECT': 'p', 'ZONE': 'z', 'CLUSTER': 'c'}


def gke(world, *words, **environment):
  return world.run(serving.LAUNCH / 'gke_xpk.sh', *words, **GKE, **environment)


def value(call, flag):
  return call[call.index(flag) + 1]


def test_workload_runs_the_program_on_all_hosts(world):
  done = gke(
    world,
    'name',
    'image:tpu',
    *ODD,
    SLICES='2',
    STORAGE='bucket',
    TYPE='v6e-16',
  )
  assert done.returncode == 0, done.stderr
  assert world.asked('jspec') == [TOLD]
  (call,) = world.asked('xpk', 'workload', 'create')
  assert value(call, '--workload') == 'name'
  assert value(call, '--docker-image') == 'image:tpu'
  assert value(call, '--tpu-type') == 'v6e-16'
  assert value(call, '--num-slices') == '2'
  assert value(call, '--storage') == 'bucket'
  assert int(value(call, '--max-restarts')) > 0
  assert value(call, '--restart-on-exit-codes') == '3'
  # SIGTERM must reach the program, which saves.
  assert value(call, '--command').startswith('exec jspec ')
  for call in world.asked('xpk'):
    for flag, name in GKE.items():
      assert value(call, f'--{flag.lower()}') == name


def test_workload_that_is_there_is_waited_for(world):
  world.says('workloads', 'name-2 FAILED', 'name RUNNING')
  world.says('ends', 125)
  assert gke(world, 'name', 'image', 'train').returncode == 125
  assert not world.asked('xpk', 'workload', 'create')
  assert not world.asked('xpk', 'workload', 'delete')


def test_workload_that_failed_is_made_again(world):
  world.says('workloads', 'name FAILED')
  assert gke(world, 'name', 'image', 'train').returncode == 0
  assert len(world.asked('xpk', 'workload', 'delete')) == 1
  assert len(world.asked('xpk', 'workload', 'create')) == 1


def test_cluster_that_does_not_answer_ends_the_script(world):
  world.program('xpk', 'exit 7\n')
  assert gke(world, 'name', 'image', 'train').returncode == 7
  assert len(world.asked('xpk')) == 1


def test_program_takes_the_words():
  assert serving.flags(TOLD[1:]).all_hosts


# --- Slurm ------------------------------------------------------------------

SLURM = {
  'SLURM_JOB_ID': '17',
  'SLURM_JOB_NUM_NODES': '2',
  'SLURM_GPUS_ON_NODE': '8',
  'SLURM_CPUS_ON_NODE': '96',
}


def slurm(world, *words, **environment):
  return world.run(
    *('sbatch', '--nodes', '2', 'launch/slurm.sh', *words),
    cwd=world.tree,
    **{**SLURM, **environment},
  )


def test_every_gpu_has_a_process(world):
  done = slurm(world, *ODD)
  assert done.returncode == 0, done.stderr
  assert world.asked('jspec') == [TOLD]
  (call,) = world.asked('srun')
  assert {'--ntasks=16', '--ntasks-per-node=8', '--cpus-per-task=12'} < set(
    call
  )
  # A process picks its GPU by number, among all.
  assert '--gpu-bind=none' in call
  assert (world.tree / '.venv').exists()
  assert not world.asked('scontrol')


@pytest.mark.parametrize('cuda, extra', [('12', 'gpu-cuda12'), ('13', 'gpu')])
def test_cuda_is_chosen(world, cuda, extra):
  assert slurm(world, 'train', CUDA=cuda).returncode == 0
  (call,) = world.asked('pip')
  assert call[-1] == f'.[{extra}]'


def test_saved_run_goes_back_into_the_queue(world):
  world.says('statuses', 143)
  assert slurm(world, 'train').returncode == 143
  assert world.asked('scontrol') == [['scontrol', 'requeue', '17']]


def test_failure_of_the_program_itself_is_final(world):
  world.says('statuses', 2)
  assert slurm(world, 'train').returncode == 2
  assert not world.asked('scontrol')


def test_job_without_gpus_is_refused(world):
  done = slurm(world, 'train', SLURM_GPUS_ON_NODE='')
  assert done.returncode == 2 and '--gpus-per-node' in done.stderr
  assert not world.asked('make')


def test_job_is_warned_in_time_and_may_come_back():
  text = (serving.LAUNCH / 'slurm.sh').read_text(encoding='utf-8')
  wanted = dict(
    line.partition('=')[::2]
    for line in re.findall(r'^#SBATCH --(\S+)$', text, re.MULTILINE)
  )
  # To the processes, not to the shell, whose end would be the job's.
  assert re.fullmatch(r'TERM@\d+', wanted['signal'])
  assert {'requeue', 'exclusive'} <= wanted.keys()
  assert wanted['dependency'] == 'singleton' and wanted['open-mode'] == 'append'
  # Behind the first command Slurm reads no more of them.
  assert text.index('set -euo') > text.rindex('#SBATCH')
