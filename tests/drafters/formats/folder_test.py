# SPDX-License-Identifier: MIT
"""Folders: dtypes as on disk, and whole or not there."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jspec import errors
from jspec.drafters.formats import folder
from tests.drafters.formats import tiny

TENSORS = {
  'a': np.asarray([[1.5, -2]], ml_dtypes.bfloat16),
  'b': np.asarray([0.1], np.float16),
  'c': np.asarray([3], np.int64),
  'd': np.asarray([True, False]),
}


def test_dtypes_and_values_are_those_on_disk(tmp_path):
  folder.write(tmp_path / 'x', {'k': 1}, TENSORS)
  config, tensors = folder.read(tmp_path / 'x')
  assert config == {'k': 1}
  assert tiny.same(tensors, TENSORS)
  assert [p.name for p in tmp_path.iterdir()] == ['x']


def test_tensors_over_several_files_are_read(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  for name, values in TENSORS.items():
    safetensors.numpy.save_file(
      {name: values}, tmp_path / f'{name}.safetensors'
    )
  index = {'weight_map': {name: f'{name}.safetensors' for name in TENSORS}}
  (tmp_path / 'model.safetensors.index.json').write_text(json.dumps(index))
  assert tiny.same(folder.read(tmp_path)[1], TENSORS)


def test_strange_views_are_written_as_they_look(tmp_path):
  turned = np.arange(6, dtype=np.float32).reshape(2, 3).T[:, ::-1]
  folder.write(tmp_path / 'x', {}, {'t': turned})
  np.testing.assert_array_equal(folder.read(tmp_path / 'x')[1]['t'], turned)


def test_empty_folder_is_taken_and_a_full_one_is_not(tmp_path):
  (tmp_path / 'x').mkdir()
  folder.write(tmp_path / 'x', {}, TENSORS)
  before = sorted(p.name for p in (tmp_path / 'x').iterdir())
  with pytest.raises(errors.UserError, match='is not empty'):
    folder.write(tmp_path / 'x', {'k': 2}, TENSORS)
  assert sorted(p.name for p in (tmp_path / 'x').iterdir()) == before
  (tmp_path / 'file').write_text('')
  for bad in ('file', 'absent/x'):
    with pytest.raises(errors.UserError):
      folder.check_free(tmp_path / bad)


def test_failure_leaves_nothing(tmp_path):
  with pytest.raises(TypeError):
    folder.write(tmp_path / 'x', {'k': object()}, TENSORS)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('text', ['{', '[]', ''])
def test_config_that_cannot_be_read_is_refused(tmp_path, text):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(errors.UserError, match='not a readable config'):
    folder.read(tmp_path)
