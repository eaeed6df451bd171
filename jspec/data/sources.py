# SPDX-License-Identifier: MIT
"""Where records come from: JSON Lines files and TFDS data sets.

  answers.jsonl.gz      one JSON object a line, gzip by the file's name
  tfds:NAME[@SPLIT]     `tfds.data_source`, random access, no TensorFlow

NAME is what TFDS calls the data set (`name`, `name/config`, `name:1.0.0`),
SPLIT is `train` unless given. Only what is prepared on disk is read: nothing is
fetched. A record is a dict of plain values; what its keys mean is the business
of `examples` (answers) and `prompts`.
"""

import dataclasses
import gzip
import json
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jspec import errors

_TFDS = 'tfds:'


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One prompt: the user's messages, to be answered in turn.

  Attributes:
    id: its name, unique in a source.
    turns: what the user says.
    domain: results are also shown for each domain; '' where none is given.
  """

  id: str
  turns: tuple[str, ...]
  domain: str = ''


def records(spec: str) -> Sequence[Mapping[str, Any]]:
  """Opens a source: a JSON Lines path or `tfds:NAME[@SPLIT]`."""
  if spec.startswith(_TFDS):
    return _Tfds(spec)
  return list(read_jsonl(pathlib.Path(spec)))


def located(spec: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yields records with their place in the source: `line 3`, `record 3`."""
  if spec.startswith(_TFDS):
    for number, record in enumerate(_Tfds(spec), start=1):
      yield f'record {number}', record
  else:
    for number, record in _numbered_file(pathlib.Path(spec)):
      yield f'line {number}', record


def read_jsonl(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the objects of a JSON Lines file; `.gz` is decompressed."""
  for _, record in _numbered_file(path):
    yield record


def parse_jsonl(
  lines: Iterable[str], where: Any
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields line numbers and objects; empty lines are skipped."""
  for number, line in enumerate(lines, start=1):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except json.JSONDecodeError as error:
      raise errors.UserError(
        f'{where} line {number} is not JSON ({error.msg}): write one object a'
        ' line'
      ) from error
    if not isinstance(record, dict):
      raise errors.UserError(
        f'{where} line {number} is not a JSON object but {record!r:.40}: write'
        ' one object a line'
      )
    yield number, record


def _numbered_file(path):
  if not path.is_file():
    raise errors.UserError(
      f'no data file {path}: give a .jsonl or .jsonl.gz file, or tfds:NAME'
    )
  opener = gzip.open if path.name.endswith('.gz') else open
  try:
    with opener(path, 'rt', encoding='utf-8') as lines:
      yield from parse_jsonl(lines, path)
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read {path} ({error}): write it again as UTF-8 text'
    ) from error


class _Tfds(Sequence):
  """A prepared TFDS data set; texts are str, arrays are lists."""

  def __init__(self, spec: str):
    name, _, split = spec.removeprefix(_TFDS).partition('@')
    try:
      import tensorflow_datasets as tfds
    except ImportError as error:
      raise errors.UserError(
        f'{spec} needs the package tensorflow-datasets: run `pip install'
        " 'jspec[tfds]'`"
      ) from error
    try:
      self._source = tfds.data_source(
        name, split=split or 'train', download=False
      )
    # TFDS raises its own and many built-in errors, often of many lines.
    except Exception as error:
      first = str(error).strip().split('\n')[0]
      raise errors.UserError(
        f'cannot open {spec} ({first or type(error).__name__}): give a data set'
        ' and split that `tfds build --file_format=array_record` has prepared'
        ' in TFDS_DATA_DIR'
      ) from error

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict[str, Any]:
    if index >= len(self):  # Iterating a sequence ends by it.
      raise IndexError(index)
    record = _plain(self._source[index])
    messages = record.get('messages')
    if isinstance(messages, dict):
      # TFDS turns a list of objects into an object of lists.
      rows = zip(*messages.values(), strict=True)
      record['messages'] = [
        dict(zip(messages, row, strict=True)) for row in rows
      ]
    return record


def _plain(value):
  """Turns numpy values and bytes into what JSON would have given."""
  if isinstance(value, dict):
    return {name: _plain(item) for name, item in value.items()}
  if hasattr(value, 'tolist'):
    value = value.tolist()
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  return value.decode('utf-8') if isinstance(value, bytes) else value
