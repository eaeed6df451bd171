# SPDX-License-Identifier: MIT
"""Sequoia: the best tree for measured acceptance by rank (arXiv 2402.12374).

Assume that the j-th child of any node is the accepted one with probability p_j,
given that its parent was. A tree then expects F tokens a round, the bonus
included: the sum over its nodes, the anchor included, of the p along the path.

  F(m, l)    = 1 + G(m - 1, l, 1)                   m nodes, l levels of drafts
  G(n, l, j) = max(0, max over y in 1..n of
                      p_j F(y, l - 1) + G(n - y, l, j + 1))
  G(n, 0, j) = 0,  and G = 0 past the last p

G(n, l, j) spends up to n nodes on children j, j+1, ... and all below them; y
goes to child j and its descendants. This runs on the host, once for a drafter,
a target and a temperature: the shape does not depend on what is drafted, so it
is lossless with sampled drafts. Where p never rises, popping the best of next
sibling and first child off a heap gives the same value.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from jspec import errors
from jspec.trees import topology

Numbers = Sequence[float | int] | np.ndarray


def build(acceptance: Numbers, num_nodes: int, depth: int) -> topology.Topology:
  """The tree of at most `num_nodes` nodes and `depth` levels that expects most.

  Nodes are in order of falling survival; where a later p is larger, a child
  still follows its parent and the siblings drawn before it.

  Args:
    acceptance: p_1, p_2, ...; no node has more children than entries.
    num_nodes: T, the anchor included. Fewer are used where more gain nothing.
    depth: most levels of draft tokens.

  Raises:
    UserError: not probabilities, or sizes that cannot be.
  """
  p = _checked(acceptance, num_nodes, depth)
  _, best = _tables(p, num_nodes, depth)
  return _ordered(p, _children(best, num_nodes - 1, depth, 0))


def choose(
  acceptance: Numbers,
  draft_seconds: Numbers,
  verify_seconds: Numbers,
) -> topology.Topology:
  """The tree that commits most tokens a second.

  Maximises F(m, l) / (draft_seconds[l] + verify_seconds[m - 1]) over m and l;
  of equally good ones the smallest. One node may win: plain decoding.

  Args:
    acceptance: p_1, p_2, ...
    draft_seconds: of drafting 0, 1, 2, ... levels.
    verify_seconds: of verifying 1, 2, 3, ... nodes.

  Raises:
    UserError: not probabilities, or a round that takes no time.
  """
  num_nodes, depth = len(verify_seconds), len(draft_seconds) - 1
  p = _checked(acceptance, num_nodes, depth)
  seconds = np.add.outer(
    np.asarray(draft_seconds, float), np.asarray(verify_seconds, float)
  )
  if not np.all(seconds > 0) or not np.all(np.isfinite(seconds)):
    raise errors.UserError(
      'draft_seconds and verify_seconds: every sum must be above 0 and finite;'
      ' measure them with the programs that will run'
    )
  tokens, best = _tables(p, num_nodes, depth)
  level, size = np.unravel_index(
    np.argmax(tokens[:, 1:] / seconds), seconds.shape
  )
  return _ordered(p, _children(best, int(size), int(level), 0))


def expected_tokens(
  acceptance: Numbers, num_nodes: int, depth: int
) -> np.ndarray:
  """F(m, l) at [l, m - 1] for l up to `depth` and m up to `num_nodes`."""
  tokens, _ = _tables(_checked(acceptance, num_nodes, depth), num_nodes, depth)
  return tokens[:, 1:]


def _checked(acceptance, num_nodes, depth) -> np.ndarray:
  p = np.asarray(acceptance, float)
  if p.ndim != 1 or p.size == 0:
    raise errors.UserError(
      f'acceptance: expected probabilities by rank, got shape {p.shape}'
    )
  if not (np.all(p >= 0) and p.sum() <= 1 + 1e-6):
    raise errors.UserError(
      f'acceptance={p.tolist()}: at most one child is accepted, so entries are'
      ' at least 0 and sum to at most 1'
    )
  if num_nodes < 1 or depth < 0:
    raise errors.UserError(
      f'num_nodes={num_nodes}, depth={depth}: expected at least 1 node (the'
      ' anchor) and 0 levels'
    )
  return p


def _tables(p, num_nodes, depth):
  """F [l, m], and the y that G(n, l, j) takes at [l, n, j] (0: it stops)."""
  tokens = np.ones((depth + 1, num_nodes + 1))
  tokens[:, 0] = 0.0  # No node, no token.
  best = np.zeros((depth + 1, num_nodes, len(p)), int)
  n, y = np.indices((num_nodes, num_nodes))
  for level in range(1, depth + 1):
    behind = np.zeros(num_nodes)  # G(., level, j + 1)
    for j in reversed(range(len(p))):
      gain = p[j] * tokens[level - 1, y] + behind[np.maximum(n - y, 0)]
      # y = 0 is to stop here: later children are drawn only after this one.
      gain = np.where(y == 0, 0.0, np.where(y <= n, gain, -np.inf))
      best[level, :, j] = np.argmax(gain, axis=1)
      behind = np.max(gain, axis=1)
    tokens[level, 1:] = 1.0 + behind
  return tokens, best


def _children(best, n, level, j) -> list:
  """The subtrees that G(n, level, j) is worth, as lists of lists."""
  found = []
  while level > 0 and j < best.shape[2] and best[level, n, j] > 0:
    size = int(best[level, n, j])
    found.append(_children(best, size - 1, level - 1, 0))
    n, j = n - size, j + 1
  return found


def _ordered(p, root) -> topology.Topology:
  """Numbers the nodes by survival; the earlier found wins a tie."""
  parents, ranks, acceptance = [-1], [0], [1.0]
  found = 0
  queue = []

  def offer(parent, survival, siblings, rank):
    nonlocal found
    if rank < len(siblings):
      found += 1
      entry = (-survival * p[rank], found, parent, survival, siblings, rank)
      heapq.heappush(queue, entry)

  offer(0, 1.0, root, 0)
  while queue:
    minus_survival, _, parent, above, siblings, rank = heapq.heappop(queue)
    parents.append(parent)
    ranks.append(rank)
    acceptance.append(float(p[rank]))
    offer(len(parents) - 1, -minus_survival, siblings[rank], 0)
    offer(parent, above, siblings, rank + 1)
  return topology.Topology(tuple(parents), tuple(ranks), tuple(acceptance))
