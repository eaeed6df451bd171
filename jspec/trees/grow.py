# SPDX-License-Identifier: MIT
"""Fills a tree of fixed shape with a drafter that is run along its paths.

Level by level, because the law behind a node depends on the tokens above it:
the nodes of a level that have children make a beam (`expansion`), the drafter
gives their laws, and the children are drawn. Leaves are never run on. The shape
is static, so who descends from whom is a table made on the host.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.trees import candidates, expansion, fill
from jspec.trees import draws as draws_lib
from jspec.trees import topology as topology_lib
from jspec.typing import Array, Float, Int, Key, PyTree


class _Level(NamedTuple):
  """A beam and the children behind it; number T is fill.

  Attributes:
    level: 0 for the beam of depth 1.
    node: [width] numbers of the beam's nodes.
    parents: [width] slots of their parents in the beam before.
    ancestors: [width, W] words over scratch rows.
    child: numbers of the children, their parents' slots and their ranks.
  """

  level: np.ndarray
  node: np.ndarray
  parents: np.ndarray
  ancestors: np.ndarray
  child: tuple[np.ndarray, np.ndarray, np.ndarray]


def build(
  topology: topology_lib.Topology,
  step: expansion.Step,
  state: PyTree,
  root: candidates.Candidates,
  anchor: Int[Array, 'B'],
  temperature: Float[Array, 'B'] | None = None,
  keys: Key[Array, 'B'] | None = None,
  *,
  draws: str = 'without_replacement',
) -> tuple[tree.Draft, PyTree]:
  """Puts tokens into the tree.

  Args:
    topology: static.
    step: runs the drafter on a beam of `beam_width(topology)` nodes; returns Q
      candidates a node. Called topology.depth - 1 times.
    state: what `step` takes first.
    root: [B, Q], the candidates behind the anchor.
    anchor: node 0.
    temperature: of every row; None for the best tokens (then `q` is None).
    keys: of the rows, where there is a temperature.
    draws: how siblings are drawn, one of `draws.HOW`.

  Returns:
    The draft, and the state after the last step.

  Raises:
    UserError: too few candidates for this shape.
  """
  fill.check(topology, root, draws)
  rows, size = anchor.shape[0], topology.num_nodes
  tokens = jnp.zeros((rows, size), jnp.int32).at[:, 0].set(anchor)
  law = fill.no_law(topology, root, temperature)

  def draw(law, tokens, behind, node, child):
    """Draws behind `node`; puts down the laws and the children's tokens."""
    found, drawn = draws_lib.children(
      behind, node, max(topology.most_children, 1), temperature, keys, draws
    )
    if law is not None:
      law = jax.tree.map(
        lambda kept, new: kept.at[:, node].set(new, mode='drop'), law, drawn
      )
    number, slot, rank = child
    found = found[:, slot, rank].astype(tokens.dtype)
    return law, tokens.at[:, number].set(found, mode='drop')

  def deepen(carry, level):
    state, law, tokens = carry

    def every_row(x):
      return jnp.broadcast_to(x, (rows, *x.shape))

    beam = expansion.Beam(
      tokens=tokens[:, jnp.minimum(level.node, size - 1)],
      parents=every_row(level.parents),
      ancestors=every_row(level.ancestors),
      is_live=every_row(level.node < size),
      level=level.level,
    )
    state, behind = step(state, beam)
    return (state, *draw(law, tokens, behind, level.node, level.child)), None

  behind_anchor = candidates.Candidates(*(x[:, None] for x in root))
  child = _children(topology, {0: 0})
  if size > 1:
    law, tokens = draw(law, tokens, behind_anchor, np.zeros(1, int), child)
  if topology.depth > 1:
    (state, law, tokens), _ = jax.lax.scan(
      deepen,
      (state, law, tokens),
      jax.tree.map(jnp.asarray, _levels(topology)),
    )
  return fill.draft(topology, tokens.astype(anchor.dtype), law, draws), state


def beam_width(topology: topology_lib.Topology) -> int:
  """Nodes that the drafter is run on at a time, at least 1."""
  counts = zip(topology.depths, topology.num_children, strict=True)
  inner = [depth for depth, count in counts if depth and count]
  return int(np.bincount(inner).max()) if inner else 1


def _levels(topology) -> _Level:
  """All levels behind the first, stacked."""
  size, width = topology.num_nodes, beam_width(topology)
  num_levels = topology.depth - 1
  num_words = -(-num_levels * width // tree.WORD_BITS)
  most = int(np.bincount(topology.depths).max())
  made, slots = [], {0: 0}
  for level in range(num_levels):
    above, slots = slots, {}
    node = np.full(width, size, np.int32)
    parents = np.zeros(width, np.int32)
    ancestors = np.zeros((width, num_words), np.uint32)
    for n in range(size):
      if topology.depths[n] == level + 1 and topology.num_children[n]:
        slot = slots[n] = len(slots)
        node[slot], parents[slot] = n, above[topology.parents[n]]
        if level:
          ancestors[slot] = made[-1].ancestors[parents[slot]]
        word, bit = divmod(level * width + slot, tree.WORD_BITS)
        ancestors[slot, word] |= np.uint32(1 << bit)
    child = tuple(
      np.pad(x, (0, most - len(x)), constant_values=fill_with)
      for x, fill_with in zip(
        _children(topology, slots), (size, 0, 0), strict=True
      )
    )
    made.append(_Level(np.int32(level), node, parents, ancestors, child))
  return jax.tree.map(lambda *x: np.stack(x), *made)


def _children(topology, slots):
  """Numbers, parents' slots and ranks of the children of a beam."""
  number = [
    n for n in range(1, topology.num_nodes) if topology.parents[n] in slots
  ]
  return (
    np.asarray(number, np.int32),
    np.asarray([slots[topology.parents[n]] for n in number], np.int32),
    np.asarray([topology.ranks[n] for n in number], np.int32),
  )
