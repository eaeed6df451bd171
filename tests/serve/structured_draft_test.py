# SPDX-License-Identifier: MIT
"""What of a constrained draft is verified: shape, and the law of the output."""

import numpy as np
import pytest

from jspec.serve import structured_draft


def random_case(rng):
  num_slots = int(rng.integers(1, 12))
  parents = np.full(num_slots, -1, np.int32)
  for node in range(1, num_slots):
    parents[node] = rng.integers(0, node)
  num_nodes = int(rng.integers(1, num_slots + 1))
  is_allowed = np.zeros(num_slots, bool)
  is_allowed[0] = True
  for node in range(1, num_nodes):
    is_allowed[node] = is_allowed[parents[node]] and rng.random() < 0.7
  return parents, num_nodes, is_allowed


@pytest.mark.parametrize('is_sampled', [False, True])
def test_kept_nodes_come_first_as_the_same_tree(is_sampled):
  rng = np.random.default_rng(0)
  for _ in range(300):
    parents, num_nodes, is_allowed = random_case(rng)
    got = structured_draft.verified(
      parents, num_nodes, is_allowed, is_sampled=is_sampled
    )
    assert sorted(got.nodes.tolist()) == list(range(len(parents)))
    kept = got.nodes[: got.num_nodes]
    want = {
      node
      for node in range(num_nodes)
      if is_allowed[node]
      or (is_sampled and node > 0 and is_allowed[parents[node]])
    }
    assert set(kept.tolist()) == want
    assert kept.tolist() == sorted(kept.tolist())
    assert got.parents[0] == -1
    for place in range(1, len(parents)):
      assert 0 <= got.parents[place] < place
    for place in range(1, got.num_nodes):
      assert kept[got.parents[place]] == parents[kept[place]]


def test_picture_of_the_docstring():
  parents = np.array([-1, 0, 0, 1, 2], np.int32)
  is_allowed = np.array([True, True, False, True, False])
  got = structured_draft.verified(parents, 5, is_allowed, is_sampled=False)
  assert got.nodes.tolist() == [0, 1, 3, 2, 4]
  assert got.parents.tolist() == [-1, 0, 1, 0, 0]
  assert got.num_nodes == 3
  got = structured_draft.verified(parents, 5, is_allowed, is_sampled=True)
  assert got.nodes.tolist() == [0, 1, 2, 3, 4] and got.num_nodes == 4


def output_law(p, q, stays):
  """Rejection sampling of one draft token from q, enumerated.

  Args:
    p: the target's law under the mask.
    q: the drafter's, which knows no mask.
    stays: which draft tokens are verified; without one, p is sampled.
  """
  residual = np.maximum(p - q, 0)
  residual /= residual.sum()
  law = np.zeros_like(p)
  for token, chance in enumerate(q):
    if not stays[token]:
      law += chance * p
      continue
    accept = min(1.0, p[token] / chance)
    law[token] += chance * accept
    law += chance * (1 - accept) * residual
  return law


def test_sampled_draft_keeps_the_law_only_if_refused_tokens_stay():
  p, q = np.array([0.0, 0.2, 0.5, 0.3]), np.array([0.3, 0.5, 0.1, 0.1])
  parents = np.array([-1, 0], np.int32)
  laws = {}
  for is_sampled in (True, False):
    stays = [
      structured_draft.verified(
        parents, 2, np.array([True, p[token] > 0]), is_sampled=is_sampled
      ).num_nodes
      == 2
      for token in range(4)
    ]
    laws[is_sampled] = output_law(p, q, stays)
  np.testing.assert_allclose(laws[True], p, atol=1e-12)
  # Control: taking the refused token out is biased.
  assert np.abs(laws[False] - p).max() > 0.05
