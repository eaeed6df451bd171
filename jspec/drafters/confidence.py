# SPDX-License-Identifier: MIT
"""The confidence head: how likely a draft is accepted if those before are.

  c_k = sigmoid(w [h_k; W_1[token before]] + b),    target 1 - TV(p_k, q_k)

which is exactly what rejection sampling accepts (arXiv 2607.05147, section
3.1). It looks at no drawn token of slot k or later, so depth decided by it
anticipates nothing. By default its input has no gradient: a confidence loss
that reaches the backbone trades drafts for knowing how bad they are.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.typing import Array, Float, Key


class Confidence(nnx.Module):
  """A linear map to one logit."""

  def __init__(self, width: int, key: Key[Array, '']):
    self.proj = nnx.Param(0.02 * jax.random.normal(key, (width, 1)))
    self.bias = nnx.Param(jnp.zeros((1,)))

  def __call__(
    self, hidden: Float[Array, '*batch D'], extra: Array | None
  ) -> Float[Array, '*batch']:
    """Logits; `extra` [*batch r] is what else the head was built to see."""
    seen = hidden
    if extra is not None:
      seen = jnp.concatenate([hidden, extra], axis=-1)
    return (seen @ self.proj[...])[..., 0] + self.bias[...]
