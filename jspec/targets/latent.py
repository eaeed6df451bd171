# SPDX-License-Identifier: MIT
"""Multi-head latent attention: keys and values as one short vector a token.

  c_t      = norm(W_c x_t)          [R]   the latent, shared by all heads
  k_t^r    = rope(W_r x_t)          [Hr]  a rotated key, shared by all heads
  q_t      = W_q norm(W_a x_t)            or W_q x_t; of each head [Hn + Hr]
  score    = (q^n . U_k c + q^r . k^r) / sqrt(Hn + Hr)
  out      = U_v sum(weight * c)          of each head [Hv]

(DeepSeek-V2, arXiv 2405.04434, section 2.1.) U_k and U_v of a head are applied
to its query and to its mixed latents instead of to every cached token, which is
the same product in another order. Attention then has one key-value head, with
keys [c, k^r] and values [c, 0]: that is what the cache holds, 2 (R + Hr)
numbers a token and layer (DeepSeek-V3: 1,152) where plain heads would need
2 N (Hn + Hr) (49,152).
"""

import dataclasses

import jax.numpy as jnp

from jspec.nn import layers, qarray, rope, stack, tiles

# Of the norms of latents, whatever the config says of the others.
NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
  """Shapes.

  Attributes:
    q_rank: of the queries' latent; None where queries are made directly.
    kv_rank: R.
    plain_width: Hn.
    rotary_width: Hr.
    value_width: Hv.
  """

  q_rank: int | None
  kv_rank: int
  plain_width: int
  rotary_width: int
  value_width: int

  @property
  def row_width(self) -> int:
    """Numbers of a key in the cache."""
    return self.kv_rank + self.rotary_width


def array_shapes(
  config: LatentConfig, width: int, num_heads: int
) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the arrays that make queries, keys and values."""
  c = config
  columns = num_heads * (c.plain_width + c.rotary_width)
  shapes = {
    'latents': (width, (c.q_rank or 0) + c.row_width),
    'kv_norm': (c.kv_rank,),
    'queries': (c.q_rank or width, columns),
    'kv_up': (num_heads, c.plain_width + c.value_width, c.kv_rank),
  }
  if c.q_rank is not None:
    shapes['q_latent_norm'] = (c.q_rank,)
  return shapes


def heads(config):
  """Returns the function from the residual stream to queries, keys, values.

  See `layer.heads`; there is one key-value head.
  """
  c = config.latent

  def before(layer, x, cos, sin):
    batch = x.shape[:2]
    normed = layers.rms_norm(x, layer.attn_norm[...], config.norm_eps)
    columns = tiles.matmul(normed, layer.latents[...])
    source, columns = jnp.split(columns, [c.q_rank or 0], axis=-1)
    if c.q_rank is None:
      source = normed
    else:
      source = layers.rms_norm(source, layer.q_latent_norm[...], NORM_EPS)
    own, turned = jnp.split(columns, [c.kv_rank], axis=-1)
    own = layers.rms_norm(own, layer.kv_norm[...], NORM_EPS)[:, :, None]
    turned = rope.apply(turned[:, :, None], cos, sin)
    queries = tiles.matmul(source, layer.queries[...])
    queries = queries.reshape(*batch, config.num_heads, -1)
    plain, rotary = jnp.split(queries, [c.plain_width], axis=-1)
    to_keys, scale = qarray.taken_apart(
      layer.kv_up[...][:, : c.plain_width], x.dtype
    )
    if scale is not None:  # [N, Hn, 1]: of what the product sums over here.
      plain = qarray.scaled(plain, scale[..., 0])
    return (
      jnp.concatenate(
        [
          jnp.einsum('BTNH,NHR->BTNR', plain, to_keys),
          rope.apply(rotary, cos, sin),
        ],
        axis=-1,
      ),
      jnp.concatenate([own, turned], axis=-1),
      jnp.concatenate([own, jnp.zeros_like(turned)], axis=-1),
    )

  def run(weights, layer_idx, x, cos, sin):
    return stack.apply(weights, layer_idx, before, x, cos, sin)

  return run


def values(config, layer, mixed):
  """The heads' values [B, T, N Hv], from their mixed rows of the cache."""
  c = config.latent
  rows = mixed.reshape(*mixed.shape[:2], config.num_heads, c.row_width)
  to_values, scale = qarray.taken_apart(
    layer.kv_up[...][:, c.plain_width :], mixed.dtype
  )
  out = jnp.einsum('BTNR,NVR->BTNV', rows[..., : c.kv_rank], to_values)
  if scale is not None:
    out = qarray.scaled(out, scale[..., 0])
  return out.reshape(*mixed.shape[:2], -1)
