# SPDX-License-Identifier: MIT
"""Markov heads: the token before a slot shifts its logits (DSpark).

  logits_k = h_k W_head + m_k W_2,      e = W_1[token before], rank r

  vanilla  m = e
  gated    m = sigmoid(W_g [h; e] + b) * e
  rnn      g, c, o = split(W_z [s; e; h] + b);   s starts at 0
           s' = sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c);   m = tanh(o)

W_2 starts at 0, so the drafter starts as if it had no such head. (arXiv
2607.05147, section 3.1; the released code for the gated and rnn forms.) For
training [h; m] and [W_head; W_2] are one state and one matrix, so that a
chunked loss is the same code for every head.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.typing import Array, Float, Int, Key


class Markov(nnx.Module):
  """A Markov head's parameters; implements `token_head.TokenHead`."""

  def __init__(
    self,
    kind: str,
    rank: int,
    width: int,
    vocab_size: int,
    draft_vocab_size: int,
    key: Key[Array, ''],
  ):
    self.kind = kind
    self.rank = rank
    key_w1, key_mix = jax.random.split(key)
    w1 = 0.02 * jax.random.normal(key_w1, (vocab_size, rank))
    self.markov_w1 = nnx.Param(w1)
    self.markov_w2 = nnx.Param(jnp.zeros((rank, draft_vocab_size)))
    self.mix, self.mix_bias = nnx.data(None), nnx.data(None)
    shapes = {
      'gated': (width + rank, rank),
      'rnn': (2 * rank + width, 3 * rank),
    }
    if kind in shapes:
      shape = shapes[kind]
      self.mix = nnx.Param(0.02 * jax.random.normal(key_mix, shape))
      self.mix_bias = nnx.Param(jnp.zeros(shape[1:]))

  def start(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch r'] | None:
    """The recurrent state before the first slot."""
    if self.kind != 'rnn':
      return None
    return jnp.zeros((*hidden.shape[:-1], self.rank), hidden.dtype)

  def states(
    self,
    hidden: Float[Array, '*batch D'],
    embedded: Array,
    tokens: Int[Array, '*batch'],
    carry: Float[Array, '*batch r'] | None,
  ) -> tuple[Float[Array, '*batch Dr'], Float[Array, '*batch r'] | None]:
    """[h; m] of slots whose tokens before are given, and the next carry."""
    del embedded
    e = self.markov_w1[...][tokens]
    if self.kind == 'gated':
      seen = jnp.concatenate([hidden, e], axis=-1)
      gate = jax.nn.sigmoid(seen @ self.mix[...] + self.mix_bias[...])
      e = gate * e
    elif self.kind == 'rnn':
      seen = jnp.concatenate([carry, e, hidden], axis=-1)
      mixed = seen @ self.mix[...] + self.mix_bias[...]
      g, c, o = jnp.split(mixed, 3, axis=-1)
      keep = jax.nn.sigmoid(g)
      carry = keep * carry + (1 - keep) * jnp.tanh(c)
      e = jnp.tanh(o)
    return jnp.concatenate([hidden, e], axis=-1), carry

  def matrix(self, head: Float[Array, 'D V']) -> Float[Array, 'Dr V']:
    """[W_head; W_2]."""
    return jnp.concatenate([head, self.markov_w2[...]], axis=0)

  def base(
    self, hidden: Float[Array, '*batch D'], head: Float[Array, 'D V']
  ) -> Float[Array, '*batch V']:
    """The part of the logits that no token changes, for all slots at once."""
    return hidden @ head

  def logits(
    self,
    states: Float[Array, '*batch Dr'],
    base: Float[Array, '*batch V'],
    head: Array,
  ) -> Float[Array, '*batch V']:
    """Adds the bias of the tokens before."""
    del head
    return base + states[..., -self.rank :] @ self.markov_w2[...]

  def embed(self, tokens: Int[Array, '*batch']) -> Float[Array, '*batch r']:
    """W_1 of tokens, which the confidence head sees too."""
    return self.markov_w1[...][tokens]
