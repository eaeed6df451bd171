# SPDX-License-Identifier: MIT
"""The children of nodes, picked or drawn from the law behind each.

  best                 child r is the (r+1)-th most probable token
  without_replacement  drawn one after the other, each from q without the tokens
                       drawn before, renormalised. The same in one go (Gumbel
                       top-k): sort log q + independent Gumbel noise
  independent          each drawn from q; siblings may be equal

What is sampled is exactly the law returned: the Q candidates at the row's
temperature, renormalised.

At temperature 0, where q is one token, and where float32 rounds all but a few
probabilities to 0, fewer tokens can be drawn without replacement than there are
children. No child is left out, because then one branch of a draft would depend
on the tokens of another. At temperature 0 the rest are the next best tokens;
else they repeat the first child's, which no rule accepts once it was rejected.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jspec.trees import candidates
from jspec.typing import Array, Float, Int, Key

HOW = ('without_replacement', 'independent')
Law = tuple[Int[Array, 'B n Q'], Float[Array, 'B n Q']]  # Tokens, their q.


def children(
  behind: candidates.Candidates,
  node: Int[Array, 'n'] | np.ndarray,
  num_children: int,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  how: str,
) -> tuple[Int[Array, 'B n R'], Law | None]:
  """R children of each node in draw order, and the law they were drawn from.

  Args:
    behind: [B, n, Q], for the token behind each node; Q of at least R.
    node: numbers of the nodes. Noise belongs to a number, whatever the order in
      which nodes are drawn behind.
    num_children: R, at least 1.
    temperature: of every row; None for the best tokens, which have no law.
    keys: of the rows.
    how: one of `HOW`.
  """
  if temperature is None:
    return behind.ids[..., :num_children], None
  is_greedy = (temperature <= 0)[:, None, None]
  probs = _law(behind.log_probs, temperature[:, None, None], is_greedy)
  log_probs = jnp.where(probs > 0, jnp.log(probs), -jnp.inf)
  if how == 'without_replacement':
    noise = _gumbel(keys, node, probs.shape[-1:])
    score, place = jax.lax.top_k(log_probs + noise, num_children)
    is_drawn = (score > -jnp.inf) | is_greedy
    place = jnp.where(is_drawn, place, place[..., :1])
  else:
    noise = _gumbel(keys, node, (num_children, probs.shape[-1]))
    place = jnp.argmax(log_probs[:, :, None] + noise, axis=-1)
  return jnp.take_along_axis(behind.ids, place, axis=-1), (behind.ids, probs)


def _law(log_probs, temperature, is_greedy) -> Float[Array, 'B n Q']:
  """Probabilities at the temperature; a point where 0 or where nothing is."""
  log_probs = candidates.clean(log_probs)
  is_point = is_greedy | (log_probs[..., :1] == -jnp.inf)
  scaled = log_probs / jnp.where(is_greedy, 1.0, temperature)
  first = jnp.arange(log_probs.shape[-1]) == 0
  point = jnp.where(first, 0.0, -jnp.inf)
  return jax.nn.softmax(jnp.where(is_point, point, scaled), axis=-1)


def _gumbel(keys, node, shape) -> Float[Array, 'B n *shape']:
  """Noise for every row and node."""
  draw = functools.partial(jax.random.gumbel, shape=shape, dtype=jnp.float32)

  def of_row(key):
    return jax.vmap(lambda number: draw(jax.random.fold_in(key, number)))(node)

  return jax.vmap(of_row)(keys)
