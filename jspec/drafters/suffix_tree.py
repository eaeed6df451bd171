# SPDX-License-Identifier: MIT
"""A suffix tree of token texts with counts, as plain Python on the host.

It holds every substring of up to `max_depth` tokens of every text, and how
often it occurs (suffix decoding, arXiv 2411.04975). Each position i of a text
contributes one *window*, the tokens i .. i + max_depth - 1 or to the end; a
substring occurs as often as windows begin with it:

  count(w) = number of windows that have w as a prefix

Windows share a path as long as they agree; a node is an edge with several
tokens, so there are at most two for a window. An edge does not copy its tokens,
it points at the newest text that has them. A window ends somewhere on an edge:

  - the first and longest window of a leaf *owns* it: its end is the leaf's, and
    grows with its text at no cost
  - every other end is noted as an offset on the edge (`ends`)

so count(w) = the edge's count less the ends before w's last token. Growing a
text costs one step for each of its suffixes that occurred before, at most
`max_depth` a token, and of most texts two or three.
"""

import dataclasses
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(slots=True, eq=False)
class Node:
  """An edge with the node below it.

  Attributes:
    text: the tokens of a text that has the edge's tokens.
    start: where in `text` they begin.
    length: how many there are; a leaf's may not be there yet (`size`).
    count: windows that reach its first token.
    ends: windows that end behind the edge's first n tokens, for each n.
    children: next edges by their first token; none in a leaf.
  """

  text: list[int]
  start: int
  length: int
  count: int
  ends: dict[int, int] | None = None
  children: dict[int, 'Node'] | None = None

  def size(self) -> int:
    """How many tokens it has so far."""
    return min(self.length, len(self.text) - self.start)

  def count_at(self, offset: int) -> int:
    """Windows that reach its token number `offset`, from 1."""
    if not self.ends:
      return self.count
    return self.count - sum(n for at, n in self.ends.items() if at < offset)

  def add_end(self, offset: int, num: int = 1) -> None:
    """Notes `num` windows more (or fewer) that end at `offset`."""
    ends = {} if self.ends is None else self.ends
    left = ends.get(offset, 0) + num
    if left:
      ends[offset] = left
    else:
      del ends[offset]
    self.ends = ends or None


# A place in the tree: behind the first `offset` tokens of an edge.
Point = tuple[Node, int]


class SuffixTree:
  """Substrings of texts; the text that was added last may grow."""

  def __init__(self, max_depth: int):
    self.max_depth = max_depth
    self._root = Node([], 0, 0, 0, children={})
    self._texts: dict[int, list[int]] = {}
    self._next_id = 0
    self._growing: list[int] = []
    # Windows of the growing text that are not complete and own no leaf, each
    # with its start, in order. They are its last ones: a window that owns a
    # leaf is unique, and so is every longer one.
    self._points: list[tuple[int, Node, int]] = []

  def add(self, tokens: Sequence[int]) -> int:
    """Adds a text and returns its id; texts added before grow no more."""
    self._growing, self._points = [], []
    self._texts[self._next_id] = self._growing
    self._next_id += 1
    self.extend(tokens)
    return self._next_id - 1

  def extend(self, tokens: Sequence[int]) -> None:
    """Appends tokens to the text added last."""
    text = self._growing
    old_len = len(text)
    text.extend(tokens)
    points = []
    for start, node, offset in self._points:
      points += self._walk(start, node, offset, old_len - start)
    for start in range(old_len, len(text)):
      self._root.count += 1
      points += self._walk(start, self._root, 0, 0)
    self._points = points

  def remove(self, text_id: int) -> None:
    """Takes a text out: what is left is as if it had never been there."""
    text = self._texts.pop(text_id)
    if text is self._growing:
      self._growing, self._points = [], []
    for start in range(len(text)):
      self._root.count -= 1
      self._remove_window(text, start)
    # Edges were joined: find the open windows of the growing text again.
    self._points = [
      (start, *self.find(self._growing[start:])) for start, *_ in self._points
    ]

  def count(self, tokens: Sequence[int]) -> int:
    """How often up to `max_depth` tokens occur in all texts."""
    point = self.find(tokens)
    return 0 if point is None else count_at(point)

  def find(self, tokens: Sequence[int]) -> Point | None:
    """The place behind some tokens; None where they do not occur."""
    node, offset, done = self._root, 0, 0
    while done < len(tokens):
      size = node.size()
      if offset == size:
        node = (node.children or {}).get(tokens[done])
        if node is None:
          return None
        offset, size = 0, node.size()
      num = min(size - offset, len(tokens) - done)
      at = node.start + offset
      if node.text[at : at + num] != list(tokens[done : done + num]):
        return None
      offset, done = offset + num, done + num
    return node, offset

  def suffixes(self) -> Iterator[tuple[int, Point]]:
    """Ends of the growing text that occur elsewhere too, shortest first.

    Yields their length and place; only those shorter than `max_depth`, since
    nothing can follow the others.
    """
    for start, node, offset in reversed(self._points):
      length = len(self._growing) - start
      yield length, self._settle(start, node, offset, length)

  def _walk(self, start, node, offset, depth):
    """Leads a window on to its text's end; its point if it stays open.

    The window begins at `start` and ends at `offset` of the node, `depth`
    tokens long.
    """
    text = self._growing
    node, offset = self._settle(start, node, offset, depth)
    if offset:
      node.add_end(offset, -1)
    end = min(start + self.max_depth, len(text))
    at = start + depth
    while at < end:
      size = node.size()
      if offset < size:
        num = _num_equal(text, at, node, offset, min(size - offset, end - at))
        offset, at = offset + num, at + num
        if at < end and offset < size:
          _split(node, offset)
          self._add_leaf(node, start, at)
          return []
      elif node.children is None:
        # Longer than the window that owned the leaf, which ends here for good.
        node.add_end(size)
        node.text, node.start = text, at - size
        node.length = self.max_depth - (node.start - start)
        return []
      else:
        # The newest text goes last, so its tokens are the ones to point at.
        if node is not self._root:
          node.text, node.start = text, at - node.length
        child = node.children.get(text[at])
        if child is None:
          self._add_leaf(node, start, at)
          return []
        child.count += 1
        node, offset = child, 0
    node.add_end(offset)
    is_open = at < start + self.max_depth
    return [(start, node, offset)] if is_open else []

  def _settle(self, start, node, offset, depth):
    """A window's end, which splits since it was noted moved to a child."""
    while node.children and offset > node.length:
      at = start + depth - offset + node.length
      offset, node = offset - node.length, node.children[self._growing[at]]
    return node, offset

  def _add_leaf(self, node, start, at):
    text = self._growing
    length = self.max_depth - (at - start)
    node.children[text[at]] = Node(text, at, length, 1)

  def _remove_window(self, text, start):
    end = min(start + self.max_depth, len(text))
    node, at = self._root, start
    while True:
      above, node = node, node.children[text[at]]
      node.count -= 1
      if not node.count:
        del above.children[text[at]]
        if above is not self._root:
          _join(above)
        return
      size = node.size()
      if at + size >= end:
        break
      at += size
    offset = end - at
    is_owner = node.children is None and (
      (node.text is text and node.start == at)
      or offset not in (node.ends or ())
    )
    if is_owner:
      _disown(node)
    else:
      node.add_end(offset, -1)


def count_at(point: Point) -> int:
  """How often the substring that leads to a place occurs."""
  node, offset = point
  return node.count_at(offset) if offset else node.count


def following(
  point: Point, at_least: float = 1.0
) -> list[tuple[int, int, Point]]:
  """Tokens that follow a place, each with its count and the place behind it.

  The most frequent first, among equals the lowest token; only those that occur
  `at_least` so often.
  """
  node, offset = point
  if offset < node.size():
    count = node.count_at(offset + 1)
    token = node.text[node.start + offset]
    return [(token, count, (node, offset + 1))] if count >= at_least else []
  found = [
    (token, child.count, (child, 1))
    for token, child in (node.children or {}).items()
    if child.count >= at_least
  ]
  return sorted(found, key=lambda next_: (-next_[1], next_[0]))


def _num_equal(text, at, node, offset, limit):
  """Length of the common run of a text and an edge, at most `limit`."""
  other, there = node.text, node.start + offset
  if text[at : at + limit] == other[there : there + limit]:
    return limit
  num = 0
  while text[at + num] == other[there + num]:
    num += 1
  return num


def _split(node, offset):
  """Cuts an edge behind `offset` tokens; the node stays the upper part.

  The window that wants the cut is counted in the node but has no end yet.
  """
  ends = node.ends or {}
  upper = {at: num for at, num in ends.items() if at <= offset}
  lower = {at - offset: num for at, num in ends.items() if at > offset}
  child = Node(
    node.text,
    node.start + offset,
    node.length - offset,
    node.count - 1 - sum(upper.values()),
    lower or None,
    node.children,
  )
  node.length, node.ends = offset, upper or None
  node.children = {child.text[child.start]: child}


def _join(node):
  """Mends a node that lost a child: no node has one child only."""
  if not node.children:
    node.children = None
    _disown(node)
  elif len(node.children) == 1:
    (child,) = node.children.values()
    ends = dict(node.ends or {})
    for at, num in (child.ends or {}).items():
      ends[at + node.length] = num
    node.text, node.start = child.text, child.start - node.length
    node.length, node.children = node.length + child.length, child.children
    node.ends = ends or None


def _disown(node):
  """Gives a leaf without owner to the longest of its other windows."""
  node.length = max(node.ends)
  node.add_end(node.length, -1)
