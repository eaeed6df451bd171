# SPDX-License-Identifier: MIT
r"""Documents as a person reads them, with what is trained on made visible.

  --- d7 (math): 31 tokens, 12 trained (38.7 %)
  <|im_start|>user
  2 + 2?<|im_end|>
  <|im_start|>assistant
  [[4.<|im_end|>]]

On a terminal the trained text is green and the rest is dim. What would move the
cursor or change colours is shown as `\x1b`.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jspec.data import examples
from jspec.text import tokenizer as tokenizer_lib
from jspec.text.formats import thinking

_CONTROL = re.compile(
  r'[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]'
)


@dataclasses.dataclass(frozen=True)
class Marks:
  """What stands around text that is trained on, and around the rest."""

  trained: tuple[str, str]
  rest: tuple[str, str]


BRACKETS = Marks(('[[', ']]'), ('', ''))
COLOURS = Marks(('\x1b[32m', '\x1b[0m'), ('\x1b[2m', '\x1b[0m'))


def text(
  tokenizer: tokenizer_lib.Tokenizer,
  tokens: np.ndarray,
  is_answer: np.ndarray,
  marks: Marks,
) -> str:
  """The text of tokens [S], with marks around runs of one mask value."""
  parts, at, before = [], 0, ''
  for is_trained, run in itertools.groupby(is_answer.tolist()):
    at += len(list(run))
    # As one text: a piece decoded alone may lose the blank it begins with.
    now = tokenizer.decode(tokens[:at].tolist(), skip_special=False)
    shown = now[len(os.path.commonprefix([before, now])) :]
    begin, end = marks.trained if is_trained else marks.rest
    parts.append(begin + _visible(shown) + end)
    before = now
  return ''.join(parts)


def heading(document: examples.Document, thoughts: int = 0) -> str:
  """One line: name, domain, tokens and the share that is trained on."""
  num, trained = len(document), int(document.is_answer.sum())
  domain = f' ({_visible(document.domain)})' if document.domain else ''
  thought = f', {thoughts} with a thought' if thoughts else ''
  return (
    f'--- {_visible(document.id)}{domain}: {num} tokens, {trained} trained'
    f' ({_percent(trained, num)}){thought}'
  )


def num_thoughts(
  tokenizer: tokenizer_lib.Tokenizer,
  document: examples.Document,
  tags: thinking.Tags | None,
) -> int:
  """How many answers that are trained on begin with a thought in them."""
  if tags is None:
    return 0
  count, at = 0, 0
  for is_trained, run in itertools.groupby(document.is_answer.tolist()):
    start, at = at, at + len(list(run))
    if is_trained:
      said = tokenizer.decode(
        document.tokens[start:at].tolist(), skip_special=False
      )
      thought, close, _ = said.partition(tags.close)
      count += bool(close and thought.replace(tags.open, '').strip())
  return count


def row(
  documents: Sequence[examples.Document],
  batch_row: Mapping[str, np.ndarray],
  show: Callable[[np.ndarray, np.ndarray], str],
) -> Iterable[str]:
  """Lines of a packed row: its documents, and where one ends for the next.

  Args:
    documents: those that were laid in the row.
    batch_row: `tokens`, `is_answer` and `segments` [S] as training gets them.
    show: makes the text of tokens and their mask.
  """
  segments = batch_row['segments']
  used = int((segments > 0).sum())
  yield (
    f'=== {len(documents)} documents, {used} of {len(segments)} tokens,'
    f' {_percent(len(segments) - used, len(segments))} padding'
  )
  for number, document in enumerate(documents, start=1):
    (inside,) = np.nonzero(segments == number)
    first, last = int(inside[0]), int(inside[-1])
    yield (
      f'--- segment {number}, tokens {first} to {last}: '
      + heading(document).removeprefix('--- ')
    )
    yield show(
      batch_row['tokens'][inside].astype(np.int64),
      batch_row['is_answer'][inside].astype(bool),
    )
  yield '--- end of the row; no token sees another segment'


def summary(
  documents: Sequence[examples.Document], weights: Mapping[str, float] | None
) -> Iterable[str]:
  """A line for each domain, and one for all if there are several."""
  by_domain: dict[str, list[examples.Document]] = {}
  for document in documents:
    by_domain.setdefault(document.domain, []).append(document)
  total = sum((weights or {}).values())
  for domain, some in sorted(by_domain.items()):
    drawn = ''
    if weights:
      drawn = f', drawn {_percent(weights.get(domain, 0), total)} of the time'
    yield _counts(_visible(domain) or 'documents', some) + drawn
  if len(by_domain) > 1:
    yield _counts('in all', documents)


def _counts(name, documents):
  num = sum(len(document) for document in documents)
  trained = sum(int(document.is_answer.sum()) for document in documents)
  return (
    f'{name}: {len(documents)} documents, {num} tokens, {trained} trained'
    f' ({_percent(trained, num)})'
  )


def _percent(part, whole):
  return f'{100 * part / max(whole, 1e-9):.1f} %'


def _visible(shown):
  return _CONTROL.sub(
    lambda match: match.group().encode('unicode_escape').decode(), shown
  )
