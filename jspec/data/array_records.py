# SPDX-License-Identifier: MIT
"""ArrayRecord files as a source: a JSON object in every record.

`answers.array_record` is one file, `answers-*.array_record` all that match, in
the order of their names.
"""

import bisect
import glob
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from array_record.python import array_record_data_source, array_record_module

from jspec import errors

SUFFIX = '.array_record'
# What the library raises about files that are cut or damaged.
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, IndexError)


class Files(Sequence):
  """Random access to the bytes of all records of some files."""

  def __init__(self, paths: Sequence[str]):
    self._paths = list(paths)
    self._sources, self._ends = [], [0]
    for path in paths:
      try:
        source = array_record_data_source.ArrayRecordDataSource([path])
        self._ends.append(self._ends[-1] + len(source))
      except UNREADABLE as error:
        raise errors.UserError(
          f'cannot read {path} ({_first_line(error)}): it is damaged or cut;'
          ' write it again'
        ) from error
      self._sources.append(source)

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> bytes:
    file, inside = self._place(index)
    try:
      (content,) = self._sources[file].__getitems__([inside])
    except UNREADABLE as error:
      raise errors.UserError(
        f'{self.where(index)} is damaged ({_first_line(error)}): write the file'
        ' again'
      ) from error
    return content

  def where(self, index: int) -> str:
    """The file of a record, and its number in it, from 1."""
    file, inside = self._place(index)
    return f'{self._paths[file]} record {inside + 1}'

  def _place(self, index):
    if not 0 <= index < len(self):  # Iterating a sequence ends by it.
      raise IndexError(index)
    file = bisect.bisect_right(self._ends, index) - 1
    return file, index - self._ends[file]


class ArrayRecords(Sequence):
  """Random access to the objects of one file or more."""

  def __init__(self, spec: str):
    paths = sorted(glob.glob(str(pathlib.Path(spec).expanduser())))
    if not paths:
      raise errors.UserError(
        f'no data file {spec}: give an {SUFFIX} file, or a pattern as in'
        f" '*{SUFFIX}'"
      )
    self._files = Files(paths)

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> dict[str, Any]:
    content = self._files[index]
    where = self._files.where(index)
    try:
      record = json.loads(content)
    except ValueError as error:  # No JSON, or no UTF-8.
      raise errors.UserError(
        f'{where} is not JSON ({error}): write one object a record'
      ) from error
    if not isinstance(record, dict):
      raise errors.UserError(
        f'{where} is not a JSON object but {record!r:.40}: write one object a'
        ' record'
      )
    return record


def write(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
  """Writes objects to a file, each so that it is read alone."""
  writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
  for record in records:
    writer.write(json.dumps(record, ensure_ascii=False).encode())
  writer.close()


def _first_line(error):
  return str(error).strip().split('\n')[0] or type(error).__name__
