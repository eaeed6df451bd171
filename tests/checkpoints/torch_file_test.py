# SPDX-License-Identifier: MIT
"""PyTorch files: tensors come out, anything else is refused unrun."""

import collections
import io
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import torch_file


class _Global:
  """Pickles as the name of a function that need not exist."""

  def __init__(self, module, name):
    self.module, self.name = module, name


class _Call:
  """Pickles as a call of a `_Global`."""

  def __init__(self, function, *args):
    self.function, self.args = function, args


class _Storage:
  """Pickles as a reference to bytes in the archive."""

  def __init__(self, kind, key, count):
    self.pid = ('storage', _Global('torch', kind), key, 'cpu', count)


class _Pickler(pickle._Pickler):  # The one in Python can be taught.
  def persistent_id(self, obj):
    return obj.pid if isinstance(obj, _Storage) else None

  def save(self, obj, save_persistent_id=True):
    if isinstance(obj, _Global):
      self.write(f'c{obj.module}\n{obj.name}\n'.encode())
    elif isinstance(obj, _Call):
      self.save(obj.function)
      self.save(obj.args)
      self.write(pickle.REDUCE)
    else:
      super().save(obj, save_persistent_id)


REBUILD = _Global('torch._utils', '_rebuild_tensor_v2')


def tensor(kind, key, shape, strides, offset=0, count=None):
  count = count or int(np.prod(shape)) + offset
  storage = _Storage(kind, key, count)
  hooks = collections.OrderedDict()
  return _Call(REBUILD, storage, offset, shape, strides, False, hooks)


def write(path, content, storages):
  stream = io.BytesIO()
  _Pickler(stream, protocol=2).dump(content)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('archive/data.pkl', stream.getvalue())
    for key, values in storages.items():
      archive.writestr(f'archive/data/{key}', np.asarray(values).tobytes())
  return path


def test_tensors_keep_dtype_shape_and_values(tmp_path):
  rng = np.random.default_rng(0)
  plain = rng.normal(size=(3, 4)).astype(np.float32)
  half = rng.normal(size=(5,)).astype(ml_dtypes.bfloat16)
  ids = np.arange(6, dtype=np.int64)
  path = write(
    tmp_path / 'pytorch_model.bin',
    {
      'plain': tensor('FloatStorage', '0', (3, 4), (4, 1)),
      'turned': tensor('FloatStorage', '0', (4, 3), (1, 4)),
      'row': tensor('FloatStorage', '0', (4,), (1,), offset=4, count=12),
      'half': tensor('BFloat16Storage', '1', (5,), (1,)),
      'd2t': tensor('LongStorage', '2', (6,), (1,)),
      't2d': tensor('BoolStorage', '3', (2,), (1,)),
    },
    {'0': plain, '1': half, '2': ids, '3': [True, False]},
  )
  found = torch_file.read(path)
  for name, want in (
    ('plain', plain),
    ('turned', plain.T),
    ('row', plain[1]),
    ('half', half),
    ('d2t', ids),
    ('t2d', np.array([True, False])),
  ):
    assert found[name].dtype == want.dtype
    np.testing.assert_array_equal(found[name], want)


def test_nothing_but_tensors_is_run(tmp_path):
  evil = _Call(_Global('os', 'system'), f'touch {tmp_path}/run')
  path = write(tmp_path / 'evil.bin', {'x': evil}, {})
  with pytest.raises(errors.UserError, match='os.system, which is not run'):
    torch_file.read(path)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'content, message',
  [
    ({'x': 3}, 'no flat dict of tensors'),
    ({'x': tensor('FloatStorage', '0', (9,), (1,), count=4)}, 'beyond'),
    ({'x': tensor('FloatStorage', '7', (4,), (1,))}, 'truncated'),
  ],
)
def test_what_does_not_fit_is_refused(tmp_path, content, message):
  storages = {'0': np.zeros(4, np.float32)}
  path = write(tmp_path / 'bad.bin', content, storages)
  with pytest.raises(errors.UserError, match=message):
    torch_file.read(path)


def test_other_files_are_refused(tmp_path):
  for name, data in (('old', struct.pack('<q', 1)), ('empty', b'')):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(errors.UserError, match='no zip archive'):
      torch_file.read(path)
  with pytest.raises(errors.UserError, match='truncated or no PyTorch'):
    torch_file.read(tmp_path / 'absent')
