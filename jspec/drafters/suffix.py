# SPDX-License-Identifier: MIT
"""Suffix decoding: copy what followed the longest trusted match.

Like `ngram`, but the match may be long, what followed it is counted, and the
draft grows with the match (arXiv 2411.04975). A suffix tree of the row's own
text (prompt and answer) and, with `scope='global'`, one of finished answers are
searched; the better score wins, among equals the row's own text.

The trees are Python on the host, reached by `jax.pure_callback`: the state is a
buffer of tokens, and what the host keeps is a cache of it. Every call brings
all tokens of a row. Where they go on from those of the last call, the tree
grows; else it is built anew. So a call may be repeated, left out or made for an
older state. Drafts are a function of the committed tokens and of answers that
were finished before, hence q is None at any temperature.

An answer is finished when its row starts another text: it is what came after
the row's first proposal, less the last round if nobody asked since. A text that
grows by more than a round commits was still being read: that is prompt as well.

`global` is no default: texts decoded twice are drafted from their own answers,
which makes any measurement of them worthless, and requests that share a store
learn from each other's speed what was answered.
"""

import collections
import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import base, ngram, suffix_search, suffix_tree
from jspec.typing import Array, Float, Int, Key

SCOPES = ('local', 'global')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How to draft.

  Attributes:
    num_draft_tokens: longest draft of a chain.
    tree_size: draft tokens of a tree; 0 drafts chains.
    factor, offset: a match of m tokens is worth factor * m + offset drafts.
    min_prob: least chance of a draft token, by counts, along its path.
    max_depth: longest match and draft together.
    min_expected_accepted: a draft whose score, the number of tokens it expects
      to be accepted, is lower is withdrawn, since scoring the anchor alone is
      cheaper; 0 always drafts, as published.
    scope: 'local', a row's own text, or 'global', finished answers too.
    max_outputs: how many finished answers are kept, the newest.
  """

  num_draft_tokens: int = 8
  tree_size: int = 0
  factor: float = 1.0
  offset: float = 0.0
  min_prob: float = 0.1
  max_depth: int = 64
  min_expected_accepted: float = 0.0
  scope: str = 'local'
  max_outputs: int = 1000

  def __post_init__(self):
    least = {
      'num_draft_tokens': 1,
      'tree_size': 0,
      'max_depth': 2,
      'max_outputs': 1,
    }
    for name, bound in least.items():
      if getattr(self, name) < bound:
        _refuse(name, getattr(self, name), f'a whole number from {bound}')
    if not 0 <= self.factor < math.inf:
      _refuse('factor', self.factor, 'a number from 0')
    if not math.isfinite(self.offset):
      _refuse('offset', self.offset, 'a number')
    if not 0 <= self.min_expected_accepted < math.inf:
      _refuse(
        'min_expected_accepted', self.min_expected_accepted, 'a number from 0'
      )
    if not 0 <= self.min_prob <= 1:
      _refuse('min_prob', self.min_prob, 'a number from 0 to 1')
    if self.scope not in SCOPES:
      _refuse('scope', self.scope, ' or '.join(SCOPES))

  @property
  def limit(self) -> int:
    """Most draft tokens of a proposal."""
    return self.tree_size or self.num_draft_tokens

  def budget(self, length: int) -> int:
    """Most draft tokens behind a match of `length` tokens."""
    wanted = math.floor(self.factor * length + self.offset)
    return max(0, min(self.limit, wanted))


_KINDS = {int: 'a whole number', float: 'a number', str: 'a word'}


def read_options(options: Mapping[str, Any]) -> Config:
  """The config that options from a command line describe.

  Raises:
    UserError: no such option, or a value of another type or out of range.
  """
  fields = {field.name: field for field in dataclasses.fields(Config)}
  values = {}
  for name, value in options.items():
    if name not in fields:
      raise errors.UserError(
        f'{name}: no option of suffix; there are {", ".join(fields)}'
      )
    kind = fields[name].type
    # True and False are numbers to Python.
    is_number = kind is float and type(value) is int
    if type(value) is not kind and not is_number:
      _refuse(name, value, _KINDS[kind])
    values[name] = kind(value)
  return Config(**values)


def _refuse(name, value, expected):
  raise errors.UserError(f'{name}={value!r}: expected {expected}')


class Suffix(nnx.Module):
  """Copies what followed the endings of the text, by counts."""

  def __init__(self, config: Config):
    self.config = config
    self.taps = ()
    self.num_draft_tokens = config.limit
    self.confidence_depends = 'prefix'
    self.host = Host(config)

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> Int[Array, 'B S']:
    """A token buffer as long as a row can get."""
    return ngram.token_buffer(table, num_pages, page_size)

  def propose(
    self,
    state: Int[Array, 'B S'],
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Asks the host."""
    del temperature, keys
    rows, num_nodes = anchor.shape[0], self.num_draft_tokens + 1
    whole = jax.ShapeDtypeStruct((rows, num_nodes), jnp.int32)
    tokens, parents, num_nodes, confidence = jax.pure_callback(
      self.host.propose,
      (
        whole,
        whole,
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        jax.ShapeDtypeStruct((rows, num_nodes), jnp.float32),
      ),
      state,
      table.lengths,
      anchor,
    )
    return tree.Draft(
      tokens.astype(anchor.dtype), parents, num_nodes, confidence
    )

  def commit(
    self,
    state: Int[Array, 'B S'],
    table: paged.PageTable,
    rows: base.Committed,
  ) -> Int[Array, 'B S']:
    """Appends the tokens of the rows."""
    return ngram.append_tokens(state, table, rows)


@dataclasses.dataclass
class _Row:
  """What was seen of a row: its tokens, a tree of them, where it answers."""

  tokens: np.ndarray
  tree: suffix_tree.SuffixTree
  prompt_len: int


class Host:
  """Trees of the rows' texts and of finished answers."""

  def __init__(self, config: Config):
    self.config = config
    self._rows: dict[int, _Row] = {}
    self._finished = suffix_tree.SuffixTree(config.max_depth)
    self._ids = collections.deque()
    # Programs of one process may run side by side.
    self._lock = threading.Lock()

  def propose(
    self,
    buffer: Int[Array, 'B S'] | Int[np.ndarray, 'B S'],
    lengths: Int[Array, 'B'] | Int[np.ndarray, 'B'],
    anchor: Int[Array, 'B'] | Int[np.ndarray, 'B'],
    rows: Int[np.ndarray, 'B'] | None = None,
  ) -> tuple[
    Int[np.ndarray, 'B T'],
    Int[np.ndarray, 'B T'],
    Int[np.ndarray, 'B'],
    Float[np.ndarray, 'B T'],
  ]:
    """Drafts of every row: tokens, parents, num_nodes and confidence."""
    rows = range(len(anchor)) if rows is None else rows.tolist()
    buffer, lengths, anchor = map(np.asarray, (buffer, lengths, anchor))
    num_rows, size = len(anchor), self.config.limit + 1
    tokens = np.zeros((num_rows, size), np.int32)
    parents = np.tile(np.arange(-1, size - 1, dtype=np.int32), (num_rows, 1))
    num_nodes = np.ones((num_rows,), np.int32)
    confidence = np.zeros((num_rows, size), np.float32)
    tokens[:, 0], confidence[:, 0] = anchor, 1
    with self._lock:
      for row, length in enumerate(lengths.tolist()):
        text = np.append(buffer[row, :length], anchor[row])
        found = self._draft(self._follow(rows[row], text))
        stop = len(found.tokens) + 1
        num_nodes[row] = stop
        tokens[row, 1:stop] = found.tokens
        parents[row, 1:stop] = found.parents
        confidence[row, 1:stop] = found.confidence
    return tokens, parents, num_nodes, confidence

  def add(self, output: list[int]) -> None:
    """Keeps a finished answer; drops the oldest beyond `max_outputs`."""
    self._ids.append(self._finished.add(output))
    if len(self._ids) > self.config.max_outputs:
      self._finished.remove(self._ids.popleft())

  def _follow(self, index: int, text: np.ndarray) -> _Row:
    """The row's memory, brought to `text`."""
    row = self._rows.get(index)
    common = 0 if row is None else _num_equal(row.tokens, text)
    if row is not None and common == len(row.tokens):
      new = text[common:]
      if len(new) > self.config.limit + 1:
        row.prompt_len = len(text)  # No round commits so much.
      row.tokens = text
      row.tree.extend(new.tolist())
      return row
    prompt_len = len(text)
    if row is not None:
      if row.prompt_len < common == len(text):
        prompt_len = row.prompt_len  # An earlier state of the same text.
      elif self.config.scope == 'global' and len(row.tokens) > row.prompt_len:
        self.add(row.tokens[row.prompt_len :].tolist())
    own = suffix_tree.SuffixTree(self.config.max_depth)
    own.add(text.tolist())
    self._rows[index] = _Row(text, own, prompt_len)
    return self._rows[index]

  def _draft(self, row: _Row) -> suffix_search.Found:
    config = self.config
    grow = suffix_search.tree if config.tree_size else suffix_search.path

    def search(matches):
      return suffix_search.best(
        matches, config.budget, grow, config.min_prob, config.max_depth
      )

    found = search(row.tree.suffixes())
    if self._ids:
      context = row.tokens[-config.max_depth :].tolist()
      others = search(suffix_search.matches(self._finished, context))
      found = found if found.score >= others.score else others
    is_worth_it = found.score >= config.min_expected_accepted
    return found if is_worth_it else suffix_search.NOTHING


def _num_equal(a: np.ndarray, b: np.ndarray) -> int:
  """How many tokens two texts begin with in common."""
  size = min(len(a), len(b))
  differ = a[:size] != b[:size]
  return int(differ.argmax()) if differ.any() else size
