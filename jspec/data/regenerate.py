# SPDX-License-Identifier: MIT
"""Writes the target's own answers to prompts, one JSON line a turn.

  {"id": "code-007#2", "prompt_len": 55, "ids": [...], "finished": true,
   "target": "smollm2_135m", "fingerprint": "...", "temperature": 0.0, ...}

The file is the state: a run that was killed leaves whole lines and at most one
torn one, and the next run answers only the prompts that are not there. Who
decodes is an argument, so that data never imports decoding.
"""

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from jspec import errors
from jspec.data import sources

Record = dict[str, Any]


def record_id(prompt_id: str, turn: int) -> str:
  """The id of one answer: `code-007#2` is the second turn."""
  return f'{prompt_id}#{turn + 1}'


def appendable(out: pathlib.Path) -> None:
  """Refuses a file that answers cannot be appended to."""
  if out.suffix != '.jsonl':
    raise errors.UserError(f'{out} is appended to: name a .jsonl file')


def run(
  prompts: Sequence[sources.Prompt],
  out: pathlib.Path,
  answer: Callable[[Sequence[int]], list[Record]],
  *,
  same: Record,
  num_at_once: int,
  on_progress: Callable[[int, int], None] | None = None,
) -> int:
  """Appends the answers that `out` does not hold yet.

  Args:
    prompts: what to answer; ids are unique.
    out: a .jsonl file, made or continued.
    answer: given indices of prompts, returns the records of all their turns
      with `id` as `record_id` gives it.
    same: what all records of a file have in common (target, temperature, ...);
      a file that differs is not continued.
    num_at_once: prompts handed to `answer` together; a kill loses these.
    on_progress: called with (prompts done, prompts in all).

  Returns:
    How many prompts were answered now.
  """
  appendable(out)
  names = [prompt.id for prompt in prompts]
  if len(set(names)) != len(names):
    twice = next(name for name in names if names.count(name) > 1)
    raise errors.UserError(f'two prompts have the id {twice!r}: rename one')
  done = _continue(out, same)
  missing = []
  for i, prompt in enumerate(prompts):
    turns = {record_id(prompt.id, turn) for turn in range(len(prompt.turns))}
    if not turns <= done:
      missing.append(i)
  for start in range(0, len(missing), num_at_once):
    some = missing[start : start + num_at_once]
    # Opened when there is something to write: bad input leaves no file.
    _append(out, [r | same for r in answer(some) if r['id'] not in done])
    if on_progress is not None:
      left = len(missing) - start - len(some)
      on_progress(len(prompts) - left, len(prompts))
  return len(missing)


def _append(out, records):
  try:
    with out.open('a', encoding='utf-8') as stream:
      stream.writelines(json.dumps(record) + '\n' for record in records)
      stream.flush()
      os.fsync(stream.fileno())
  except OSError as error:
    raise errors.UserError(
      f'cannot write {out} ({error}): make room, or name another file'
    ) from error


def _continue(out, same):
  """Cuts a torn last line off and returns the ids that are there."""
  if not out.exists():
    return set()
  try:
    content = out.read_bytes()
    whole = content[: content.rfind(b'\n') + 1]
    lines = whole.decode('utf-8').split('\n')
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot continue {out} ({error}): name another file'
    ) from error
  ids = set()
  for _, record in sources.parse_jsonl(lines, out):
    for name, value in same.items():
      if record.get(name) != value:
        raise errors.UserError(
          f'{out} was written with {name}={record.get(name)!r}, not {value!r}:'
          ' use the same flags or another file'
        )
    ids.add(record.get('id'))
  # Last, so that a file that is not ours stays as it is.
  if len(whole) < len(content):
    with out.open('r+b') as stream:
      stream.truncate(len(whole))
  return ids
