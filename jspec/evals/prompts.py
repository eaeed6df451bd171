# SPDX-License-Identifier: MIT
"""Prompt files of evaluations: JSON Lines, gzip by the file's name.

  {"id": "gsm8k/7", "domain": "math", "turns": ["...", "..."]}
  {"prompt": "..."}

`turns` are the user's messages in order; `prompt` is one turn. `id` and
`domain` may be absent, other fields are not looked at. The file is read whole
before anything runs, and a bad line is named with its field.
`jspec.conversation` renders the turns and answers them.
"""

import dataclasses
import gzip
import hashlib
import json
import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jspec import errors
from jspec.data import sources


@dataclasses.dataclass(frozen=True)
class Prompt(sources.Prompt):
  """A conversation's user messages, with what they are about.

  Attributes:
    domain: results are also shown for each domain; '' where none is given.
  """

  domain: str = ''


def read(path: str | pathlib.Path, *, split: str | None = None) -> list[Prompt]:
  """Reads a prompt file.

  Args:
    path: the file.
    split: keep the lines whose field `split` has this value; None keeps all.

  Raises:
    errors.UserError: a bad line, two lines with one id, or no prompt at all.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise errors.UserError(
      f'no prompt file {path}: give a .jsonl or .jsonl.gz file'
    )
  found, line_of = [], {}
  for number, record in _records(path):
    where = f'{path} line {number}'
    prompt = _parse(record, number, where)
    if prompt.id in line_of:
      raise errors.UserError(
        f'{where}: field `id` repeats {prompt.id!r} of line'
        f' {line_of[prompt.id]}; give every prompt its own'
      )
    line_of[prompt.id] = number
    if split is None or record.get('split') == split:
      found.append(prompt)
  if not found:
    kept = '' if split is None else f' of split {split!r}'
    raise errors.UserError(f'{path} holds no prompts{kept}: give at least one')
  return found


def domain_of(prompt: sources.Prompt) -> str:
  """The domain of a prompt; '' for one that has none."""
  return getattr(prompt, 'domain', '')


def digest(prompts: Sequence[sources.Prompt]) -> str:
  """16 hex digits that differ when the prompts or their order do."""
  text = json.dumps([[prompt.id, *prompt.turns] for prompt in prompts])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _records(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields line numbers and objects; empty lines are skipped."""
  opener = gzip.open if path.name.endswith('.gz') else open
  try:
    with opener(path, 'rt', encoding='utf-8') as lines:
      for number, line in enumerate(lines, start=1):
        if line.strip():
          yield number, _object(line, f'{path} line {number}')
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'cannot read {path} ({error}); write it again as UTF-8 text'
    ) from error


def _object(line: str, where: str) -> dict[str, Any]:
  try:
    record = json.loads(line)
  except json.JSONDecodeError as error:
    raise errors.UserError(
      f'{where} is not JSON ({error.msg}); write one object a line'
    ) from error
  if not isinstance(record, dict):
    raise errors.UserError(f'{where} is not a JSON object: {record!r:.40}')
  return record


def _parse(record: Mapping[str, Any], number: int, where: str) -> Prompt:
  if ('turns' in record) == ('prompt' in record):
    raise errors.UserError(
      f'{where}: give either field `turns` (a list of texts) or field `prompt`'
      ' (one text)'
    )
  field = 'turns' if 'turns' in record else 'prompt'
  turns = record['turns'] if field == 'turns' else [record['prompt']]
  if not isinstance(turns, list) or not turns:
    raise errors.UserError(
      f'{where}: field `turns` must be a list of one text or more'
    )
  for i, turn in enumerate(turns):
    if not _is_text(turn):
      entry = f'`turns` entry {i + 1}' if field == 'turns' else '`prompt`'
      raise errors.UserError(
        f'{where}: field {entry} is not a text with something in it; write the'
        ' message or delete the line'
      )
  name = record.get('id', f'line-{number}')
  if isinstance(name, int) and not isinstance(name, bool):
    name = str(name)
  domain = record.get('domain', '')
  for field, value in (('id', name), ('domain', domain)):
    if not isinstance(value, str) or (field == 'id' and not value):
      raise errors.UserError(
        f'{where}: field `{field}` must be a text, not {value!r}'
      )
  return Prompt(name, tuple(turns), domain)


def _is_text(value: Any) -> bool:
  """Whether a tokenizer can read it: not blank, no half of a surrogate pair."""
  if not isinstance(value, str) or not value.strip():
    return False
  return not any('\ud800' <= char <= '\udfff' for char in value)
