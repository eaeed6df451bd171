# SPDX-License-Identifier: MIT
"""A draft that was proposed before its round, as the host has judged it.

A grammar lives on the host, so a round that obeys one has a visit in between:

  propose  ->  host: which nodes, what may follow each  ->  verify, commit

The round is the same program as ever; `Given` tells it to take this draft and
not to propose another. Grammar masks come the same way, with or without drafts.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import grammar
from jspec.typing import Array, Bool, Float, Int, UInt32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Given:
  """What the host says of one round.

  Attributes:
    is_given: verify this draft; otherwise propose, and `draft` to `num_nodes`
      mean nothing.
    draft: as it was proposed.
    nodes: which of its nodes takes each place, the anchor first.
    parents: of the nodes in their new places.
    num_nodes: places that are taken.
    words: packed masks of the tokens that may follow each place
      (`decode.grammar`).
    has_mask: rows that have a grammar; the others may say anything.
  """

  is_given: Bool[Array, '']
  draft: tree.Draft
  nodes: Int[Array, 'B T']
  parents: Int[Array, 'B T']
  num_nodes: Int[Array, 'B']
  words: UInt32[Array, 'B T W']
  has_mask: Bool[Array, 'B']

  def is_one_round(self) -> Bool[Array, '']:
    """Whether the host has to look again after a round."""
    return self.is_given | jnp.any(self.has_mask)

  def judged(self, anchor: Int[Array, 'B']) -> tree.Draft:
    """The draft with its nodes in their new places, behind the anchors."""

    def moved(leaf):
      index = self.nodes.reshape(self.nodes.shape + (1,) * (leaf.ndim - 2))
      return jnp.take_along_axis(leaf, index, axis=1)

    draft = self.draft
    return tree.Draft(
      tokens=moved(draft.tokens).at[:, 0].set(anchor),
      parents=self.parents,
      num_nodes=self.num_nodes,
      confidence=moved(draft.confidence),
      q=jax.tree.map(moved, draft.q),
    )

  def mask(
    self,
    logits: Float[Array, 'B T V'] | Float[Array, 'Q V'],
    packing: packing_lib.Packing | None,
  ) -> Float[Array, 'B T V'] | Float[Array, 'Q V']:
    """Forbids what the grammars of the rows do not allow.

    Args:
      logits: for the token behind each node: of the first T places of every
        row, or packed.
      packing: of packed logits.
    """
    if packing is not None:
      words = packing.to_tokens(self.words)
      return grammar.mask(logits, words, self.has_mask[packing.row_of()])
    num_rows, num_nodes, vocab = logits.shape
    words = self.words[:, :num_nodes].reshape(num_rows * num_nodes, -1)
    has_mask = jnp.repeat(self.has_mask, num_nodes)
    flat = logits.reshape(num_rows * num_nodes, vocab)
    return grammar.mask(flat, words, has_mask).reshape(logits.shape)
