# SPDX-License-Identifier: MIT
"""Where records come from: files and data sets on disk.

  answers.jsonl.gz        one JSON object a line, gzip by the file's name
  answers-*.array_record  ArrayRecord files, a JSON object each record
  tfds:NAME[@SPLIT]       `tfds.data_source`, random access, no TensorFlow
  arrow:DIR[@SPLIT]       what `save_to_disk` of Hugging Face `datasets` wrote,
                          or an .arrow file

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jspec import errors
from jspec.data import array_records, arrow, dropping

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


class Entry(NamedTuple):
  """A record with its place.

  Attributes:
    number: from 0, over all records of the source, bad ones too.
    place: in the source: `line 3`, `record 3`.
    where: the place with the file or data set.
    record: what is there.
  """

  number: int
  place: str
  where: str
  record: Mapping[str, Any]


def records(spec: str) -> Sequence[Mapping[str, Any]]:
  """Opens a source, or reads it whole if it is a text file."""
  stored = _stored(spec)
  if stored is not None:
    return stored
  return list(read_jsonl(pathlib.Path(spec)))


def located(
  spec: str, on_bad: Callable[[errors.UserError], None] = dropping.refuse
) -> Iterator[Entry]:
  """Yields the records of a source with their places.

  Args:
    spec: see the module docstring.
    on_bad: called for a record that cannot be read; raises, or lets the reading
      go on behind it.

  Raises:
    UserError: no such source, or a file of it is damaged or ends too early.
  """
  stored = _stored(spec)
  if stored is None:
    for number, (line, text) in enumerate(_lines(pathlib.Path(spec))):
      where = f'{spec} line {line}'
      try:
        record = _parse(text, where)
      except errors.UserError as error:
        on_bad(error)
        continue
      yield Entry(number, f'line {line}', where, record)
    return
  for number in range(len(stored)):
    place = f'record {number + 1}'
    try:
      record = stored[number]
    except errors.UserError as error:
      on_bad(error)
      continue
    yield Entry(number, place, f'{spec} {place}', record)


def read_jsonl(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the objects of a JSON Lines file; `.gz` is decompressed."""
  for number, text in _lines(path):
    yield _parse(text, f'{path} line {number}')


def parse_jsonl(
  lines: Iterable[str], where: Any
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields line numbers and objects; empty lines are skipped."""
  for number, line in enumerate(lines, start=1):
    if line.strip():
      yield number, _parse(line, f'{where} line {number}')


def _parse(line, where):
  try:
    record = json.loads(line)
  except json.JSONDecodeError as error:
    raise errors.UserError(
      f'{where} is not JSON ({error.msg}): write one object a line'
    ) from error
  if not isinstance(record, dict):
    raise errors.UserError(
      f'{where} is not a JSON object but {record!r:.40}: write one object a'
      ' line'
    )
  return record


def _lines(path):
  """Numbers and texts of a file's lines, without empty ones."""
  if not path.is_file():
    raise errors.UserError(
      f'no data file {path}: give a .jsonl or .jsonl.gz file, .array_record'
      ' files, arrow:DIR or tfds:NAME'
    )
  opener = gzip.open if path.name.endswith('.gz') else open
  number = 0
  try:
    with opener(path, 'rt', encoding='utf-8') as lines:
      for number, line in enumerate(lines, start=1):
        if line.strip():
          yield number, line
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read {path} behind line {number} ({error}): write it again as'
      ' UTF-8 text'
    ) from error


def _stored(spec) -> Sequence[Mapping[str, Any]] | None:
  """Opens a source with random access; None: it is a text file."""
  if spec.startswith(_TFDS):
    return _Tfds(spec)
  if spec.startswith(arrow.PREFIX):
    return arrow.Arrow(spec)
  if spec.endswith(array_records.SUFFIX):
    return array_records.ArrayRecords(spec)
  return None


class _Tfds(Sequence):
  """A prepared TFDS data set; texts are str, arrays are lists."""

  def __init__(self, spec: str):
    self._spec = spec
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
    try:
      record = _plain(self._source[index])
    # The readers of its files raise many built-in errors.
    except Exception as error:
      raise errors.UserError(
        f'{self._spec} record {index + 1} cannot be read ({error}): prepare the'
        ' data set again'
      ) from error
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
