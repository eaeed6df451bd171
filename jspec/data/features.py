# SPDX-License-Identifier: MIT
"""A store of the target's captured states ("taps"), one record a document.

  STORE/manifest.json               what was captured, from what, how many
  STORE/taps-00000.array_record     records of the first documents
  STORE/taps-00000.npz              their ids, lengths, tokens and masks

A record holds tokens, mask and taps [S, C, D] with a checksum; the .npz repeats
the small columns, so that counting reads no gigabytes. Shards are renamed into
place, data first, index second: a killed capture loses at most one of them.
Taps are the residual stream after each captured layer, before any final norm:
float32, bfloat16, or int8 with one scale a token and layer.
"""

import dataclasses
import json
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from array_record.python import array_record_module

from jspec import errors
from jspec.data import array_records, examples

FORMAT = 1
DTYPES = ('float32', 'bfloat16', 'int8')
_MANIFEST = 'manifest.json'
# magic, crc32 of the rest, id bytes, S, C, D, index into DTYPES
_HEADER = struct.Struct('<4sIIIIII')
_MAGIC = b'TAPS'
# What numpy raises about an index that is absent, cut or damaged.
_UNREADABLE = (
  OSError,
  EOFError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What a store was made from; a reader and a resumed capture compare it.

  Attributes:
    target: name of the target model.
    fingerprint: fingerprint of the target's weights.
    taps: captured layers, 0-based, in the order of the C axis.
    width: target width, the D axis.
    is_pre_norm: taps were taken before any final norm.
    template: hash of the chat template, '' without one.
    dtype: one of DTYPES.
    documents: `examples.fingerprint` of the documents, in order.
    num_documents: how many there are.
    shard_len: documents in a shard.
  """

  target: str
  fingerprint: str
  taps: tuple[int, ...]
  width: int
  is_pre_norm: bool
  template: str
  dtype: str
  documents: str
  num_documents: int
  shard_len: int

  def __post_init__(self):
    if self.dtype not in DTYPES:
      raise errors.UserError(
        f'taps cannot be stored as {self.dtype}: choose one of {DTYPES}'
      )

  @property
  def num_shards(self) -> int:
    return -(-self.num_documents // self.shard_len)


class Writer:
  """Fills a store shard by shard; opening an unfinished one resumes it."""

  def __init__(self, folder: pathlib.Path | str, settings: Settings):
    self.folder = pathlib.Path(folder)
    self.settings = settings
    self.folder.mkdir(parents=True, exist_ok=True)
    if (self.folder / _MANIFEST).exists():
      found = _read_manifest(self.folder)[0]
      differing = _differing(settings, found)
      if differing:
        raise errors.UserError(
          f'{self.folder} holds taps with other settings ({differing}): use '
          'another folder or delete it'
        )
    elif any(self.folder.iterdir()):
      raise errors.UserError(
        f'{self.folder} is not empty and holds no taps: use another folder'
      )
    else:
      self._write_manifest(is_complete=False)
    for leftover in self.folder.glob('*.partial'):
      leftover.unlink()

  def missing_shards(self) -> list[int]:
    """Lists the shards still to be written."""
    return [
      shard
      for shard in range(self.settings.num_shards)
      if not _index_path(self.folder, shard).exists()
    ]

  def write_shard(
    self,
    shard: int,
    documents: Sequence[examples.Document],
    taps: Sequence[np.ndarray],
  ) -> None:
    """Writes the documents of one shard with their taps [S, C, D]."""
    path = _data_path(self.folder, shard)
    partial = path.with_suffix('.partial')
    # One record a group reads any document alone; states do not compress.
    writer = array_record_module.ArrayRecordWriter(
      str(partial), 'group_size:1,uncompressed'
    )
    for document, states in zip(documents, taps, strict=True):
      writer.write(_encode(document, states, self.settings.dtype))
    writer.close()
    _replace(partial, path)
    index = _index_path(self.folder, shard)
    partial = index.with_suffix('.npz.partial')
    with open(partial, 'wb') as file:
      np.savez(
        file,
        ids=np.array([document.id for document in documents]),
        lengths=np.array([len(document) for document in documents], np.int64),
        tokens=np.concatenate([document.tokens for document in documents]),
        is_answer=np.concatenate([d.is_answer for d in documents]),
        num_bytes=np.int64(path.stat().st_size),
      )
    _replace(partial, index)

  def finish(self) -> None:
    """Marks the store as complete."""
    missing = self.missing_shards()
    if missing:
      raise RuntimeError(f'shards {missing} are not written')
    self._write_manifest(is_complete=True)

  def _write_manifest(self, is_complete):
    content = {
      'format': FORMAT,
      **dataclasses.asdict(self.settings),
      'is_complete': is_complete,
    }
    partial = self.folder / (_MANIFEST + '.partial')
    partial.write_text(json.dumps(content, indent=2) + '\n')
    _replace(partial, self.folder / _MANIFEST)


class Store:
  """Random access to a finished store.

  `store[i]` is a dict of `tokens`, `is_answer` and `taps`; the last are
  float32 or bfloat16 (int8 is expanded). `taps` chooses and orders layers.
  """

  def __init__(
    self,
    folder: pathlib.Path | str,
    *,
    target: str,
    fingerprint: str,
    taps: Sequence[int],
    template: str | None = None,
  ):
    self.folder = pathlib.Path(folder)
    self.settings, is_complete = _read_manifest(self.folder)
    where = f'the taps in {self.folder}'
    if not is_complete:
      raise errors.UserError(f'{where} are unfinished: run the capture again')
    if (target, fingerprint) != (
      self.settings.target,
      self.settings.fingerprint,
    ):
      raise errors.UserError(
        f'{where} are of {self.settings.target} '
        f'({self.settings.fingerprint}) but the target is {target} '
        f'({fingerprint}): capture them again'
      )
    if not self.settings.is_pre_norm:
      raise errors.UserError(
        f'{where} were taken after the final norm: capture them again'
      )
    missing = sorted(set(taps) - set(self.settings.taps))
    if missing:
      raise errors.UserError(
        f'{where} hold layers {list(self.settings.taps)} but the drafter wants '
        f'{missing} too: capture them again'
      )
    if template is not None and template != self.settings.template:
      raise errors.UserError(
        f'{where} were rendered with another chat template '
        f'({self.settings.template}, now {template}): capture them again'
      )
    self._columns = [self.settings.taps.index(layer) for layer in taps]
    self._read_index()

  def __len__(self) -> int:
    return len(self.documents)

  def __getitem__(self, number: int) -> dict[str, np.ndarray]:
    where = self._records.where(int(number))
    document, taps = _decode(self._records[int(number)], where)
    if document.id != self.documents[number].id:
      raise errors.UserError(
        f'{where} is {document.id} but the index says '
        f'{self.documents[number].id}: capture the taps again'
      )
    if self._columns != list(range(taps.shape[1])):
      taps = taps[:, self._columns]
    return {
      'tokens': document.tokens,
      'is_answer': document.is_answer,
      'taps': taps,
    }

  def _read_index(self):
    self.documents: list[examples.Document] = []
    paths = []
    for shard in range(self.settings.num_shards):
      path = _data_path(self.folder, shard)
      try:
        # Opened here, because numpy leaves a cut file open.
        with open(_index_path(self.folder, shard), 'rb') as file:
          columns = dict(np.load(file))
        num_bytes = path.stat().st_size
      except _UNREADABLE as error:
        raise errors.UserError(
          f'shard {shard} of {self.folder} cannot be read ({error}): delete '
          'the shard and run the capture again'
        ) from error
      if num_bytes != columns['num_bytes']:
        raise errors.UserError(
          f'{path} has {num_bytes} bytes instead of {columns["num_bytes"]}: '
          'delete the shard and run the capture again'
        )
      self.documents += _split(columns)
      paths.append(str(path))
    self._records = array_records.Files(paths)
    if len(self._records) != len(self.documents):
      raise errors.UserError(
        f'{self.folder} holds {len(self._records)} records for '
        f'{len(self.documents)} documents: capture the taps again'
      )


def exists(folder: pathlib.Path | str) -> bool:
  """Says whether the folder holds a finished store with all its shards."""
  folder = pathlib.Path(folder)
  if not (folder / _MANIFEST).exists():
    return False
  settings, is_complete = _read_manifest(folder)
  # A damaged shard that was deleted is captured again.
  shards = range(settings.num_shards)
  return is_complete and all(_index_path(folder, n).exists() for n in shards)


def _split(columns: dict[str, np.ndarray]) -> Iterator[examples.Document]:
  ends = np.cumsum(columns['lengths'])[:-1]
  parts = zip(
    columns['ids'],
    np.split(columns['tokens'], ends),
    np.split(columns['is_answer'], ends),
    strict=True,
  )
  for name, tokens, is_answer in parts:
    yield examples.Document(str(name), tokens, is_answer)


def _read_manifest(folder) -> tuple[Settings, bool]:
  path = folder / _MANIFEST
  if not path.exists():
    raise errors.UserError(f'{folder} holds no taps: run the capture first')
  try:
    content: dict[str, Any] = json.loads(path.read_text())
    version = content.pop('format')
    is_complete = content.pop('is_complete')
    content['taps'] = tuple(content['taps'])
    settings = Settings(**content)
  except (json.JSONDecodeError, KeyError, TypeError) as error:
    raise errors.UserError(
      f'{path} is not a manifest of taps ({error}): capture them again'
    ) from error
  if version != FORMAT:
    raise errors.UserError(
      f'{path} has format {version} but this jspec reads {FORMAT}: capture '
      'the taps again'
    )
  return settings, is_complete


def _differing(ours: Settings, theirs: Settings) -> str:
  pairs = [
    (field.name, getattr(theirs, field.name), getattr(ours, field.name))
    for field in dataclasses.fields(Settings)
  ]
  return ', '.join(
    f'{name} {there} there, {here} here'
    for name, there, here in pairs
    if there != here
  )


def _encode(document, states, dtype) -> bytes:
  length = len(document)
  if states.shape[0] != length:
    raise RuntimeError(
      f'{document.id} has {length} tokens and {states.shape[0]} rows of taps'
    )
  if not np.isfinite(states.astype(np.float32)).all():
    raise errors.UserError(
      f'the target gives states that are not finite for `{document.id}`'
    )
  name = document.id.encode()
  parts = [
    name,
    document.tokens.astype('<i4').tobytes(),
    document.is_answer.astype(np.uint8).tobytes(),
  ]
  if dtype == 'int8':
    exact = states.astype(np.float32)
    scales = np.abs(exact).max(axis=-1) / 127
    scales = np.where(scales > 0, scales, 1).astype('<f4')
    parts.append(scales.tobytes())
    parts.append(np.rint(exact / scales[..., None]).astype(np.int8).tobytes())
  else:
    parts.append(states.astype(_numpy_dtype(dtype)).tobytes())
  payload = b''.join(parts)
  header = _HEADER.pack(
    _MAGIC,
    zlib.crc32(payload),
    len(name),
    *states.shape,
    DTYPES.index(dtype),
  )
  return header + payload


def _decode(record: bytes, where: str):
  magic, checksum, name_len, s, c, d, code = _HEADER.unpack_from(record)
  payload = memoryview(record)[_HEADER.size :]
  if magic != _MAGIC or zlib.crc32(payload) != checksum:
    raise errors.UserError(
      f'{where} is damaged (checksum): capture the taps again'
    )
  dtype = DTYPES[code]
  offset = 0

  def take(kind, count):
    nonlocal offset
    values = np.frombuffer(payload, kind, count, offset)
    offset += values.nbytes
    return values

  name = bytes(take(np.uint8, name_len)).decode()
  tokens = take('<i4', s)
  is_answer = take(np.uint8, s).astype(bool)
  if dtype == 'int8':
    scales = take('<f4', s * c).reshape(s, c, 1)
    levels = take(np.int8, s * c * d).reshape(s, c, d)
    taps = (levels * scales).astype(ml_dtypes.bfloat16)
  else:
    taps = take(_numpy_dtype(dtype), s * c * d).reshape(s, c, d)
  return examples.Document(name, tokens, is_answer), taps


def _numpy_dtype(dtype):
  return np.dtype(ml_dtypes.bfloat16 if dtype == 'bfloat16' else '<f4')


def _data_path(folder, shard):
  return folder / f'taps-{shard:05d}.array_record'


def _index_path(folder, shard):
  return folder / f'taps-{shard:05d}.npz'


def _replace(partial: pathlib.Path, final: pathlib.Path) -> None:
  """Makes the file durable, then gives it its name in one step."""
  with open(partial, 'rb') as file:
    os.fsync(file.fileno())
  os.replace(partial, final)
