# SPDX-License-Identifier: MIT
"""Documents: token ids with a mask of the tokens the target wrote.

A record of a source becomes a document in one of two ways:

  {'id', 'ids', 'prompt_len'}       token ids, the answer starts at prompt_len
  {'id', 'messages': [{'role', 'content'}, ...]}   rendered with the template

Only tokens the target wrote are labels, so a document without them teaches
nothing. Nothing is dropped in silence: every reason is counted.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jspec import errors


@dataclasses.dataclass(frozen=True)
class Document:
  """One conversation as the target reads it.

  Attributes:
    id: name of the document, the same in every epoch and run.
    tokens: int32 [S].
    is_answer: bool [S], tokens the target wrote.
    domain: what it is about; '' where the source does not say.
  """

  id: str
  tokens: np.ndarray
  is_answer: np.ndarray
  domain: str = ''

  def __len__(self) -> int:
    return len(self.tokens)


class Examples:
  """Iterates over the documents of a source and counts what it leaves out.

  `render` turns messages into (ids, mask), the same way the server does; it is
  not needed for token ids.

  Attributes:
    counts: Counter of 'kept', 'cut' (kept, tail removed) and of the reasons for
      dropping: 'no_answer', 'short_answer'.
  """

  def __init__(
    self,
    records: Iterable[Mapping[str, Any]],
    *,
    max_len: int,
    vocab_size: int,
    min_answer_len: int = 2,
    render: Callable[[Any], tuple[list[int], list[bool]]] | None = None,
  ):
    self._records = records
    self._max_len = max_len
    self._vocab_size = vocab_size
    self._min_answer_len = min_answer_len
    self._render = render
    self.counts = collections.Counter()

  def __iter__(self) -> Iterator[Document]:
    self.counts.clear()
    for number, record in enumerate(self._records):
      document = self._read(number, record)
      if not document.is_answer.any():
        self.counts['no_answer'] += 1
        continue
      if len(document) > self._max_len:
        # The tail goes, so that every token keeps its whole context.
        document = dataclasses.replace(
          document,
          tokens=document.tokens[: self._max_len],
          is_answer=document.is_answer[: self._max_len],
        )
        self.counts['cut'] += 1
      if document.is_answer.sum() < self._min_answer_len:
        self.counts['short_answer'] += 1
        continue
      self.counts['kept'] += 1
      yield document

  def _read(self, number, record):
    name = str(record.get('id', number))
    if 'ids' in record:
      tokens = _token_ids(name, record['ids'], self._vocab_size)
      start = record.get('prompt_len')
      if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise errors.UserError(
          f'answer `{name}` has `ids` but its `prompt_len` is {start!r}: say '
          'where the answer starts'
        )
      is_answer = np.arange(len(tokens)) >= start
    elif 'messages' in record:
      if self._render is None:
        raise errors.UserError(
          f'answer `{name}` is text but the target has no chat template: give '
          'token ids'
        )
      try:
        ids, mask = self._render(record['messages'])
      except errors.UserError as error:
        raise errors.UserError(f'answer `{name}`: {error}') from error
      tokens = _token_ids(name, list(ids), self._vocab_size)
      is_answer = np.asarray(mask, bool)
    else:
      raise errors.UserError(
        f'answer `{name}` has the keys {sorted(record)} but needs `ids` and '
        '`prompt_len`, or `messages`'
      )
    return Document(name, tokens, is_answer, str(record.get('domain', '')))


def _token_ids(name, ids, vocab_size):
  if not isinstance(ids, list) or not all(type(i) is int for i in ids):
    raise errors.UserError(
      f'answer `{name}` has `ids` that are no list of whole numbers but '
      f'{ids!r:.40}: give token ids'
    )
  for i in ids:
    if not 0 <= i < vocab_size:
      raise errors.UserError(
        f'answer `{name}` holds token {i} but the vocabulary has {vocab_size}: '
        'it was written for another target'
      )
  return np.asarray(ids, np.int32)


def is_held_out(name: str, fraction: float) -> bool:
  """Says whether a document is kept from training, by a hash of its id."""
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:8], 'big') < fraction * 2**64


def fingerprint(documents: Iterable[Document]) -> str:
  """Hashes ids, tokens and masks, in order."""
  digest = hashlib.sha256()
  for document in documents:
    digest.update(document.id.encode() + b'\0')
    digest.update(np.ascontiguousarray(document.tokens, '<i4').tobytes())
    digest.update(np.packbits(document.is_answer).tobytes())
  return digest.hexdigest()[:16]


def answer_counts(documents: Iterable[Document], vocab_size: int) -> np.ndarray:
  """Counts each token id over the answers: int64 [V]."""
  counts = np.zeros((vocab_size,), np.int64)
  for document in documents:
    counts += np.bincount(
      document.tokens[document.is_answer], minlength=vocab_size
    )
  return counts
