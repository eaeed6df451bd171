# SPDX-License-Identifier: MIT
"""Fills a tree of fixed shape from a law for every depth (block drafters).

The children of any node of depth d come from marginal d, counted from 0; every
node draws its own. All nodes are filled at once.

Neither the shape nor the confidence looks at a token drawn, so cutting the list
of nodes anticipates nothing and sampled drafts stay lossless.
"""

import jax.numpy as jnp
import numpy as np

from jspec import errors, tree
from jspec.trees import candidates
from jspec.trees import draws as draws_lib
from jspec.trees import topology as topology_lib
from jspec.typing import Array, Float, Int, Key


def from_marginals(
  topology: topology_lib.Topology,
  marginals: candidates.Candidates,
  anchor: Int[Array, 'B'],
  temperature: Float[Array, 'B'] | None = None,
  keys: Key[Array, 'B'] | None = None,
  *,
  draws: str = 'without_replacement',
) -> tree.Draft:
  """Puts tokens into the tree.

  Args:
    topology: static.
    marginals: [B, G, Q]; G at least the tree's depth.
    anchor: node 0.
    temperature: of every row; None for the best tokens (then `q` is None).
    keys: of the rows, where there is a temperature.
    draws: how siblings are drawn, one of `draws.HOW`.

  Raises:
    UserError: too few depths or candidates for this shape.
  """
  check(topology, marginals, draws)
  num_depths = marginals.ids.shape[1]
  if num_depths < topology.depth:
    raise errors.UserError(
      f'a tree of depth {topology.depth} needs as many marginals, got'
      f' {num_depths}; build the topology with depth={num_depths}'
    )
  # Leaves read some law as well; what they would draw is nobody's child.
  depth = np.minimum(topology.depths, num_depths - 1)
  children, law = draws_lib.children(
    candidates.Candidates(*(x[:, depth] for x in marginals)),
    np.arange(topology.num_nodes),
    max(topology.most_children, 1),
    temperature,
    keys,
    draws,
  )
  parents = np.asarray(topology.parents[1:], int)
  drafted = children[:, parents, np.asarray(topology.ranks[1:], int)]
  tokens = jnp.concatenate(
    [anchor[:, None], drafted.astype(anchor.dtype)], axis=1
  )
  return draft(topology, tokens, law, draws)


def draft(
  topology: topology_lib.Topology,
  tokens: Int[Array, 'B T'],
  law: draws_lib.Law | None,
  draws: str,
) -> tree.Draft:
  """The draft of a filled tree; `law` is of every node, leaves included."""
  rows, size = tokens.shape

  def every_row(values, dtype):
    return jnp.broadcast_to(jnp.asarray(values, dtype), (rows, size))

  if law is not None:
    ids, probs = law
    has_children = np.asarray(topology.num_children)[:, None] > 0
    law = tree.SparseLaw(ids, jnp.where(has_children, probs, 0.0), draws=draws)
  return tree.Draft(
    tokens=tokens,
    parents=every_row(topology.parents, jnp.int32),
    num_nodes=jnp.full((rows,), size, jnp.int32),
    confidence=every_row(topology.acceptance, jnp.float32),
    q=law,
  )


def check(
  topology: topology_lib.Topology, found: candidates.Candidates, draws: str
) -> None:
  """Refuses candidates that cannot fill the tree.

  Raises:
    UserError: names the number and the limit.
  """
  if draws not in draws_lib.HOW:
    raise errors.UserError(
      f'draws={draws!r}: expected {" or ".join(draws_lib.HOW)}'
    )
  if found.ids.shape[-1] < topology.most_children:
    raise errors.UserError(
      f'a node of this tree has {topology.most_children} children but there are'
      f' {found.ids.shape[-1]} candidates; give at least as many'
    )
