# SPDX-License-Identifier: MIT
"""Hidden correction: a slot's state corrected by the token before it (DFly).

  u  = [norm_h(h); norm_e(e)]          e the embedding of the token before
  h' = h + W_down(silu(W_gate u) * W_up u)

W_down starts at 0, so h' starts as h. In training the token before is the true
one; in decoding the drafted one, so slots go one by one, but only through this
and the LM head: the backbone has run once (arXiv 2607.25852).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.nn import layers
from jspec.typing import Array, Float, Key


class Correction(nnx.Module):
  """The correction's parameters; implements `token_head.TokenHead`."""

  def __init__(
    self, width: int, inner_width: int, norm_eps: float, key: Key[Array, '']
  ):
    self.norm_eps = norm_eps
    self.hidden_norm = nnx.Param(jnp.ones((width,)))
    self.embed_norm = nnx.Param(jnp.ones((width,)))
    shape = (2 * width, 2 * inner_width)
    self.gate_up = nnx.Param(0.02 * jax.random.normal(key, shape))
    self.down = nnx.Param(jnp.zeros((inner_width, width)))

  def start(self, hidden: Float[Array, '*batch D']) -> None:
    """Carries nothing from slot to slot."""
    del hidden

  def states(
    self,
    hidden: Float[Array, '*batch D'],
    embedded: Float[Array, '*batch D'],
    tokens: Array,
    carry: None,
  ) -> tuple[Float[Array, '*batch D'], None]:
    """Corrects the states by the embeddings of the tokens before."""
    del tokens, carry
    normed = jnp.concatenate(
      [
        layers.rms_norm(hidden, self.hidden_norm[...], self.norm_eps),
        layers.rms_norm(embedded, self.embed_norm[...], self.norm_eps),
      ],
      axis=-1,
    )
    added = layers.gated_mlp(normed, self.gate_up[...], self.down[...])
    return hidden + added, None

  def matrix(self, head: Float[Array, 'D V']) -> Float[Array, 'D V']:
    """What the states are multiplied by to give logits."""
    return head

  def base(self, hidden: Array, head: Array) -> None:
    """No part of the logits is known before the token is."""
    del hidden, head

  def logits(
    self,
    states: Float[Array, '*batch D'],
    base: None,
    head: Float[Array, 'D V'],
  ) -> Float[Array, '*batch V']:
    """Logits of corrected states."""
    del base
    return states @ head
