# SPDX-License-Identifier: MIT
"""Loading beside reading: both take time, and the bytes are those of files."""

import pytest

from jspec import errors, loading
from jspec.bench import load
from jspec.checkpoints import safetensors
from tests import tiny_model


def test_both_are_measured_as_often_as_asked_for(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  seen = []
  found = load.run(
    f'{path},dtype=bfloat16',
    repeats=2,
    on_progress=lambda done, total: seen.append((done, total)),
  )
  assert seen == [(1, 2), (2, 2)]
  assert found['file_bytes'] == (path / safetensors.FILE).stat().st_size
  assert [len(times) for times in found['all'].values()] == [2, 2]
  assert found['ratio'] == found['load_s'] / found['disk_s'] > 0
  for one in found['all']['load']:
    steps = sum(one[f'{step}_s'] for step in loading.STEPS)
    assert 0.9 * one['load_s'] < steps <= one['load_s']
  # The head is the embedding, which an array of its own repeats.
  tied = 2 * tiny_model.VOCAB * tiny_model.WIDTH
  assert found['array_bytes'] > 2 * tied
  line = load.line(found)
  assert line.startswith('tiny,dtype=bfloat16, 1 devices, cold: 0.00 GB in')
  assert 'times' in line


def test_an_unknown_dtype_is_refused(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  with pytest.raises(errors.UserError, match="dtype='int8'"):
    load.run(f'{path},dtype=int8')


def test_eight_bits_are_read_as_such(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  plain, small = (
    load.run(f'{path}{options}', repeats=1)['array_bytes']
    for options in ('', ',weights=int8')
  )
  assert small < 0.9 * plain


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_bytes(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  own, apart = (
    load.run(str(path), repeats=1, is_apart=is_apart)
    for is_apart in (False, True)
  )
  assert own['array_bytes'] == apart['array_bytes']
  assert own['file_bytes'] == apart['file_bytes']
  assert apart['is_apart'] and not own['is_apart']
