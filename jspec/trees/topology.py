# SPDX-License-Identifier: MIT
"""The shape of a tree that is decided before anything is drafted."""

import dataclasses
import functools

import numpy as np

from jspec import errors


@dataclasses.dataclass(frozen=True)
class Topology:
  """A tree without tokens, hashable, so that it can be a static argument.

  Attributes:
    parents: of every node; -1 for node 0, the anchor.
    ranks: which child of its parent a node is, from 0; siblings have ranks 0,
      1, ... in node order, which is the order they are drawn in. 0 for the
      anchor.
    acceptance: probability that the node is the child that is accepted, given
      that its parent is; 1 for the anchor.
  """

  parents: tuple[int, ...]
  ranks: tuple[int, ...]
  acceptance: tuple[float, ...]

  def __post_init__(self):
    sizes = {len(self.parents), len(self.ranks), len(self.acceptance)}
    if len(sizes) != 1 or not self.parents or self.parents[0] != -1:
      raise errors.UserError(
        'topology: parents, ranks and acceptance need one entry for every node,'
        ' the first for the anchor, whose parent is -1'
      )
    children = [0] * len(self.parents)
    for node in range(1, len(self.parents)):
      parent, rank = self.parents[node], self.ranks[node]
      if not 0 <= parent < node:
        raise errors.UserError(
          f'topology: node {node} has parent {parent}; a parent must come'
          ' before its child'
        )
      if rank != children[parent]:
        raise errors.UserError(
          f'topology: node {node} has rank {rank} among the children of'
          f' {parent}; expected {children[parent]}, the next in node order'
        )
      children[parent] += 1

  @property
  def num_nodes(self) -> int:
    """T, the anchor included."""
    return len(self.parents)

  @functools.cached_property
  def depths(self) -> tuple[int, ...]:
    """Distance of every node from the anchor."""
    depths = [0]
    for parent in self.parents[1:]:
      depths.append(depths[parent] + 1)
    return tuple(depths)

  @functools.cached_property
  def num_children(self) -> tuple[int, ...]:
    """How many children every node has."""
    count = [0] * self.num_nodes
    for parent in self.parents[1:]:
      count[parent] += 1
    return tuple(count)

  @property
  def depth(self) -> int:
    """Of the deepest node."""
    return max(self.depths)

  @property
  def most_children(self) -> int:
    """Of the node with the most."""
    return max(self.num_children)

  def survival(self) -> np.ndarray:
    """Probability [T] that a node is accepted, if `acceptance` is right."""
    out = np.ones(self.num_nodes)
    for node in range(1, self.num_nodes):
      out[node] = out[self.parents[node]] * self.acceptance[node]
    return out

  def expected_accepted(self) -> float:
    """Draft tokens a round keeps, without the bonus."""
    return float(self.survival()[1:].sum())
