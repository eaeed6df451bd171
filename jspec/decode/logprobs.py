# SPDX-License-Identifier: MIT
"""Log-probabilities of chosen tokens and of the most likely ones.

They are of the law the model itself gives,

  log p = z - max z - log sum exp(z - max z)

before options, temperature and filters: what vLLM reports by default
(`raw_logprobs`). Pass the target's own logits, not adjusted ones.

Logits that are not finite have probability 0, as in `sampling.py`: -inf here.

The largest k are found without a sort of the vocabulary. At least k tokens come
before any token outside the k blocks with the largest maxima (the first block
wins a tie, as the lowest id does), so only those blocks are searched.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jspec.decode import thresholds
from jspec.typing import Array, Float, Int

BLOCK = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Logprobs:
  """Natural logarithms, float32.

  Attributes:
    chosen: of the chosen token; -inf where it has probability 0.
    rank: 1 for the most likely token: one more than there are larger ones, so
      that equals share a rank. 0 where nothing was chosen (-1).
    ids: the most likely tokens, in order; the lowest id wins a tie. -1 where
      fewer have a probability above 0.
    values: of `ids`; -inf where there is none.
  """

  chosen: Float[Array, 'nodes']
  rank: Int[Array, 'nodes']
  ids: Int[Array, 'nodes k']
  values: Float[Array, 'nodes k']


def of(
  logits: Float[Array, 'nodes V'], chosen: Int[Array, 'nodes'], k: int
) -> Logprobs:
  """Looks up the chosen tokens and the k most likely ones.

  Args:
    logits: for the token behind each node (of a path, of a prompt).
    chosen: the token that came; -1 where none did.
    k: how many to list, static; 0 lists none. Compile for the largest that a
      request may ask and cut on the host.
  """
  logits = logits.astype(jnp.float32)
  z = jnp.where(jnp.isfinite(logits), logits, -jnp.inf)
  z = jnp.where(z == 0, 0.0, z)  # top_k would put -0 behind 0
  best = jnp.max(z, axis=1)
  best = jnp.where(best > -jnp.inf, best, 0.0)
  # A row without a law sums to 0; log 1 keeps its -inf from becoming nan.
  mass = thresholds.fixed_sum(jnp.exp(z - best[:, None]))
  log_mass = jnp.log(jnp.where(mass > 0, mass, 1.0))

  at = jnp.maximum(chosen, 0)[:, None]
  own = jnp.take_along_axis(z, at, axis=1, mode='clip')[:, 0]
  is_chosen = chosen >= 0
  num_larger = jnp.sum(z > own[:, None], axis=1, dtype=jnp.int32)
  values, ids = _largest(z, k)
  return Logprobs(
    chosen=jnp.where(is_chosen, own - best - log_mass, -jnp.inf),
    rank=jnp.where(is_chosen, num_larger + 1, 0),
    ids=jnp.where(values > -jnp.inf, ids, -1),
    values=values - best[:, None] - log_mass[:, None],
  )


def _largest(z, k):
  """The k largest values and their ids; -inf behind the last of them."""
  rows, vocab = z.shape
  num_blocks = -(-vocab // BLOCK)
  if num_blocks > k > 0:
    padding = num_blocks * BLOCK - vocab
    blocks = jnp.pad(z, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    blocks = blocks.reshape(rows, num_blocks, BLOCK)
    _, chosen = lax.top_k(jnp.max(blocks, axis=-1), k)
    # In order of id, so that the search prefers low ids among equals.
    chosen = jnp.sort(chosen, axis=1)
    near = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1)
    values, index = lax.top_k(near.reshape(rows, k * BLOCK), k)
    block = jnp.take_along_axis(chosen, index // BLOCK, axis=1)
    return values, block * BLOCK + index % BLOCK
  values, ids = lax.top_k(z, min(k, vocab))
  missing = ((0, 0), (0, k - min(k, vocab)))
  return (
    jnp.pad(values, missing, constant_values=-jnp.inf),
    jnp.pad(ids, missing, constant_values=-1),
  )
