# SPDX-License-Identifier: MIT
"""Data sets that Hugging Face `datasets` keeps on disk, in Arrow files.

  arrow:DIR[@SPLIT]    written by `save_to_disk`; SPLIT is `train` unless given
  arrow:FILE.arrow     one file of such a folder, or of the package's cache

Files are mapped into memory; nothing is fetched and no script is run. What is
None in a table is left out of a record, as JSON Lines would leave it out: all
rows of a table have the same fields.
"""

import datetime
import pathlib
from collections.abc import Sequence
from typing import Any

from jspec import errors

PREFIX = 'arrow:'


class Arrow(Sequence):
  """Random access to a data set; values are plain."""

  def __init__(self, spec: str):
    self._spec = spec
    name, _, split = spec.removeprefix(PREFIX).partition('@')
    path = pathlib.Path(name).expanduser()
    if not name or not path.exists():
      raise errors.UserError(
        f'{spec}: there is no {path}: give a folder of `save_to_disk` or an'
        ' .arrow file'
      )
    try:
      import datasets
    except ImportError as error:
      raise errors.UserError(
        f"{spec} needs the package datasets: run `pip install 'jspec[arrow]'`"
      ) from error
    try:
      if path.is_file():
        found = datasets.Dataset.from_file(str(path))
      else:
        found = datasets.load_from_disk(str(path))
    # The package raises its own, Arrow's and many built-in errors.
    except Exception as error:
      raise errors.UserError(
        f'cannot open {spec} ({_first_line(error)}): give a folder of'
        ' `save_to_disk`, or write it again'
      ) from error
    if isinstance(found, datasets.DatasetDict):
      if (split or 'train') not in found:
        raise errors.UserError(
          f'{spec} has the splits {sorted(found)} but not {split or "train"!r}:'
          f' name one as {PREFIX}{path}@SPLIT'
        )
      found = found[split or 'train']
    elif split:
      raise errors.UserError(
        f'{spec}: {path} is one split, not a folder of splits: leave @{split}'
        ' out'
      )
    # A data set may be saved to give tensors.
    self._rows = found.with_format(None) if found.format['type'] else found

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> dict[str, Any]:
    if index >= len(self):  # Iterating a sequence ends by it.
      raise IndexError(index)
    try:
      return _plain(self._rows[index])
    # Arrow's errors have no base class of their own.
    except Exception as error:
      raise errors.UserError(
        f'{self._spec} record {index + 1} cannot be read'
        f' ({_first_line(error)}): write the data set again'
      ) from error


def _plain(value):
  """Leaves None out of objects; times become texts, as in JSON."""
  if isinstance(value, dict):
    return {
      name: _plain(item) for name, item in value.items() if item is not None
    }
  if isinstance(value, list):
    return [_plain(item) for item in value]
  if isinstance(value, datetime.date):
    return value.isoformat()
  return value


def _first_line(error):
  return str(error).strip().split('\n')[0] or type(error).__name__
