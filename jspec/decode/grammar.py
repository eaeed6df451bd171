# SPDX-License-Identifier: MIT
"""Grammar masks on the device: which tokens may come behind a node.

A matcher on the host (llguidance and xgrammar agree on the layout) packs what
it allows into bits, one mask for every node, since siblings leave the grammar
in different states:

  token v is allowed   bit v % 32 of word v // 32 is 1

The rest of the vocabulary gets -inf, after all other options: no bias brings a
forbidden token back. A mask that allows nothing leaves a node without a law,
and the sampler answers -1, which the host has to report.
"""

import jax.numpy as jnp
from jax import lax

from jspec.typing import Array, Bool, Float, UInt32

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
  """Words that hold one bit for every token."""
  return -(-vocab_size // WORD_BITS)


def mask(
  logits: Float[Array, 'nodes V'],
  words: UInt32[Array, 'nodes words'],
  has_mask: Bool[Array, 'nodes'],
) -> Float[Array, 'nodes V']:
  """Forbids what the masks do not allow.

  Args:
    logits: for the token behind each node.
    words: packed masks. A vocabulary padded beyond the tokenizer's has words
      (or bits of the last) of 0 there; bits beyond V are not looked at.
    has_mask: nodes whose request has a grammar. The others stay bit by bit as
      they are, whatever their words.

  Raises:
    ValueError: there are fewer words than the vocabulary needs.
  """
  vocab = logits.shape[1]
  if words.shape[1] < num_words(vocab):
    raise ValueError(
      f'{words.shape[1]} words hold no bit for each of {vocab} tokens: pad the'
      f' mask with zeros to {num_words(vocab)} words'
    )

  def apply(z):
    bits = jnp.arange(WORD_BITS, dtype=jnp.uint32)
    allowed = (words[:, :, None] >> bits) & jnp.uint32(1)
    allowed = allowed.reshape(words.shape[0], -1)[:, :vocab] != 0
    return jnp.where(allowed | ~has_mask[:, None], z, -jnp.inf)

  return lax.cond(jnp.any(has_mask), apply, lambda z: z, logits)
