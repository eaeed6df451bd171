# SPDX-License-Identifier: MIT
"""What draws leave of a target law, kept on the support of the draft law.

Rules with sampled drafts hold two laws at a node v: P, first the target's law
p, and Q, the law the next child is drawn from. When a drawn token x is turned
down,

  d = [alpha P - Q]_+ ,  S = sum d ,  P <- d / S ,
  Q(x) <- 0, renormalised, if siblings are drawn without replacement

with alpha = 1 in recursive rejection. Outside the support of q (Q entries), Q
stays 0 and P stays a multiple of p: two numbers stand for the vocabulary there,
so a vocabulary row is read when a node is opened and when the last token is
drawn, and never in between.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.decode import thresholds
from jspec.typing import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residual:
  """P and Q of one node in every row.

  Attributes:
    ids: the support of q.
    p: P there; 0 at padding.
    q: Q there; 0 at padding.
    outside: the mass of P elsewhere.
    scale: P elsewhere is p times this.
    is_inside: the entries that are no padding.
  """

  ids: Int[Array, '*B Q']
  p: Float[Array, '*B Q']
  q: Float[Array, '*B Q']
  outside: Float[Array, '*B']
  scale: Float[Array, '*B']
  is_inside: Bool[Array, '*B Q']


def start(
  p: Float[Array, 'B V'], ids: Int[Array, 'B Q'], probs: Float[Array, 'B Q']
) -> Residual:
  """Before any draw: P is the target's law, Q the draft's."""
  is_inside = probs > 0
  inside = jnp.take_along_axis(p, ids, axis=1, mode='clip')
  rest = p.at[_rows(p), _columns(p, ids, is_inside)].set(0.0, mode='drop')
  return Residual(
    ids=ids,
    p=jnp.where(is_inside, inside, 0.0),
    q=jnp.where(is_inside, probs, 0.0),
    outside=thresholds.fixed_sum(rest),
    scale=jnp.ones_like(p[:, 0]),
    is_inside=is_inside,
  )


def blank(num_rows: int, support: int) -> Residual:
  """Where nothing is drawn: P is the target's law, Q is empty."""
  nothing = jnp.zeros((num_rows, support), jnp.float32)
  ones = jnp.ones((num_rows,), jnp.float32)
  return Residual(
    ids=nothing.astype(jnp.int32),
    p=nothing,
    q=nothing,
    outside=ones,
    scale=ones,
    is_inside=nothing > 0,
  )


def where(condition: Bool[Array, 'B'], a: Residual, b: Residual) -> Residual:
  """Chooses row by row."""

  def choose(x, y):
    return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

  return jax.tree.map(choose, a, b)


def ratio(r: Residual, token: Int[Array, 'B']) -> Float[Array, 'B']:
  """P / Q of a drawn token; 0 for one that could not have been drawn."""
  p, q = _at(r, token)
  quotient = jnp.where(q > 0, p / jnp.where(q > 0, q, 1.0), 0.0)
  return jnp.minimum(quotient, jnp.finfo(jnp.float32).max)  # 0 inf is nan


def left_mass(r: Residual, alpha: Float[Array, 'B']) -> Float[Array, 'B']:
  """S, the mass of [alpha P - Q]_+."""
  return jnp.sum(_left(r, alpha), axis=-1) + alpha * r.outside


def turn_down(
  r: Residual, token: Int[Array, 'B'], alpha: Float[Array, 'B'], draws: str
) -> tuple[Residual, Float[Array, 'B']]:
  """P and Q after a drawn token was turned down, and the next alpha.

  alpha = 1 stays 1 (`next_alpha`). Where P = Q, S is 0, a token is turned down
  by rounding alone, and P stays. Nothing changes where no token was drawn: it
  has no chance in Q, or P is no law.
  """
  is_draw = is_drawn(r, token)
  left, total = _left(r, alpha), left_mass(r, alpha)
  is_left = is_draw & (total > 0)
  divisor = jnp.where(is_left, total, 1.0)
  q = r.q
  if draws == 'without_replacement':
    q = jnp.where(r.ids == token[:, None], 0.0, q)
    rest = jnp.sum(q, axis=-1, keepdims=True)
    q = q / jnp.where(rest > 0, rest, 1.0)
  # Where nothing lies outside, the factor means nothing and might overflow.
  scale = jnp.where(r.outside > 0, alpha * r.scale / divisor, 0.0)
  new = dataclasses.replace(
    r,
    p=jnp.where(is_left[:, None], left / divisor[:, None], r.p),
    q=jnp.where(is_draw[:, None], q, r.q),
    outside=jnp.where(is_left, alpha * r.outside / divisor, r.outside),
    scale=jnp.where(is_left, scale, r.scale),
  )
  return new, jnp.where(is_draw, next_alpha(total, alpha), alpha)


def next_alpha(
  total: Float[Array, 'B'], alpha: Float[Array, 'B']
) -> Float[Array, 'B']:
  """S / (S + 1 - alpha); 1 where that is 0 / 0, which takes alpha = 1."""
  denominator = total + (1.0 - alpha)
  is_sure = denominator <= 0
  return jnp.where(is_sure, 1.0, total / jnp.where(is_sure, 1.0, denominator))


def is_drawn(r: Residual, token: Int[Array, 'B']) -> Bool[Array, 'B']:
  """Whether a token can have been drawn from Q, and P is a law to test it by.

  P is none where no logit is finite.
  """
  _, q = _at(r, token)
  return (q > 0) & (jnp.sum(r.p, axis=-1) + r.outside > 0)


def weights(p: Float[Array, 'B V'], r: Residual) -> Float[Array, 'B V']:
  """P over the vocabulary, from the target's law p it began with."""
  columns = _columns(p, r.ids, r.is_inside)
  w = (p * r.scale[:, None]).at[_rows(p), columns].set(r.p, mode='drop')
  is_empty = jnp.max(w, axis=-1, keepdims=True) <= 0
  return jnp.where(is_empty, p, w)


def _left(r, alpha):
  return jnp.maximum(alpha[:, None] * r.p - r.q, 0.0)


def _at(r, token):
  is_token = r.is_inside & (r.ids == token[:, None])
  pick = [jnp.sum(jnp.where(is_token, x, 0.0), axis=-1) for x in (r.p, r.q)]
  return pick[0], pick[1]


def _rows(p):
  return jnp.arange(p.shape[0])[:, None]


def _columns(p, ids, is_inside):
  """Where the support lies in the vocabulary; padding lies behind it."""
  return jnp.where(is_inside, ids, p.shape[1])
