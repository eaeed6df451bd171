# SPDX-License-Identifier: MIT
"""The few next tokens worth a node, with their log-probabilities.

Everything that builds trees starts from these: a block drafter has one set for
every depth, an autoregressive one a set for every node that it was run on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int


class Candidates(NamedTuple):
  """Tokens by falling probability.

  Attributes:
    log_probs: natural logarithms under the law of the whole vocabulary, not
      renormalised over the Q kept; never rising along the last axis.
    ids: the tokens, distinct; ids of the target's vocabulary.
  """

  log_probs: Float[Array, '*batch Q']
  ids: Int[Array, '*batch Q']


def top(logits: Float[Array, '*batch V'], count: int) -> Candidates:
  """The `count` most probable columns (fewer if there are fewer).

  Equal ones go by column. A drafter with a vocabulary of its own maps the
  columns to the target's ids afterwards.
  """
  logits = logits.astype(jnp.float32)
  values, columns = jax.lax.top_k(logits, min(count, logits.shape[-1]))
  total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  return Candidates(clean(values - total), columns)


def clean(log_probs: Float[Array, '*any']) -> Float[Array, '*any']:
  """Log-probabilities that are safe to add up and to sort.

  Rounding may lift one above 0, which would rank a child before its parent;
  -0.0 sorts below 0.0; a NaN sorts above all. They become 0, 0 and -inf.
  """
  log_probs = jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)
  return jnp.where(log_probs >= 0, 0.0, log_probs)
