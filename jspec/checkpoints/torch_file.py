# SPDX-License-Identifier: MIT
"""Reads `pytorch_model.bin` without PyTorch, and without running what it says.

Such a file is a zip archive: `data.pkl` describes tensors, `data/0`, `data/1`
... hold their bytes. The pickle may name any function, so this reader knows
only the few that rebuild tensors and refuses every other by name. Older drafter
heads (EAGLE's) are published in this form only.
"""

import collections
import math
import pathlib
import pickle
import zipfile
from typing import Any

import ml_dtypes
import numpy as np

from jspec import errors

FILE = 'pytorch_model.bin'

_STORAGES = {
  'BFloat16Storage': ml_dtypes.bfloat16,
  'BoolStorage': np.bool_,
  'ByteStorage': np.uint8,
  'DoubleStorage': np.float64,
  'FloatStorage': np.float32,
  'HalfStorage': np.float16,
  'IntStorage': np.int32,
  'LongStorage': np.int64,
}


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
  """All tensors of a file by name, in the dtype they have.

  Raises:
    UserError: it is no such file, is truncated, or holds something else than
      tensors.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      names = archive.namelist()
      (root,) = [n[: -len('data.pkl')] for n in names if _is_pickle(n)]
      with archive.open(root + 'data.pkl') as stream:
        found = _Reader(stream, archive, root, str(path)).load()
  except errors.UserError:
    raise
  # What damaged archives and pickles raise.
  except (OSError, EOFError, ValueError, KeyError, pickle.PickleError) as error:
    raise errors.UserError(
      f'{path} is truncated or no PyTorch checkpoint of zip form ({error}):'
      ' fetch it again, or save it as safetensors'
    ) from error
  except zipfile.BadZipFile as error:
    raise errors.UserError(
      f'{path} is no zip archive ({error}): PyTorch before 1.6 wrote another'
      ' form; save it as safetensors'
    ) from error
  if not isinstance(found, dict) or not all(
    isinstance(value, np.ndarray) for value in found.values()
  ):
    raise errors.UserError(
      f'{path} is no flat dict of tensors: save its state dict as safetensors'
    )
  return {str(name): value for name, value in found.items()}


def _is_pickle(name):
  return name == 'data.pkl' or name.endswith('/data.pkl')


class _Reader(pickle.Unpickler):
  """Unpickles tensors and nothing else."""

  def __init__(self, stream, archive, root, where):
    super().__init__(stream)
    self._archive, self._root, self._where = archive, root, where

  def find_class(self, module: str, name: str) -> Any:
    """The few names that rebuild tensors."""
    if (module, name) == ('collections', 'OrderedDict'):
      return collections.OrderedDict
    if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):
      return _tensor
    if module == 'torch' and name in _STORAGES:
      return np.dtype(_STORAGES[name])
    raise errors.UserError(
      f'{self._where} wants {module}.{name}, which is not run: only plain'
      ' tensors are read; save its state dict as safetensors'
    )

  def persistent_load(self, pid: Any) -> np.ndarray:
    """The values of a storage."""
    kind, dtype, key, _, count = pid
    if kind != 'storage':
      raise pickle.UnpicklingError(f'unknown reference {kind!r}')
    data = self._archive.read(f'{self._root}data/{key}')
    return np.frombuffer(data, dtype, count)


def _tensor(storage, offset, shape, strides, *rest):
  """A tensor: a strided view of its storage, copied."""
  del rest  # Whether it wants gradients, and hooks.
  size = math.prod(shape)
  if size == 0:
    return np.zeros(shape, storage.dtype)
  last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
  if min((offset, *strides)) < 0 or last >= storage.size:
    raise pickle.UnpicklingError('a tensor reaches beyond its storage')
  step = storage.itemsize
  view = np.lib.stride_tricks.as_strided(
    storage[offset:], shape, [step * s for s in strides]
  )
  return np.array(view)
