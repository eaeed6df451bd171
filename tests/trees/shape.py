# SPDX-License-Identifier: MIT
"""What every draft that is a tree must look like."""

import numpy as np


def survival(draft) -> np.ndarray:
  """Path probability of every node, [B, T]."""
  parents, confidence = np.asarray(draft.parents), np.asarray(draft.confidence)
  out = np.ones(parents.shape)
  for node in range(1, parents.shape[1]):
    above = np.take_along_axis(out, parents[:, node : node + 1], axis=1)[:, 0]
    out[:, node] = above * confidence[:, node]
  return out


def paths(draft, row: int) -> list[tuple[int, ...]]:
  """The tokens from below the anchor to every live node."""
  tokens, parents = np.asarray(draft.tokens), np.asarray(draft.parents)
  found = [()]
  for node in range(1, int(draft.num_nodes[row])):
    found.append(found[parents[row, node]] + (int(tokens[row, node]),))
  return found


def check(draft, anchor, *, by_survival=True, distinct=True) -> None:
  """Fails unless every prefix of every row's list is a tree of the anchor.

  A parent with a smaller index is what closes all prefixes at once.
  """
  tokens, parents = np.asarray(draft.tokens), np.asarray(draft.parents)
  confidence = np.asarray(draft.confidence)
  num_nodes = np.asarray(draft.num_nodes)
  rows, size = tokens.shape
  assert parents.shape == confidence.shape == (rows, size)
  np.testing.assert_array_equal(tokens[:, 0], anchor)
  assert np.all(parents[:, 0] == -1)
  assert np.all(confidence[:, 0] == 1)
  assert np.all((num_nodes >= 1) & (num_nodes <= size))
  assert np.all(parents[:, 1:] >= 0)
  assert np.all(parents[:, 1:] < np.arange(1, size))
  assert np.all((confidence >= 0) & (confidence <= 1))
  scores = survival(draft)
  for row in range(rows):
    live = int(num_nodes[row])
    if by_survival:
      ratio = scores[row, 1:live] / np.maximum(scores[row, : live - 1], 1e-300)
      assert np.all(ratio <= 1 + 1e-5), scores[row, :live]
    if distinct:
      assert len(set(paths(draft, row))) == live, 'two nodes are the same path'


class Counted:
  """A function that counts how often it is traced."""

  def __init__(self, function):
    self.function, self.count = function, 0

  def __call__(self, *args, **kwargs):
    self.count += 1
    return self.function(*args, **kwargs)
