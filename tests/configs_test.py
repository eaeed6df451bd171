# SPDX-License-Identifier: MIT
"""Every config builds by its argument string, and refuses what it lacks."""

import pathlib
import subprocess
import sys

import ml_collections
import pytest

from jspec import config as config_lib
from jspec import errors
from jspec.train import settings

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = sorted((ROOT / 'configs' / 'train').glob('*.py'))


def test_there_are_configs():
  assert TRAIN


@pytest.mark.parametrize('arg', ['', ':smoke'])
@pytest.mark.parametrize('path', TRAIN, ids=lambda path: path.stem)
def test_config_builds_a_train_config(path, arg):
  values = config_lib.load_file(f'{path}{arg}')
  assert isinstance(values, ml_collections.ConfigDict)
  config = config_lib.build(settings.TrainConfig, values)
  assert config.num_steps > 0


@pytest.mark.parametrize('path', TRAIN, ids=lambda path: path.stem)
def test_smoke_is_shorter(path):
  full = config_lib.load_file(str(path))
  smoke = config_lib.load_file(f'{path}:smoke')
  assert smoke.num_steps < full.num_steps


@pytest.mark.parametrize('path', TRAIN, ids=lambda path: path.stem)
def test_config_refuses_unknown_arguments(path):
  with pytest.raises(errors.UserError, match='nonsense'):
    config_lib.load_file(f'{path}:nonsense=1')


@pytest.mark.parametrize('path', TRAIN, ids=lambda path: path.stem)
def test_config_refuses_unknown_keys(path):
  values = config_lib.load_file(str(path))
  values.nonsense = 1
  with pytest.raises(errors.UserError, match='nonsense'):
    config_lib.build(settings.TrainConfig, values)


def test_configs_load_without_jax():
  code = (
    'import sys\n'
    'from jspec import config\n'
    f'for path in {[str(path) for path in TRAIN]!r}:\n'
    '  config.load_file(path)\n'
    "assert 'jax' not in sys.modules\n"
  )
  subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)
