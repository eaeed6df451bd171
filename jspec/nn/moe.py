# SPDX-License-Identifier: MIT
"""Mixture of experts: a router sends every row to a few gated MLPs.

  scores  = sigmoid(x W_r)  or  softmax(x W_r)                     in float32
  chosen  = the top_k experts by scores + bias
            of the top_groups best groups, where experts form groups
  weights = scores[chosen]  [/ (sum + 1e-20)]  * scale
  out     = sum_i weights_i mlp_i(x)  [+ mlp_shared(x)]

The bias balances the load (DeepSeek-V3, arXiv 2412.19437, section 2.1.2): it
picks experts and never weighs them, so it has no gradient. A softmax that is
renormalised equals a softmax over the chosen logits alone. The shared expert
sees every row and stands outside weights and scale.

Nothing is dropped, and work follows rows x top_k (`nn.experts`); on a mesh
every device has experts of its own (`nn.experts_on_mesh`).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import errors
from jspec.nn import experts as experts_lib
from jspec.nn import experts_on_mesh, layers, qarray, spread, stack
from jspec.typing import Array, Float

SCORES = ('sigmoid', 'softmax')
# Matrices that `nn.tiles` must leave as they are.
_BIASES = ('experts_gate_up_bias', 'experts_down_bias')
_OPTIONAL = ('expert_bias', 'shared_gate_up', 'shared_down', 'router_bias')
_OPTIONAL += _BIASES
NOT_IN_TILES = ('router', *_BIASES)


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
    has_biases: whether router and experts have biases, as linear layers have.
    activation: of the experts, a key of `nn.layers.GATES`.
    renormalise: whether the weights of a row sum to `scale`.
    scale: factor on the weights.
    num_groups: groups of experts, side by side; 1 for none.
    top_groups: groups of a row, by the sum of their two best scores (with the
      bias); experts of others are never taken.
  """

  width: int
  num_experts: int
  top_k: int
  ff_width: int
  shared_ff_width: int = 0
  score: str = 'softmax'
  has_bias: bool = False
  has_biases: bool = False
  activation: str = 'silu'
  renormalise: bool = True
  scale: float = 1.0
  num_groups: int = 1
  top_groups: int = 1

  def __post_init__(self):
    if self.score not in SCORES:
      raise errors.UserError(
        f'score={self.score!r}: expected one of {", ".join(SCORES)}'
      )
    if not 1 <= self.top_k <= self.num_experts:
      raise errors.UserError(
        f'top_k={self.top_k}: expected 1..{self.num_experts} (num_experts)'
      )
    size = self.num_experts // self.num_groups
    if size * self.num_groups != self.num_experts or (
      self.num_groups > 1 and size < 2
    ):
      raise errors.UserError(
        f'num_groups={self.num_groups}: {self.num_experts} experts do not form'
        ' so many equal groups of two or more'
      )
    if not 1 <= self.top_groups <= self.num_groups:
      raise errors.UserError(
        f'top_groups={self.top_groups}: expected 1..{self.num_groups}'
        ' (num_groups)'
      )
    if self.top_k > self.top_groups * size:
      raise errors.UserError(
        f'top_k={self.top_k}: {self.top_groups} groups have'
        f' {self.top_groups * size} experts'
      )


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
  if c.has_biases:
    shapes['router_bias'] = (c.num_experts,)
    shapes['experts_gate_up_bias'] = (c.num_experts, 2 * c.ff_width)
    shapes['experts_down_bias'] = (c.num_experts, c.width)
  if c.shared_ff_width:
    shapes['shared_gate_up'] = (c.width, 2 * c.shared_ff_width)
    shapes['shared_down'] = (c.shared_ff_width, c.width)
  return shapes


class Moe(nnx.Module):
  """The layer that stands in for a gated MLP."""

  def __init__(self, config: MoeConfig, arrays: dict[str, qarray.Weight]):
    """Holds `arrays`, named and shaped as `array_shapes` says.

    Those of several layers may be stacked on a leading axis.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    wanted = array_shapes(config)
    stacked = {name: (*shapes['router'][:-2], *s) for name, s in wanted.items()}
    if shapes != stacked:
      wrong = set(shapes.items()) ^ set(stacked.items())
      raise ValueError(f'arrays do not fit the config: {sorted(wrong)}')
    self.config = config
    # Of a mixture on a mesh; `targets.sharding` changes them.
    self.num_shards, self.mesh, self.axis = 1, None, None
    self.router = nnx.Param(arrays['router'])
    self.experts_gate_up = stack.Whole(arrays['experts_gate_up'])
    self.experts_down = stack.Whole(arrays['experts_down'])
    for name in _OPTIONAL:
      setattr(self, name, nnx.Param(arrays[name]) if name in arrays else None)

  def __call__(self, x: Float[Array, '*batch D']) -> Float[Array, '*batch D']:
    """The mixed output of every row."""
    config = self.config
    bias = None if self.expert_bias is None else self.expert_bias[...]
    shift = None if self.router_bias is None else self.router_bias[...]
    choice = route(x, self.router[...], config, bias, shift)
    experts = [self.experts_gate_up.get_value(), self.experts_down.get_value()]
    if config.has_biases:
      experts += [getattr(self, name)[...] for name in _BIASES]
    mix, found = experts_lib.mix, spread.now()
    if found is not None:
      axis = found.shared(found.experts, config.num_experts)
      rows = found.batch(x.shape[:-1])
      mix = functools.partial(experts_on_mesh.mix, found.mesh, axis, rows=rows)
    elif self.mesh is not None:
      mix = functools.partial(experts_on_mesh.mix, self.mesh, self.axis)
    out = mix(x, choice, *experts, activation=config.activation)
    if self.shared_gate_up is None:
      return out
    return out + layers.gated_mlp(
      x, self.shared_gate_up[...], self.shared_down[...], self.num_shards
    )


def route(
  x: Float[Array, '*batch D'],
  router: Float[Array, 'D E'],
  config: MoeConfig,
  bias: Float[Array, 'E'] | None = None,
  shift: Float[Array, 'E'] | None = None,
) -> experts_lib.Choice:
  """Chooses the experts of every row; ties go to the lower expert.

  Args:
    x: the rows.
    router: a column for every expert.
    config: the rule.
    bias: added to the scores for the choice alone.
    shift: added to the logits.
  """
  logits = x.astype(jnp.float32) @ router.astype(jnp.float32)
  if shift is not None:
    logits += shift
  if config.score == 'sigmoid':
    scores = jax.nn.sigmoid(logits)
  else:
    scores = jax.nn.softmax(logits, axis=-1)
  ranked = scores if bias is None else scores + bias
  if config.num_groups > 1:
    ranked = _in_best_groups(ranked, config)
  _, experts = jax.lax.top_k(jax.lax.stop_gradient(ranked), config.top_k)
  weights = jnp.take_along_axis(scores, experts, axis=-1)
  if config.renormalise:
    weights /= jnp.sum(weights, axis=-1, keepdims=True) + 1e-20
  return experts_lib.Choice(experts, weights * config.scale)


def _in_best_groups(ranked, config):
  """The scores with those of other groups out of reach."""
  by_group = ranked.reshape(*ranked.shape[:-1], config.num_groups, -1)
  best, _ = jax.lax.top_k(by_group, 2)
  _, groups = jax.lax.top_k(jnp.sum(best, axis=-1), config.top_groups)
  is_taken = jnp.any(
    groups[..., None] == jnp.arange(config.num_groups), axis=-2
  )
  kept = jnp.where(is_taken[..., None], by_group, -jnp.inf)
  return kept.reshape(ranked.shape)
