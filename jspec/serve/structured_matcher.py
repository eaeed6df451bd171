# SPDX-License-Identifier: MIT
r"""`Matcher`: where one answer stands in its grammar, and what may follow.

A draft is a tree, and siblings leave the grammar in different states, so every
node has a mask of its own, for the token behind it. For a(bx|cy)d:

                      node      path     may follow
       0              0 anchor           a
       |              1 a       a        b c
       1 a            2 b       ab       x
      / \             3 c       ac       y
   2 b   3 c          4 y       aby      forbidden: 4 and what hangs on it
     |                                   are not worth verifying
    4 y

The tree is walked depth first: one step forward for a node, a rollback where a
branch ends. Afterwards the matcher stands where it stood. Only `commit` moves
it, by tokens that are final.

Two ways to end. The grammar is finished: nothing but the end may follow, and
the answer ends there, whether or not the model says so. Or it is stuck: the
grammar wants more, and no token of the vocabulary continues (or a limit of the
library is exceeded). A stuck state has a mask of zeros, from which the sampler
draws -1; `problem` says why. Neither raises: a draft is no reason to fail.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jspec.typing import Bool, Int, UInt32


@dataclasses.dataclass(frozen=True)
class Masks:
  """What may follow the nodes of a draft.

  Attributes:
    words: bit v % 32 of word v // 32 is 1 where token v may follow. Zeros for
      nodes that are not allowed: they are never reached.
    is_allowed: nodes whose whole path the grammar allows, the anchor among
      them; ancestor-closed. Nothing behind a finished answer is allowed.
  """

  words: UInt32[np.ndarray, 'T W']
  is_allowed: Bool[np.ndarray, 'T']


@dataclasses.dataclass(frozen=True)
class Committed:
  """What tokens meant for the answer.

  Attributes:
    num_tokens: how many of them belong to it, EOS included.
    is_finished: whether the answer is complete with the last of those.
  """

  num_tokens: int
  is_finished: bool


class Matcher:
  """Follows one answer; made by `structured.Compiler.matcher`.

  Attributes:
    problem: why nothing may follow the answer, in one line, as of the last
      masks; empty where something may.
  """

  def __init__(self, start: Any, num_ids: int, num_words: int):
    """Begins an answer.

    Args:
      start: an `LLMatcher` that no token was given to; it is copied.
      num_ids: ids of the tokenizer; those beyond are refused.
      num_words: width of the masks.
    """
    self.problem = ''
    self._tokens = []
    self._start = start
    self._at = start.deep_copy()
    self._num_ids = num_ids
    self._num_words = num_words

  @property
  def tokens(self) -> tuple[int, ...]:
    """The answer so far."""
    return tuple(self._tokens)

  @property
  def is_finished(self) -> bool:
    """Whether nothing may follow but the end."""
    return self._at.is_stopped() and not self._at.is_error()

  @property
  def is_accepting(self) -> bool:
    """Whether the answer satisfies the constraint as it stands."""
    return self._at.is_accepting()

  def commit(self, tokens: Sequence[int]) -> Committed:
    """Appends tokens, up to and with the one that completes the answer.

    Raises:
      ValueError: the grammar refuses one of them, so it was drawn without its
        mask. Those before it are committed.
    """
    num_tokens = 0
    for token in tokens:
      if self.is_finished:
        break
      if not self._step(token):
        raise ValueError(
          f'token {token} cannot follow {len(self._tokens)} tokens of the'
          ' answer: it was drawn without the mask of its node'
        )
      self._tokens.append(int(token))
      num_tokens += 1
    return Committed(num_tokens, self.is_finished)

  def mask_words(self, path: Sequence[int] = ()) -> UInt32[np.ndarray, 'W']:
    """Returns what may follow the answer and then `path`.

    Raises:
      ValueError: the grammar refuses a token of the path.
    """
    tokens = np.array([0, *path], np.int64)
    parents = np.arange(-1, len(path), dtype=np.int32)
    masks = self.masks(tokens, parents, len(tokens))
    if not masks.is_allowed.all():
      refused = tokens[np.argmin(masks.is_allowed)]
      raise ValueError(f'the grammar refuses token {refused} of the path')
    return masks.words[-1]

  def masks(
    self,
    tokens: Int[np.ndarray, 'T'],
    parents: Int[np.ndarray, 'T'],
    num_nodes: int,
  ) -> Masks:
    """Returns what may follow every node of a draft.

    Args:
      tokens: node 0 is the anchor, the last committed token (of the prompt, if
        the answer has none yet): it is not looked at.
      parents: always smaller than their node.
      num_nodes: live nodes, the anchor included; the others are not allowed.
    """
    words = np.zeros((len(tokens), self._num_words), np.uint32)
    is_allowed = np.zeros((len(tokens),), bool)
    children = [[] for _ in tokens]
    for node in range(num_nodes - 1, 0, -1):
      children[parents[node]].append(node)
    path = []  # The draft tokens that the matcher stands behind.
    stack = [(0, 0)]
    while stack:
      node, depth = stack.pop()
      if depth:
        path = self._back(path, depth - 1)
        if not self._step(tokens[node]):
          continue
        path.append(int(tokens[node]))
      is_allowed[node] = True
      words[node], problem = self._words()
      if node == 0:
        self.problem = problem
      if not self._at.is_stopped():
        stack.extend((child, depth + 1) for child in children[node])
    self._back(path, 0)
    return Masks(words, is_allowed)

  def _step(self, token) -> bool:
    """Goes one token forward, or stays."""
    # An id that the library does not know would break it for good.
    if not 0 <= token < self._num_ids or self._at.is_error():
      return False
    return self._at.try_consume_tokens([int(token)]) == 1

  def _back(self, path, depth):
    """Goes back to the first `depth` tokens of the path, and returns them."""
    kept = path[:depth]
    # What is stuck stays broken and cannot go back; another takes its place.
    if self._at.is_error() or not self._at.rollback(len(path) - depth):
      self._at = self._start.deep_copy()
      for token in (*self._tokens, *kept):
        if not self._step(token):
          raise RuntimeError(f'token {token} was allowed before, now it is not')
    return kept

  def _words(self):
    """The mask of this state, or zeros and why it is stuck."""
    # More words than ours hold padding bits; fewer, and our head is padded.
    found = np.frombuffer(self._at.compute_bitmask(), np.uint32)
    words = np.zeros((self._num_words,), np.uint32)
    if self._at.is_error():
      return words, reason(self._at)
    width = min(len(found), self._num_words)
    words[:width] = found[:width]
    return words, ''


def reason(matcher: Any) -> str:
  """Why an `LLMatcher` is stuck, in one line."""
  said = matcher.get_error().split('\n')[0]
  if said.startswith('NoExtension'):
    return 'no token of the vocabulary can follow'
  return said[:200] or 'no reason given'
