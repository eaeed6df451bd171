# SPDX-License-Identifier: MIT
"""Reads and writes Hugging Face safetensors folders.

One file, or several with `model.safetensors.index.json` saying which tensor is
where. Tensors are read one at a time, where float16, bfloat16 and float32
become float32 and integers stay; or in parts, which are views of the file.
Writing is atomic: a reader sees the former file or the whole new one.

A file is 8 bytes with the length of a header, the header (JSON: dtype, shape
and place of every tensor), and the values (https://github.com/huggingface/
safetensors, "Format").
"""

import json
import math
import mmap
import os
import pathlib
import tempfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from jspec import errors
from jspec.checkpoints import conversions

FILE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'

_FLOATS = {'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16}
_INTEGERS = {'I32': np.int32, 'I64': np.int64, 'U8': np.uint8, 'BOOL': np.bool_}
_DTYPES = _FLOATS | _INTEGERS


class SafetensorsFolder:
  """An open checkpoint folder: a `names.Source`."""

  def __init__(self, path: str | pathlib.Path):
    """Opens the file or files; tensors stay on disk."""
    folder = pathlib.Path(path)
    self.where = str(folder)
    self._file_of = _files(folder)
    self._maps: dict[pathlib.Path, mmap.mmap] = {}
    self._at: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    by_file: dict[pathlib.Path, set[str] | None] = {}
    for name, file in self._file_of.items():
      by_file.setdefault(file, set()).add(name)
    self._file_of = {}
    for file, listed in by_file.items():
      self._add_file(file, listed - {''})

  def _add_file(self, file: pathlib.Path, listed: set[str]) -> None:
    """Opens one file; `listed` is what an index says it holds."""
    try:
      # It checks that header and size of the file fit each other.
      with safetensors.safe_open(file, framework='numpy') as handle:
        held = set(handle.keys())
    except (safetensors.SafetensorError, OSError) as error:
      raise errors.UserError(
        f'{file} is truncated or not a safetensors file ({error}); fetch it'
        ' again'
      ) from error
    if listed and held != listed:
      odd = sorted(held ^ listed)
      raise errors.UserError(
        f'{file} and {INDEX} disagree about tensor {", ".join(odd[:5])}; fetch'
        ' the folder again'
      )
    with file.open('rb') as stream:
      start = int.from_bytes(stream.read(8), 'little')
      header = json.loads(stream.read(start))
      found = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    self._maps[file] = found
    for name in held:
      said = header[name]
      if said['dtype'] not in _DTYPES:
        raise errors.UserError(
          f'{file}: tensor {name} is {said["dtype"]}, which is not supported;'
          f' store it as one of {", ".join(_FLOATS)}'
        )
      self._file_of[name] = file
      dtype = np.dtype(_DTYPES[said['dtype']])
      place = 8 + start + said['data_offsets'][0]
      self._at[name] = dtype, tuple(said['shape']), place

  def names(self) -> Collection[str]:
    """Returns the names of all tensors."""
    return self._file_of.keys()

  def files(self) -> list[pathlib.Path]:
    """Returns the files that hold the tensors."""
    return list(self._maps)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    return self._at[name][1]

  def dtype(self, name: str) -> np.dtype:
    """Returns the dtype of a tensor on disk."""
    return self._at[name][0]

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor; floating point ones as float32."""
    values = self._view(name)
    if values.dtype.kind in 'biu':
      return np.array(values)
    return values.astype(np.float32)

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """Returns what of a tensor is in a box: a view of the file."""
    dtype, shape, start = self._at[name]
    if box:
      row = math.prod(shape[1:]) * dtype.itemsize
      first = start + box[0].start * row
      length = (box[0].stop - box[0].start) * row
      page = first // mmap.PAGESIZE * mmap.PAGESIZE
      if length:  # The disk may begin before the first value is asked for.
        found = self._maps[self._file_of[name]]
        found.madvise(mmap.MADV_WILLNEED, page, first + length - page)
    return self._view(name)[box]

  def _view(self, name: str) -> np.ndarray:
    dtype, shape, start = self._at[name]
    found = self._maps[self._file_of[name]]
    flat = np.frombuffer(found, dtype, math.prod(shape), start)
    return flat.reshape(shape)


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
  write_bytes(folder / 'config.json', text.encode('utf-8'))
  write_bytes(folder / FILE, data)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
  """Rounds to bfloat16, the dtype drafters are stored in."""
  return np.asarray(values).astype(ml_dtypes.bfloat16)


def write_file(
  path: pathlib.Path,
  tensors: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
  values: Iterable[np.ndarray],
) -> None:
  """Writes one file, atomically, tensor by tensor.

  Args:
    path: of the file.
    tensors: dtype and shape by name.
    values: of the same tensors, in that order.
  """
  codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
  header, end = {'__metadata__': {'format': 'np'}}, 0
  for name, (dtype, shape) in tensors.items():
    begin, end = end, end + math.prod(shape) * dtype.itemsize
    header[name] = {
      'dtype': codes[dtype],
      'shape': list(shape),
      'data_offsets': [begin, end],
    }
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)  # So that values are aligned.

  def pieces():
    yield len(text).to_bytes(8, 'little') + text
    for (name, (dtype, shape)), array in zip(
      tensors.items(), values, strict=True
    ):
      if array.shape != shape or array.dtype != dtype:
        raise ValueError(f'{name} is {array.dtype} {array.shape}, not as said')
      yield np.ascontiguousarray(array).view(np.uint8).data

  _write_pieces(path, pieces())


def write_bytes(path: pathlib.Path, data: bytes) -> None:
  """Writes a file, atomically."""
  _write_pieces(path, [data])


def _write_pieces(path, pieces):
  descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=path.name + '.')
  try:
    with os.fdopen(descriptor, 'wb') as stream:
      for piece in pieces:
        stream.write(piece)
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
