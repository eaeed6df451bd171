# SPDX-License-Identifier: MIT
"""Documents: token ids with a mask of the tokens the target wrote.

A record of a source becomes a document in one of two ways:

  {'id', 'ids', 'prompt_len'}       token ids, the answer starts at prompt_len
  {'id', 'messages': [{'role', 'content'}, ...]}   rendered with the template

  {..., 'tools', 'chat_template_kwargs'}           beside messages, if any

Only tokens the target wrote are labels, so a document without them teaches
nothing. Nothing is dropped in silence: every reason is counted, and bad records
are dropped up to a limit (`dropping`). A conversation whose template rewrites
earlier turns becomes several documents (`text.answer_masks`).
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jspec import errors
from jspec.data import dropping, sources
from jspec.text import answer_masks, chat
from jspec.text import tokenizer as tokenizer_lib

# Token ids and mask of each document of a conversation.
Texts = Sequence[tuple[Sequence[int], Sequence[bool]]]


@dataclasses.dataclass(frozen=True)
class Document:
  """One conversation as the target reads it.

  Attributes:
    id: name of the document, the same in every epoch and run.
    tokens: int32 [S].
    is_answer: bool [S], tokens the target wrote.
    domain: what it is about; '' where the source does not say.
    group: documents of one conversation share it, and are held out together;
      '' where the conversation is one document.
  """

  id: str
  tokens: np.ndarray
  is_answer: np.ndarray
  domain: str = ''
  group: str = ''

  def __len__(self) -> int:
    return len(self.tokens)


class Examples:
  """Iterates over the documents of a source and counts what it leaves out.

  Attributes:
    counts: Counter of 'kept', 'cut' (kept, tail removed), 'split'
      (conversations that became several documents) and of the reasons for
      dropping: 'no_answer', 'short_answer'.
  """

  def __init__(
    self,
    entries: Iterable[sources.Entry],
    *,
    max_len: int,
    vocab_size: int,
    min_answer_len: int = 2,
    render: Callable[[Mapping[str, Any]], Texts] | None = None,
    domain: str = '',
    on_bad: Callable[[errors.UserError], None] = dropping.refuse,
  ):
    """Reads nothing yet.

    Args:
      entries: of a source (`sources.located`).
      max_len: longer documents are cut to it.
      vocab_size: ids must be below it.
      min_answer_len: documents with fewer answer tokens are left out.
      render: turns a record with messages into texts with their masks, the same
        way the server does; not needed for token ids.
      domain: of all documents, and the begin of their names; '' leaves both to
        the records.
      on_bad: called for a bad record; raises, or lets it be dropped.
    """
    self._entries = entries
    self._max_len = max_len
    self._vocab_size = vocab_size
    self._min_answer_len = min_answer_len
    self._render = render
    self._domain = domain
    self._on_bad = on_bad
    self.counts = collections.Counter()

  def __iter__(self) -> Iterator[Document]:
    self.counts.clear()
    for entry in self._entries:
      try:
        documents = self._read(entry.number, entry.record)
      except errors.UserError as error:
        self._on_bad(errors.UserError(f'{entry.where}: {error}'))
        continue
      if len(documents) > 1:
        self.counts['split'] += 1
      for document in documents:
        if self._is_kept(document):
          yield self._cut(document)

  def _is_kept(self, document):
    """Counts a document, under 'kept' or the reason why it is not."""
    if not document.is_answer.any():
      reason = 'no_answer'
    else:
      if len(document) > self._max_len:
        self.counts['cut'] += 1
      num = document.is_answer[: self._max_len].sum()
      reason = 'kept' if num >= self._min_answer_len else 'short_answer'
    self.counts[reason] += 1
    return reason == 'kept'

  def _cut(self, document):
    """Takes the tail off, so that every token keeps its whole context."""
    if len(document) <= self._max_len:
      return document
    return dataclasses.replace(
      document,
      tokens=document.tokens[: self._max_len],
      is_answer=document.is_answer[: self._max_len],
    )

  def _read(self, number, record):
    """The documents of a record."""
    name = str(record.get('id', number))
    domain = self._domain or str(record.get('domain', ''))
    full_name = f'{self._domain}/{name}' if self._domain else name
    if 'ids' in record:
      tokens = _token_ids(name, record['ids'], self._vocab_size)
      start = record.get('prompt_len')
      if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise errors.UserError(
          f'answer `{name}` has `ids` but its `prompt_len` is {start!r}: say '
          'where the answer starts'
        )
      is_answer = np.arange(len(tokens)) >= start
      return [Document(full_name, tokens, is_answer, domain)]
    if 'messages' not in record:
      raise errors.UserError(
        f'answer `{name}` has the keys {sorted(record)} but needs `ids` and '
        '`prompt_len`, or `messages`'
      )
    if self._render is None:
      raise errors.UserError(
        f'answer `{name}` is text but the target has no chat template: give '
        'token ids'
      )
    try:
      texts = self._render(record)
    except errors.UserError as error:
      raise errors.UserError(f'answer `{name}`: {error}') from error
    group = full_name if len(texts) > 1 else ''
    return [
      Document(
        f'{full_name}~{i + 1}' if group else full_name,
        _token_ids(name, list(ids), self._vocab_size),
        np.asarray(mask, bool),
        domain,
        group,
      )
      for i, (ids, mask) in enumerate(texts)
    ]


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


def render(
  tokenizer: tokenizer_lib.Tokenizer,
  template: chat.ChatTemplate,
  variables: Mapping[str, Any],
  record: Mapping[str, Any],
) -> Texts:
  """Texts and masks of a record with messages, for `Examples`.

  Args:
    tokenizer: of the target.
    template: its chat template.
    variables: of the template, for all records; a record's own
      `chat_template_kwargs` go before them.
    record: with `messages`, and `tools` (a list, or JSON of one) if it has any.

  Raises:
    errors.UserError: of `answer_masks.documents`; a field of another type.
  """
  own = record.get('chat_template_kwargs') or {}
  tools = record.get('tools') or None
  if isinstance(tools, str):
    try:
      tools = json.loads(tools)
    except json.JSONDecodeError as error:
      raise errors.UserError(f'`tools` are not JSON ({error.msg})') from error
  if not isinstance(own, Mapping) or not isinstance(tools, list | None):
    raise errors.UserError(
      '`chat_template_kwargs` must be an object and `tools` a list'
    )
  found = answer_masks.documents(
    tokenizer,
    template,
    record['messages'],
    tools=tools,
    variables={**variables, **own},
  )
  return [(document.ids, document.mask) for document in found]


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
