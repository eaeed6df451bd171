# SPDX-License-Identifier: MIT
"""Which drafts of a constrained row are verified, moved to the front.

A round verifies the first `num_nodes` nodes of a row, so what a grammar cuts
out of the middle of a tree has to go behind the others:

  tokens    ^  a  q  b  z        q and z refused, z hangs on q
  parents  -1  0  0  1  2
  nodes     0  1  3 | 2  4       tokens[nodes] and words[nodes] are verified
  parents  -1  0  1 | 0  0       3 of them

Whether a refused token itself may go depends on how it came to be. A
deterministic draft (R1) loses nothing. A sampled one (R2) must stay and be
rejected, which its probability of 0 under the mask does: taking it out because
of what it is would let the target sample as if nothing had been drawn there,
and not from the residual, which is another law. Its descendants are never
reached either way.
"""

import dataclasses

import numpy as np

from jspec.typing import Bool, Int


@dataclasses.dataclass(frozen=True)
class Verified:
  """The draft that is worth verifying.

  Attributes:
    nodes: old index of every node; kept ones first, in their old order, so
      apply it to tokens, confidence, words and the law of the draft alike.
    parents: of the nodes in their new places; 0 for those behind.
    num_nodes: how many are kept, the anchor included.
  """

  nodes: Int[np.ndarray, 'T']
  parents: Int[np.ndarray, 'T']
  num_nodes: int


def verified(
  parents: Int[np.ndarray, 'T'],
  num_nodes: int,
  is_allowed: Bool[np.ndarray, 'T'],
  *,
  is_sampled: bool,
) -> Verified:
  """Returns what of a draft is verified.

  Args:
    parents: of the draft.
    num_nodes: its live nodes.
    is_allowed: `structured_matcher.Masks.is_allowed`.
    is_sampled: whether the draft has a law (`Draft.q`): refused tokens then
      stay, as leaves.
  """
  is_kept = is_allowed.copy()
  if is_sampled:
    is_kept[1:] |= is_allowed[parents[1:]]
  is_kept &= np.arange(len(parents)) < num_nodes
  nodes = np.concatenate([np.flatnonzero(is_kept), np.flatnonzero(~is_kept)])
  place = np.empty_like(nodes)
  place[nodes] = np.arange(len(nodes))
  count = int(is_kept.sum())
  moved = np.zeros_like(parents)
  moved[1:count] = place[parents[nodes[1:count]]]
  moved[0] = -1
  return Verified(nodes.astype(np.int32), moved, count)
