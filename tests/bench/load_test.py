# SPDX-License-Identifier: MIT
"""Loading beside reading: both take time, and the bytes are those of files."""

import pytest

from jspec import errors
from jspec.bench import load
from jspec.checkpoints import safetensors
from tests import tiny_model


def test_both_are_measured_as_often_as_asked_for(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  seen = []
  found = load.run(
    str(path),
    repeats=2,
    on_progress=lambda done, total: seen.append((done, total)),
  )
  assert seen == [(1, 2), (2, 2)]
  assert found['file_bytes'] == (path / safetensors.FILE).stat().st_size
  assert [len(times) for times in found['all_s'].values()] == [2, 2]
  assert found['ratio'] == found['load_s'] / found['disk_s'] > 0
  # The head is the embedding, which an array of its own repeats.
  tied = 2 * tiny_model.VOCAB * tiny_model.WIDTH
  assert found['array_bytes'] > tied
  line = load.line(found)
  assert line.startswith('tiny, bfloat16, 1 devices, cold: 0.00 GB in')
  assert 'times' in line


def test_an_unknown_dtype_is_refused(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  with pytest.raises(errors.UserError, match="dtype 'int8'"):
    load.run(str(path), dtype='int8')
