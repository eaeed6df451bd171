# SPDX-License-Identifier: MIT
"""Mixture of experts: a router sends every row to a few gated MLPs.

  scores  = sigmoid(x W_r)  or  softmax(x W_r)                     in float32
  chosen  = the top_k experts by scores + bias
  weights = scores[chosen]  [/ (sum + 1e-20)]  * scale
  out     = sum_i weights_i mlp_i(x)  [+ mlp_shared(x)]

The bias balances the load (DeepSeek-V3, arXiv 2412.19437, section 2.1.2): it
picks experts and never weighs them, so it has no gradient. A softmax that is
renormalised equals a softmax over the chosen logits alone. The shared expert
sees every row and stands outside weights and scale.

Rows are sorted by expert and multiplied by `jax.lax.ragged_dot`, a matmul whose
row groups have weights of their own: no capacity, no dropped row, work that
follows rows x top_k. Where XLA has no such product (a CPU) it multiplies every
row by every expert, masked.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import errors
from jspec.nn import layers
from jspec.typing import Array, Float, Int

SCORES = ('sigmoid', 'softmax')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoeConfig:
  """Shapes and the router's rule.

  Attributes:
    width: D.
    num_experts: E.
    top_k: X, experts of a row.
    ff_width: F of one expert.
    shared_ff_width: F of the shared expert; 0 for none.
    score: 'sigmoid' or 'softmax'.
    has_bias: whether the selection has a bias.
    renormalise: whether the weights of a row sum to `scale`.
    scale: factor on the weights.
  """

  width: int
  num_experts: int
  top_k: int
  ff_width: int
  shared_ff_width: int = 0
  score: str = 'softmax'
  has_bias: bool = False
  renormalise: bool = True
  scale: float = 1.0

  def __post_init__(self):
    if self.score not in SCORES:
      raise errors.UserError(
        f'score={self.score!r}: expected one of {", ".join(SCORES)}'
      )
    if not 1 <= self.top_k <= self.num_experts:
      raise errors.UserError(
        f'top_k={self.top_k}: expected 1..{self.num_experts} (num_experts)'
      )


class Choice(NamedTuple):
  """The experts of every row and what each one's output counts."""

  experts: Int[Array, '*batch X']
  weights: Float[Array, '*batch X']


def array_shapes(config: MoeConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the arrays of one `Moe`."""
  c = config
  shapes = {
    'router': (c.width, c.num_experts),
    'experts_gate_up': (c.num_experts, c.width, 2 * c.ff_width),
    'experts_down': (c.num_experts, c.ff_width, c.width),
  }
  if c.has_bias:
    shapes['expert_bias'] = (c.num_experts,)
  if c.shared_ff_width:
    shapes['shared_gate_up'] = (c.width, 2 * c.shared_ff_width)
    shapes['shared_down'] = (c.shared_ff_width, c.width)
  return shapes


class Moe(nnx.Module):
  """The layer that stands in for a gated MLP."""

  def __init__(self, config: MoeConfig, arrays: dict[str, Array]):
    """Holds `arrays`, named and shaped as `array_shapes` says."""
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != array_shapes(config):
      wrong = set(shapes.items()) ^ set(array_shapes(config).items())
      raise ValueError(f'arrays do not fit the config: {sorted(wrong)}')
    self.config = config
    self.router = nnx.Param(arrays['router'])
    self.experts_gate_up = nnx.Param(arrays['experts_gate_up'])
    self.experts_down = nnx.Param(arrays['experts_down'])
    self.expert_bias, self.shared_gate_up, self.shared_down = (
      nnx.Param(arrays[name]) if name in arrays else None
      for name in ('expert_bias', 'shared_gate_up', 'shared_down')
    )

  def __call__(self, x: Float[Array, '*batch D']) -> Float[Array, '*batch D']:
    """The mixed output of every row."""
    bias = None if self.expert_bias is None else self.expert_bias[...]
    choice = route(x, self.router[...], self.config, bias)
    out = mix(x, choice, self.experts_gate_up[...], self.experts_down[...])
    if self.shared_gate_up is None:
      return out
    return out + layers.gated_mlp(
      x, self.shared_gate_up[...], self.shared_down[...]
    )


def route(
  x: Float[Array, '*batch D'],
  router: Float[Array, 'D E'],
  config: MoeConfig,
  bias: Float[Array, 'E'] | None = None,
) -> Choice:
  """Chooses the experts of every row; ties go to the lower expert.

  Args:
    x: the rows.
    router: a column for every expert.
    config: the rule.
    bias: added to the scores for the choice alone.
  """
  logits = x.astype(jnp.float32) @ router.astype(jnp.float32)
  if config.score == 'sigmoid':
    scores = jax.nn.sigmoid(logits)
  else:
    scores = jax.nn.softmax(logits, axis=-1)
  ranked = scores if bias is None else scores + bias
  _, experts = jax.lax.top_k(jax.lax.stop_gradient(ranked), config.top_k)
  weights = jnp.take_along_axis(scores, experts, axis=-1)
  if config.renormalise:
    weights /= jnp.sum(weights, axis=-1, keepdims=True) + 1e-20
  return Choice(experts, weights * config.scale)


def mix(
  x: Float[Array, '*batch D'],
  choice: Choice,
  gate_up: Float[Array, 'E D F2'],
  down: Float[Array, 'E F D'],
) -> Float[Array, '*batch D']:
  """Weighted sum of the chosen experts' outputs, sorted by expert.

  Args:
    x: the rows.
    choice: of `route`.
    gate_up: gate and up of every expert, side by side.
    down: the way back.
  """
  top_k = choice.experts.shape[-1]
  expert = choice.experts.reshape(-1)
  order = jnp.argsort(expert)
  sizes = jnp.zeros((gate_up.shape[0],), jnp.int32).at[expert].add(1)
  rows = x.reshape(-1, x.shape[-1])[order // top_k]
  gate, up = jnp.split(jax.lax.ragged_dot(rows, gate_up, sizes), 2, axis=-1)
  out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, sizes)
  # Back in the order of rows by a gather: a scatter would add in any order.
  out = out[jnp.argsort(order)].reshape(*choice.experts.shape, -1)
  weights = choice.weights.astype(out.dtype)
  return jnp.einsum('...XD,...X->...D', out, weights)


def mix_reference(
  x: Float[Array, '*batch D'],
  choice: Choice,
  gate_up: Float[Array, 'E D F2'],
  down: Float[Array, 'E F D'],
) -> Float[Array, '*batch D']:
  """The specification of `mix`: every expert on every row, one by one."""
  total = jnp.zeros_like(x)
  for i in range(gate_up.shape[0]):
    weight = jnp.sum(choice.weights * (choice.experts == i), axis=-1)
    out = layers.gated_mlp(x, gate_up[i], down[i])
    total += weight[..., None].astype(x.dtype) * out
  return total
