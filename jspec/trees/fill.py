# SPDX-License-Identifier: MIT
"""Fills a tree of fixed shape from a law for every depth (block drafters).

The children of any node of depth d come from marginal d, counted from 0; every
node draws its own. All nodes are filled at once.

Neither the shape nor the confidence looks at a token drawn, so cutting the list
of nodes anticipates nothing and sampled drafts stay lossless.
"""

import jax
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
  # Only behind nodes with children is anything drawn.
  inner = np.flatnonzero(topology.num_children)
  children, drawn = draws_lib.children(
    candidates.Candidates(
      *(x[:, np.asarray(topology.depths, int)[inner]] for x in marginals)
    ),
    inner,
    max(topology.most_children, 1),
    temperature,
    keys,
    draws,
  )
  law = no_law(topology, marginals, temperature)
  if law is not None:
    law = jax.tree.map(lambda x, new: x.at[:, inner].set(new), law, drawn)
  slot = np.searchsorted(inner, topology.parents[1:])
  drafted = children[:, slot, np.asarray(topology.ranks[1:], int)]
  tokens = jnp.concatenate(
    [anchor[:, None], drafted.astype(anchor.dtype)], axis=1
  )
  return draft(topology, tokens, law, draws)


def no_law(
  topology: topology_lib.Topology,
  found: candidates.Candidates,
  temperature: Float[Array, 'B'] | None,
) -> draws_lib.Law | None:
  """Room for the law of every node; leaves keep it empty."""
  if temperature is None:
    return None
  shape = (found.ids.shape[0], topology.num_nodes, found.ids.shape[-1])
  return jnp.zeros(shape, found.ids.dtype), jnp.zeros(shape, jnp.float32)


def draft(
  topology: topology_lib.Topology,
  tokens: Int[Array, 'B T'],
  law: draws_lib.Law | None,
  draws: str,
) -> tree.Draft:
  """The draft of a filled tree."""
  rows, size = tokens.shape

  def every_row(values, dtype):
    return jnp.broadcast_to(jnp.asarray(values, dtype), (rows, size))

  q = None if law is None else tree.SparseLaw(*law, draws=draws)
  return tree.Draft(
    tokens=tokens,
    parents=every_row(topology.parents, jnp.int32),
    num_nodes=jnp.full((rows,), size, jnp.int32),
    confidence=every_row(topology.acceptance, jnp.float32),
    q=q,
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
