# SPDX-License-Identifier: MIT
"""Reads prompts: JSON Lines, or a TFDS data set with the same fields.

  {"id": "gsm8k/7", "domain": "math", "turns": ["...", "..."]}
  {"prompt": "..."}

`turns` are the user's messages in order; `prompt` is one turn. `id` and
`domain` may be absent, other fields are not looked at. A source is read whole
before anything runs, and a bad record is named with its field.
`jspec.conversation` renders the turns and answers them.
"""

import os
from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.data import sources


def read(
  spec: str | os.PathLike[str], *, split: str | None = None
) -> list[sources.Prompt]:
  """Reads all prompts of a source.

  Args:
    spec: what `sources.located` takes: a file, `tfds:NAME[@SPLIT]`, ...
    split: keep the records whose field `split` has this value; None keeps all.

  Raises:
    errors.UserError: a bad record, two with one id, or no prompt at all.
  """
  spec = os.fspath(spec)
  found, place_of = [], {}
  for _, place, where, record in sources.located(spec):
    prompt = _parse(record, place, where)
    if prompt.id in place_of:
      raise errors.UserError(
        f'{where}: field `id` repeats {prompt.id!r} of {place_of[prompt.id]};'
        ' give every prompt its own'
      )
    place_of[prompt.id] = place
    if split is None or record.get('split') == split:
      found.append(prompt)
  if not found:
    kept = '' if split is None else f' of split {split!r}'
    raise errors.UserError(f'{spec} holds no prompts{kept}: give at least one')
  return found


def of_text(text: str, where: str) -> sources.Prompt:
  """The prompt that a text is, e.g. one typed at `where`."""
  if not _is_text(text):
    raise errors.UserError(
      f'{where} is not a text with something in it: write the message'
    )
  return sources.Prompt('prompt', (text,))


def _parse(record: Mapping[str, Any], place: str, where: str) -> sources.Prompt:
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
        ' message or delete the record'
      )
  name = record.get('id', place.replace(' ', '-'))
  if isinstance(name, int) and not isinstance(name, bool):
    name = str(name)
  domain = record.get('domain', '')
  for field, value in (('id', name), ('domain', domain)):
    if not isinstance(value, str) or (field == 'id' and not value):
      raise errors.UserError(
        f'{where}: field `{field}` must be a text, not {value!r}'
      )
  return sources.Prompt(name, tuple(turns), domain)


def _is_text(value: Any) -> bool:
  """Whether a tokenizer can read it: not blank, no half of a surrogate pair."""
  if not isinstance(value, str) or not value.strip():
    return False
  return not any('\ud800' <= char <= '\udfff' for char in value)
