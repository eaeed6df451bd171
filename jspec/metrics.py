# SPDX-License-Identifier: MIT
"""Numbers of a run: a line on stdout, a row of JSON, TensorBoard.

  WORKDIR/metrics.jsonl      {"step": 12, "loss": 3.4, ...}   one row a step
  WORKDIR/tensorboard/       with the extra package tensorboardX

Values are numbers, lists of them (TensorBoard: `name/1`, `name/2`, ...), or
dicts (`name/key`); lines show the numbers alone.

A resumed run drops the rows behind the step it resumes from, so no step is
missing or doubled.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jspec import errors

# Names that only rows of evaluations have.
_EVALUATION = 'held_out/'


def _print(line: str) -> None:
  print(line, flush=True)


class Metrics:
  """Writes rows."""

  def __init__(
    self,
    workdir: pathlib.Path,
    *,
    resume_step: int = 0,
    tensorboard: bool = False,
    print_every: int = 10,
    show: Callable[[str], None] = _print,
  ):
    """Opens the files.

    Args:
      workdir: where they lie.
      resume_step: the last step that is kept.
      tensorboard: whether to write its events too.
      print_every: steps between lines; 0 for those of evaluations only, which
        always come.
      show: takes a line.
    """
    self._path = workdir / 'metrics.jsonl'
    self._print_every = print_every
    self._show = show
    _truncate(self._path, resume_step)
    self._board = (
      _open_board(workdir / 'tensorboard', resume_step) if tensorboard else None
    )

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes the row of a step."""
    row = {'step': step, **{k: _plain(v) for k, v in values.items()}}
    # JSON has no NaN; a row a reader cannot parse helps nobody.
    safe = {k: _json_safe(v) for k, v in row.items()}
    with open(self._path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(safe, allow_nan=False) + '\n')
    if self._board is not None:
      for name, value in row.items():
        for part, number in _numbers(name, value):
          if part != 'step':
            self._board.add_scalar(part, number, step)
    is_due = self._print_every and step % self._print_every == 0
    if is_due or any(name.startswith(_EVALUATION) for name in values):
      shown = '  '.join(
        f'{name} {value:.4g}'
        for name, value in row.items()
        if name != 'step' and isinstance(value, float | int)
      )
      self._show(f'step {step}  {shown}')

  def close(self) -> None:
    """Closes what stays open between rows."""
    if self._board is not None:
      self._board.close()


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the rows of a metrics file; a last line cut by a kill is left out."""
  rows = []
  if path.exists():
    for line in path.read_text(encoding='utf-8').split('\n')[:-1]:
      rows.append(json.loads(line))
  return rows


def _truncate(path, step):
  rows = [row for row in read(path) if row['step'] <= step]
  partial = path.with_suffix('.partial')
  partial.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  os.replace(partial, path)


def _open_board(folder, resume_step):
  try:
    import tensorboardX
  except ImportError as error:
    raise errors.UserError(
      'tensorboard=True needs the package tensorboardX: pip install '
      'jspec[tensorboard]'
    ) from error
  return tensorboardX.SummaryWriter(
    str(folder), purge_step=resume_step + 1 if resume_step else None
  )


def _plain(value):
  if hasattr(value, 'tolist'):
    return value.tolist()
  return value


def _numbers(name, value):
  """Names and numbers of a value, of what is in lists and dicts too."""
  if isinstance(value, float | int):
    yield name, value
  items = {}
  if isinstance(value, list):
    items = dict(enumerate(value, 1))
  elif isinstance(value, Mapping):
    items = value
  for key, entry in items.items():
    yield from _numbers(f'{name}/{key}', entry)


def _json_safe(value):
  """Numbers that are not finite become text, inside lists too."""
  if isinstance(value, list):
    return [_json_safe(entry) for entry in value]
  is_odd = isinstance(value, float) and not math.isfinite(value)
  return str(value) if is_odd else value
