# SPDX-License-Identifier: MIT
"""Reads and writes Hugging Face safetensors folders.

One file, or several with `model.safetensors.index.json` saying which tensor is
where. Tensors are read one at a time: float16, bfloat16 and float32 become
float32, integers stay. Writing is atomic: a reader sees the former file or the
whole new one.
"""

import json
import os
import pathlib
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from jspec import errors

FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'

_FLOATS = ('F32', 'F16', 'BF16')
_INTEGERS = ('I32', 'I64', 'U8', 'BOOL')


class SafetensorsFolder:
  """An open checkpoint folder: a `names.Source`."""

  def __init__(self, path: str | pathlib.Path):
    """Opens the file or files; tensors stay on disk."""
    folder = pathlib.Path(path)
    self.where = str(folder)
    self._file_of = _files(folder)
    self._open = {}
    self._shape: dict[str, tuple[int, ...]] = {}
    by_file: dict[pathlib.Path, set[str] | None] = {}
    for name, file in self._file_of.items():
      by_file.setdefault(file, set()).add(name)
    self._file_of = {}
    for file, listed in by_file.items():
      self._add_file(file, listed - {''})

  def _add_file(self, file: pathlib.Path, listed: set[str]) -> None:
    """Opens one file; `listed` is what an index says it holds."""
    try:
      handle = safetensors.safe_open(file, framework='numpy')
    except (safetensors.SafetensorError, OSError) as error:
      raise errors.UserError(
        f'{file} is truncated or not a safetensors file ({error}); fetch it'
        ' again'
      ) from error
    held = set(handle.keys())
    if listed and held != listed:
      odd = sorted(held ^ listed)
      raise errors.UserError(
        f'{file} and {INDEX} disagree about tensor {", ".join(odd[:5])}; fetch'
        ' the folder again'
      )
    self._open[file] = handle
    for name in held:
      view = handle.get_slice(name)
      if view.get_dtype() not in _FLOATS + _INTEGERS:
        raise errors.UserError(
          f'{file}: tensor {name} is {view.get_dtype()}, which is not'
          f' supported; store it as one of {", ".join(_FLOATS)}'
        )
      self._file_of[name] = file
      self._shape[name] = tuple(view.get_shape())

  def names(self) -> Collection[str]:
    """Returns the names of all tensors."""
    return self._file_of.keys()

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    return self._shape[name]

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor; floating point ones as float32."""
    values = self._open[self._file_of[name]].get_tensor(name)
    if values.dtype.kind in 'biu':
      return values
    return values.astype(np.float32)


def write(
  folder: str | pathlib.Path,
  tensors: Mapping[str, np.ndarray],
  config: Mapping[str, Any],
) -> None:
  """Writes config.json and model.safetensors, each atomically.

  The weights land last: a folder with weights has the config that fits them.
  Floating point tensors are stored in the dtype they come in
  (`ml_dtypes.bfloat16` for bfloat16).
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  text = json.dumps(config, indent=2, sort_keys=True) + '\n'
  weights = {name: np.ascontiguousarray(v) for name, v in tensors.items()}
  data = safetensors.numpy.save(weights, metadata={'format': 'np'})
  _write_bytes(folder / 'config.json', text.encode('utf-8'))
  _write_bytes(folder / FILE, data)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
  """Rounds to bfloat16, the dtype drafters are stored in."""
  return np.asarray(values).astype(ml_dtypes.bfloat16)


def _write_bytes(path: pathlib.Path, data: bytes) -> None:
  descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=path.name + '.')
  try:
    with os.fdopen(descriptor, 'wb') as stream:
      stream.write(data)
      stream.flush()
      os.fsync(stream.fileno())
    # mkstemp makes files private; a checkpoint is for everyone.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(part, 0o666 & ~umask)
    os.replace(part, path)
  except BaseException:
    os.unlink(part)
    raise


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the file of each tensor; '' stands for all of an unindexed file."""
  index = folder / INDEX
  if not index.is_file():
    if not (folder / FILE).is_file():
      raise errors.UserError(
        f'{folder} has neither {FILE} nor {INDEX}; give a folder saved with'
        ' save_pretrained(safe_serialization=True)'
      )
    return {'': folder / FILE}
  try:
    weight_map = json.loads(index.read_text(encoding='utf-8'))['weight_map']
    files = {name: folder / file for name, file in weight_map.items()}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise errors.UserError(
      f'{index} has no readable weight_map ({error}); fetch it again'
    ) from error
  absent = sorted({f.name for f in files.values() if not f.is_file()})
  if absent or not files:
    raise errors.UserError(
      f'{folder} lacks {", ".join(absent) or "every file"} that {INDEX} lists;'
      ' fetch the missing files'
    )
  return files
