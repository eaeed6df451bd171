# SPDX-License-Identifier: MIT
"""A store of the target's captured states ("taps"), one record a document.

  STORE/manifest.json               what was captured, from what, how many
  STORE/taps-00000.array_record     records of the first documents
  STORE/taps-00000.npz              their ids, lengths, tokens and masks

A record (`tap_records`) holds tokens, mask and taps [S, C, D] with a checksum;
the .npz repeats the small columns, so that counting reads no gigabytes. Shards
get their names when they are whole, data first, index second: a killed capture
loses at most one of them. Taps are the residual stream after each captured
layer, before any final norm. STORE is a folder or lies in object storage
(`places`).
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

from jspec import errors
from jspec.data import array_records, examples, places, tap_records

FORMAT = 1
_MANIFEST = 'manifest.json'
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
    dtype: one of `tap_records.DTYPES`.
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
    if self.dtype not in tap_records.DTYPES:
      raise errors.UserError(
        f'taps cannot be stored as {self.dtype}: choose one of'
        f' {tap_records.DTYPES}'
      )

  @property
  def num_shards(self) -> int:
    return -(-self.num_documents // self.shard_len)


class Writer:
  """Fills a store shard by shard; opening an unfinished one resumes it."""

  def __init__(self, folder: pathlib.Path | str, settings: Settings):
    self.folder = places.folder(folder)
    self.settings = settings
    places.make(self.folder)
    names = places.names(self.folder)
    if _MANIFEST in names:
      found = _read_manifest(self.folder)[0]
      differing = _differing(settings, found)
      if differing:
        raise errors.UserError(
          f'{self.folder} holds taps with other settings ({differing}): use '
          'another folder or delete it'
        )
    elif names:
      raise errors.UserError(
        f'{self.folder} is not empty and holds no taps: use another folder'
      )
    else:
      self._write_manifest(is_complete=False)
    for leftover in names:
      if leftover.endswith('.partial'):
        (self.folder / leftover).unlink()

  def missing_shards(self) -> list[int]:
    """Lists the shards still to be written."""
    names = places.names(self.folder)
    return [
      shard
      for shard in range(self.settings.num_shards)
      if _index_name(shard) not in names
    ]

  def write_shard(
    self,
    shard: int,
    documents: Sequence[examples.Document],
    taps: Sequence[np.ndarray],
  ) -> None:
    """Writes the documents of one shard with their taps [S, C, D]."""
    with places.writing(self.folder / _data_name(shard)) as path:
      # One record a group reads any document alone; states do not compress.
      writer = array_record_module.ArrayRecordWriter(
        str(path), 'group_size:1,uncompressed'
      )
      for document, states in zip(documents, taps, strict=True):
        writer.write(tap_records.encode(document, states, self.settings.dtype))
      writer.close()
      num_bytes = path.stat().st_size
    columns = {
      'ids': np.array([document.id for document in documents]),
      'lengths': np.array([len(document) for document in documents], np.int64),
      'tokens': np.concatenate([document.tokens for document in documents]),
      'is_answer': np.concatenate([d.is_answer for d in documents]),
      'num_bytes': np.int64(num_bytes),
    }
    with places.writing(self.folder / _index_name(shard)) as path:
      with open(path, 'wb') as file:
        np.savez(file, **columns)

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
    with places.writing(self.folder / _MANIFEST) as path:
      path.write_text(json.dumps(content, indent=2) + '\n')


class Store:
  """Random access to a finished store.

  `store[i]` is a dict of `tokens`, `is_answer` and `taps`; the last are
  float32 or bfloat16 (int8 is expanded). `taps` chooses and orders layers.
  Shards in object storage are fetched when the store is opened.

  Attributes:
    settings: what it was made from.
    documents: all documents, in order, without their taps.
    num_bytes: of all its shards and indices.
  """

  def __init__(
    self,
    folder: pathlib.Path | str,
    *,
    target: str,
    fingerprint: str,
    taps: Sequence[int],
    template: str | None = None,
    on_message: Callable[[str], None] = print,
  ):
    self.folder = places.folder(folder)
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
    self._open_shards(on_message)

  def __len__(self) -> int:
    return len(self.documents)

  @property
  def num_tokens(self) -> int:
    """Tokens of all documents."""
    return sum(map(len, self.documents))

  def __getitem__(self, number: int) -> dict[str, np.ndarray]:
    where = self._records.where(int(number))
    document, taps = tap_records.decode(self._records[int(number)], where)
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

  def _open_shards(self, on_message):
    self.documents: list[examples.Document] = []
    self.num_bytes = 0
    sizes = []
    for shard in range(self.settings.num_shards):
      path = self.folder / _data_name(shard)
      try:
        index = places.read(self.folder / _index_name(shard))
        columns = dict(np.load(io.BytesIO(index)))
        num_bytes = places.num_bytes(path)
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
      self.num_bytes += num_bytes + len(index)
      sizes.append(num_bytes)
    if places.is_remote(self.folder):
      on_message(f'taps: {sum(sizes) / 1e9:.2f} GB of {self.folder}, kept here')
    key = self._key()
    self._records = array_records.Files(
      [
        str(places.local_file(self.folder / _data_name(shard), size, key))
        for shard, size in enumerate(sizes)
      ]
    )
    if len(self._records) != len(self.documents):
      raise errors.UserError(
        f'{self.folder} holds {len(self._records)} records for '
        f'{len(self.documents)} documents: capture the taps again'
      )

  def _key(self):
    """A name for the content, for copies of it."""
    content = {'folder': os.fspath(self.folder)}
    content |= dataclasses.asdict(self.settings)
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def exists(folder: pathlib.Path | str) -> bool:
  """Says whether the folder holds a finished store with all its shards."""
  place = places.folder(folder)
  names = places.names(place)
  if _MANIFEST not in names:
    return False
  settings, is_complete = _read_manifest(place)
  # A damaged shard that was deleted is captured again.
  indices = map(_index_name, range(settings.num_shards))
  return is_complete and names.issuperset(indices)


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
  if _MANIFEST not in places.names(folder):
    raise errors.UserError(f'{folder} holds no taps: run the capture first')
  try:
    content: dict[str, Any] = json.loads(places.read(path))
    version = content.pop('format')
    is_complete = content.pop('is_complete')
    content['taps'] = tuple(content['taps'])
    settings = Settings(**content)
  # Another program's file may be anything.
  except (ValueError, KeyError, TypeError, AttributeError) as error:
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


def _data_name(shard):
  return f'taps-{shard:05d}.array_record'


def _index_name(shard):
  return f'taps-{shard:05d}.npz'
