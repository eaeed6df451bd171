# SPDX-License-Identifier: MIT
"""Drafts from a suffix tree: which match to follow, and how far.

Suffix decoding (arXiv 2411.04975). Every ending of the context that occurs in
the tree is a candidate. Behind a match of m tokens

  budget   min(limit, factor * m + offset) tokens: long matches are trusted more
  path     the most frequent token behind what is there, again and again
  tree     the likeliest token behind any node, again and again

where p(token | path) = count(path + token) / count(path), p of a node is the
product along its path, and nothing below `min_prob` is drafted. The score of a
draft is the sum of its nodes' p: how many tokens it expects to be accepted.
The best score wins, among equals the longer match.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Sequence

from jspec.drafters import suffix_tree


@dataclasses.dataclass(frozen=True)
class Found:
  """A draft without its anchor, which is node 0; its first token is node 1.

  Attributes:
    tokens: tokens of the nodes; the likelier come first.
    parents: the parent node of each.
    confidence: p(token | path) of each.
    score: the sum over the nodes of the products of these along their paths.
  """

  tokens: list[int]
  parents: list[int]
  confidence: list[float]
  score: float


NOTHING = Found([], [], [], 0.0)
Grow = Callable[[suffix_tree.Point, int, float], Found]


def best(
  matches: Iterable[tuple[int, suffix_tree.Point]],
  budget: Callable[[int], int],
  grow: Grow,
  min_prob: float,
  max_depth: int,
) -> Found:
  """The draft with the best score.

  Args:
    matches: length and place of the endings that occur, shortest first.
    budget: most tokens behind a match, by its length; may not fall.
    grow: `path` or `tree`.
    min_prob: least product of confidences.
    max_depth: of the tree.
  """
  found, last = NOTHING, None
  for length, point in matches:
    limit = budget(length)
    # As many occurrences as of the ending before: the same ones, and so the
    # same draft, unless the tree ends before it does.
    same = (suffix_tree.count_at(point), limit)
    if same == last and length + limit <= max_depth:
      continue
    last = same
    if not suffix_tree.following(point):
      break  # Nothing follows a longer ending either.
    draft = grow(point, limit, min_prob)
    if draft.score >= found.score:
      found = draft
  return found


def matches(
  tree: suffix_tree.SuffixTree, context: Sequence[int]
) -> Iterable[tuple[int, suffix_tree.Point]]:
  """The endings of any text that occur in a tree, shortest first."""
  context = list(context[-tree.max_depth :])
  for length in range(1, len(context) + 1):
    point = tree.find(context[-length:])
    if point is None:
      return  # Longer ones contain it.
    yield length, point


def path(point: suffix_tree.Point, limit: int, min_prob: float) -> Found:
  """Follows the most frequent token up to `limit` times."""
  tokens, confidence, score, prob = [], [], 0.0, 1.0
  while len(tokens) < limit:
    options = _options(point, prob, min_prob)
    if not options:
      break
    _, token, ratio, prob, point = options[0]
    tokens.append(token)
    confidence.append(ratio)
    score += prob
  return Found(tokens, list(range(len(tokens))), confidence, score)


def tree(point: suffix_tree.Point, limit: int, min_prob: float) -> Found:
  """Takes the likeliest node `limit` times; its followers become candidates.

  Among equals the candidate that was found first.
  """
  tokens, parents, confidence, score = [], [], [], 0.0
  heap, num_pushed, node, prob = [], 0, 0, 1.0
  while len(tokens) < limit:
    for option in _options(point, prob, min_prob):
      heapq.heappush(heap, (option[0], num_pushed, node, option))
      num_pushed += 1
    if not heap:
      break
    _, _, parent, (_, token, ratio, prob, point) = heapq.heappop(heap)
    tokens.append(token)
    parents.append(parent)
    confidence.append(ratio)
    score += prob
    node = len(tokens)
  return Found(tokens, parents, confidence, score)


def _options(point, prob, min_prob):
  """(-p, token, ratio, p, place behind it) of what may follow, likely first."""
  total = suffix_tree.count_at(point)
  # A little less, for the rounding of the division; decided below.
  at_least = (1 - 1e-9) * min_prob * total / prob
  found = []
  for token, count, behind in suffix_tree.following(point, at_least):
    ratio = count / total
    p = prob * ratio
    if p >= min_prob:
      found.append((-p, token, ratio, p, behind))
  return found
