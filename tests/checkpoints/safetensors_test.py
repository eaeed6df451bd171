# SPDX-License-Identifier: MIT
"""Safetensors folders: dtypes, pieces, atomic writing."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jspec import errors
from jspec.checkpoints import safetensors as folders


def tensors():
  rng = np.random.default_rng(0)
  return {n: rng.normal(size=(3, 5)).astype(np.float32) for n in ('a', 'b')}


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
def test_floats_come_back_as_float32(tmp_path, dtype):
  stored = {k: v.astype(np.dtype(dtype)) for k, v in tensors().items()}
  folders.write(tmp_path, stored, {'x': 1})
  source = folders.SafetensorsFolder(tmp_path)
  assert set(source.names()) == {'a', 'b'}
  assert source.shape('a') == (3, 5)
  got = source.read('b')
  assert got.dtype == np.float32
  np.testing.assert_array_equal(got, stored['b'].astype(np.float32))


def test_integers_keep_their_type(tmp_path):
  folders.write(tmp_path, {'ids': np.arange(4, dtype=np.int32)}, {})
  got = folders.SafetensorsFolder(tmp_path).read('ids')
  assert got.dtype == np.int32
  np.testing.assert_array_equal(got, np.arange(4))


def test_transposed_view_is_written_by_value(tmp_path):
  values = tensors()['a'].T
  folders.write(tmp_path, {'a': values}, {})
  got = folders.SafetensorsFolder(tmp_path).read('a')
  np.testing.assert_array_equal(got, values)


def test_bfloat16_rounds_to_nearest():
  got = folders.to_bfloat16(np.float32([1 + 1 / 256 + 1e-4]))
  assert got.dtype == ml_dtypes.bfloat16
  assert float(got[0]) == 1 + 1 / 128


def write_pieces(folder, weight_map):
  for file in set(weight_map.values()):
    held = {n: tensors()[n] for n, f in weight_map.items() if f == file}
    safetensors.numpy.save_file(held, folder / file)
  index = {'metadata': {}, 'weight_map': weight_map}
  (folder / folders.INDEX).write_text(json.dumps(index))


def test_pieces_are_read_through_the_index(tmp_path):
  write_pieces(tmp_path, {'a': 'm-1.safetensors', 'b': 'm-2.safetensors'})
  source = folders.SafetensorsFolder(tmp_path)
  for name, values in tensors().items():
    np.testing.assert_array_equal(source.read(name), values)


def test_missing_piece_is_named(tmp_path):
  write_pieces(tmp_path, {'a': 'm-1.safetensors', 'b': 'm-2.safetensors'})
  (tmp_path / 'm-2.safetensors').unlink()
  with pytest.raises(errors.UserError, match='m-2.safetensors'):
    folders.SafetensorsFolder(tmp_path)


def test_index_that_disagrees_with_its_file_is_refused(tmp_path):
  write_pieces(tmp_path, {'a': 'm-1.safetensors'})
  index = {'weight_map': {'a': 'm-1.safetensors', 'c': 'm-1.safetensors'}}
  (tmp_path / folders.INDEX).write_text(json.dumps(index))
  with pytest.raises(errors.UserError, match='disagree about tensor c'):
    folders.SafetensorsFolder(tmp_path)


@pytest.mark.parametrize('keep', [4, 40, 0.9])
def test_truncated_file_is_a_user_error(tmp_path, keep):
  folders.write(tmp_path, tensors(), {})
  data = (tmp_path / folders.FILE).read_bytes()
  size = keep if keep > 1 else int(len(data) * keep)
  (tmp_path / folders.FILE).write_bytes(data[:size])
  with pytest.raises(errors.UserError, match='truncated'):
    folders.SafetensorsFolder(tmp_path)


def test_empty_folder_is_a_user_error(tmp_path):
  with pytest.raises(errors.UserError, match='neither'):
    folders.SafetensorsFolder(tmp_path)


def test_unsupported_dtype_is_named(tmp_path):
  safetensors.numpy.save_file(
    {'a': np.zeros(2, np.float64)}, tmp_path / folders.FILE
  )
  with pytest.raises(errors.UserError, match='F64'):
    folders.SafetensorsFolder(tmp_path)


def test_failed_write_keeps_the_former_file_and_no_rest(tmp_path, monkeypatch):
  folders.write(tmp_path, tensors(), {'version': 1})
  before = (tmp_path / folders.FILE).read_bytes()

  def fail(*_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'replace', fail)
  with pytest.raises(OSError, match='disk full'):
    folders.write(tmp_path, {'a': np.zeros(3, np.float32)}, {'version': 2})
  assert (tmp_path / folders.FILE).read_bytes() == before
  assert json.loads((tmp_path / 'config.json').read_text()) == {'version': 1}
  names = sorted(p.name for p in tmp_path.iterdir())
  assert names == ['config.json', folders.FILE]
