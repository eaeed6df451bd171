# SPDX-License-Identifier: MIT
"""Where records come from: JSON Lines files and TFDS data sets.

  answers.jsonl.gz      one JSON object a line, gzip by the file's name
  tfds:NAME[/SPLIT]     `tfds.data_source`, random access, no TensorFlow graph

A record is a dict; what its keys mean is the business of `examples` (answers)
and of `prompts` here.
"""

import dataclasses
import gzip
import json
import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jspec import errors


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One prompt: the user's messages, to be answered in turn."""

  id: str
  turns: tuple[str, ...]


def records(spec: str) -> Sequence[Mapping[str, Any]]:
  """Opens a source: a JSON Lines path or `tfds:NAME[/SPLIT]`."""
  if spec.startswith('tfds:'):
    return _tfds(spec)
  path = pathlib.Path(spec)
  if not path.is_file():
    raise errors.UserError(
      f'no data file {path}: give a .jsonl or .jsonl.gz file, or tfds:NAME'
    )
  return list(read_jsonl(path))


def read_jsonl(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the objects of a JSON Lines file; `.gz` is decompressed."""
  opener = gzip.open if path.name.endswith('.gz') else open
  try:
    with opener(path, 'rt', encoding='utf-8') as lines:
      for number, line in enumerate(lines, start=1):
        if not line.strip():
          continue
        try:
          record = json.loads(line)
        except json.JSONDecodeError as error:
          raise errors.UserError(
            f'{path} line {number} is not JSON ({error.msg}): mend the line'
          ) from error
        if not isinstance(record, dict):
          raise errors.UserError(
            f'{path} line {number} is not a JSON object: one object a line'
          )
        yield record
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(f'cannot read {path}: {error}') from error


def prompts(spec: str) -> list[Prompt]:
  """Reads prompts: objects with `turns` (list of user messages) or `prompt`."""
  found = []
  for number, record in enumerate(records(spec)):
    name = str(record.get('id', number))
    turns = record.get('turns', record.get('prompt'))
    if isinstance(turns, bytes):
      turns = turns.decode()
    if isinstance(turns, str):
      turns = [turns]
    if not turns or not all(isinstance(turn, str) for turn in turns):
      raise errors.UserError(
        f'prompt `{name}` in {spec} needs `turns` (a list of texts) or `prompt`'
      )
    found.append(Prompt(name, tuple(turns)))
  return found


def _tfds(spec):
  name, _, split = spec.removeprefix('tfds:').partition('/')
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise errors.UserError(
      f'{spec} needs the package tensorflow-datasets: pip install jspec[tfds]'
    ) from error
  return tfds.data_source(name, split=split or 'train')
