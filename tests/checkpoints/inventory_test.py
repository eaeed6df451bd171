# SPDX-License-Identifier: MIT
"""What `jspec ckpt` says of a folder, and what it leaves there."""

import jax
import jax.numpy as jnp
import pytest

from jspec.checkpoints import inventory, orbax
from jspec.cli import main

SCORES = {1: 2.0, 2: 5.0, 3: float('nan'), 4: 1.0}
METRIC = 'tokens_per_round'


@pytest.fixture
def workdir(tmp_path):
  """The workdir of a run with four checkpoints and things that are none."""
  checkpoints = orbax.Checkpoints(
    tmp_path / 'checkpoints', metric=METRIC, keep_latest=4
  )
  for step, score in SCORES.items():
    state = {'w': jnp.full((50,), step, jnp.float32), 'key': jax.random.key(0)}
    checkpoints.save(step, state, {}, {METRIC: score})
  checkpoints.close()
  (tmp_path / 'checkpoints' / '2_export').mkdir()
  (tmp_path / 'checkpoints' / '5.orbax-checkpoint-tmp').mkdir()
  return tmp_path


def files(folder):
  return sorted(p.relative_to(folder) for p in folder.rglob('*'))


def run(capsys, *words):
  code = main.main(['ckpt', *map(str, words)])
  return code, capsys.readouterr().out


def test_ls_names_newest_and_best_and_touches_nothing(workdir, capsys):
  before = files(workdir)
  code, said = run(capsys, 'ls', workdir)
  lines = said.splitlines()
  assert code == 0 and len(lines) == 4
  assert lines[1].startswith('step 2') and lines[1].endswith('5.000  best')
  assert lines[2].endswith('not measured')
  assert lines[3].endswith('1.000  latest')
  assert files(workdir) == before


@pytest.mark.parametrize('victim', ['state', 'meta', 'metrics'])
def test_verify_finds_a_cut_checkpoint(workdir, capsys, victim):
  assert run(capsys, 'verify', workdir)[0] == 0
  for path in (workdir / 'checkpoints' / '2' / victim).rglob('*'):
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  before = files(workdir)
  code, said = run(capsys, 'verify', workdir)
  assert code == 1 and files(workdir) == before
  assert [line.split()[2].strip(':') for line in said.splitlines()[:4]] == [
    'ok',
    'broken',
    'ok',
    'ok',
  ]
  assert '3 of 4 checkpoints are whole' in said


def test_verify_finds_a_weight_that_is_not_finite(tmp_path):
  checkpoints = orbax.Checkpoints(tmp_path / 'checkpoints', metric=METRIC)
  checkpoints.save(1, {'w': jnp.array([1.0, jnp.nan])}, {}, {METRIC: 1.0})
  checkpoints.close()
  assert inventory.why_unreadable(tmp_path, 1) == 'w is not finite'


def test_prune_keeps_newest_and_best_and_what_is_not_its(workdir, capsys):
  # One that was killed left this.
  (workdir / 'pruned.partial' / '9').mkdir(parents=True)
  code, said = run(capsys, 'prune', workdir)
  assert code == 0 and 'step 1, step 3' in said
  left = {p.name for p in (workdir / 'checkpoints').iterdir()}
  assert left == {'2', '4', '2_export', '5.orbax-checkpoint-tmp'}
  assert not (workdir / 'pruned.partial').exists()
  reopened = orbax.Checkpoints(workdir / 'checkpoints', metric=METRIC)
  assert reopened.steps() == [2, 4] and reopened.best_step() == 2
  reopened.close()


@pytest.mark.parametrize(
  'words, said',
  [
    (('ls', 'nowhere'), 'has no folder checkpoints'),
    (('prune', 'WORKDIR', '--keep-best', '0'), '--keep-best is 0'),
  ],
)
def test_bad_input_is_one_line(workdir, capsys, words, said):
  code = main.main(
    ['ckpt', *[w.replace('WORKDIR', str(workdir)) for w in words]]
  )
  assert code == 2 and said in capsys.readouterr().err
  assert len(inventory.read(workdir, METRIC)) == 4
