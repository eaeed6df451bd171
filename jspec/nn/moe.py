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

Rows are sorted by expert and multiplied by `jax.lax.ragged_dot`, a matmul whose
row groups have weights of their own: no capacity, no dropped row, work that
follows rows x top_k. Where XLA has no such product (a CPU) it multiplies every
row by every expert, masked. In a loop over layers on a TPU the groups are those
of all layers, empty but for one layer's, so that no layer's experts are copied
out of the stack first (`nn.stack.Row`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from jspec import errors
from jspec.nn import layers, qarray, spread, stack
from jspec.typing import Array, Float, Int

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
    run = functools.partial(mix, activation=config.activation)
    found = spread.now()
    if found is not None:
      axis = found.shared(found.experts, config.num_experts)
      rows = found.batch(x.shape[:-1])
      run = functools.partial(on_mesh, run, found.mesh, axis, rows=rows)
    elif self.mesh is not None:
      run = functools.partial(on_mesh, run, self.mesh, self.axis)
    out = run(x, choice, *experts)
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
) -> Choice:
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
  return Choice(experts, weights * config.scale)


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


def mix(
  x: Float[Array, '*batch D'],
  choice: Choice,
  gate_up: Float[Array, 'E D F2'] | qarray.QArray | stack.Row,
  down: Float[Array, 'E F D'] | qarray.QArray | stack.Row,
  gate_up_bias: Float[Array, 'E F2'] | None = None,
  down_bias: Float[Array, 'E D'] | None = None,
  *,
  activation: str = 'silu',
  is_part: bool = False,
) -> Float[Array, '*batch D']:
  """Weighted sum of the chosen experts' outputs, sorted by expert.

  Args:
    x: the rows.
    choice: of `route`; rows of an expert E, which is not there, count nothing.
    gate_up: gate and up of every expert, side by side.
    down: the way back.
    gate_up_bias: added to the columns of gate and up; None for none.
    down_bias: added to what an expert gives.
    activation: a key of `layers.GATES`.
    is_part: some rows are of experts that are not there.
  """
  top_k = choice.experts.shape[-1]
  expert = choice.experts.reshape(-1)
  is_here = expert < gate_up.shape[0]
  order = jnp.argsort(expert)
  sizes = jnp.zeros((gate_up.shape[0],), jnp.int32)
  sizes = sizes.at[expert].add(1, mode='drop')
  rows = x.reshape(-1, x.shape[-1])[order // top_k]
  if is_part:
    # Behind the last group the gradient may be anything, too.
    rows = jnp.where(is_here[order][:, None], rows, 0)
  columns = _by_expert(rows, gate_up, sizes, expert[order])
  if gate_up_bias is not None:
    columns += gate_up_bias[expert[order]]
  gate, up = jnp.split(columns, 2, axis=-1)
  gated = layers.GATES[activation](gate, up)
  out = _by_expert(gated, down, sizes, expert[order])
  if down_bias is not None:
    out += down_bias[expert[order]]
  # Back in the order of rows by a gather: a scatter would add in any order.
  # Behind the last group there may be anything.
  out = jnp.where(is_here[:, None], out[jnp.argsort(order)], 0)
  out = out.reshape(*choice.experts.shape, -1)
  weights = choice.weights.astype(out.dtype)
  return jnp.einsum('...XD,...X->...D', out, weights)


def _by_expert(rows, weight, sizes, expert):
  """Rows, sorted by expert, times the matrix of theirs."""
  scale = None
  if isinstance(weight, stack.Row):
    num_layers, num_experts, *matrix = weight.stacked.shape
    start = (weight.index * num_experts,)
    every = jnp.zeros((num_layers * num_experts,), sizes.dtype)
    sizes = jax.lax.dynamic_update_slice(every, sizes, start)
    weight = weight.stacked.reshape(-1, *matrix)
  else:
    weight, scale = qarray.taken_apart(weight, rows.dtype)
  # Products of bfloat16 are exact in any precision; where 'highest' is asked
  # for, XLA's kernel for TPUs does not compile for them (libtpu 0.0.42).
  precision = jax.lax.Precision.DEFAULT if rows.dtype == jnp.bfloat16 else None
  out = jax.lax.ragged_dot(rows, weight, sizes, precision=precision)
  return qarray.scaled(out, None if scale is None else scale[expert, 0])


def on_mesh(
  run: Callable[..., Array],
  mesh: Mesh,
  axis: str | None,
  x: Float[Array, '*batch D'],
  choice: Choice,
  *experts: qarray.Weight | stack.Row,
  rows: tuple = (),
) -> Float[Array, '*batch D']:
  """`mix` with the experts shared out over a mesh axis.

  Every device computes what its own experts add to the rows it sees, and one
  sum over the devices ends the layer, as behind an MLP that is shared out by F.
  It sees the rows that all devices of the axis have: they are gathered first if
  the axis shares out rows too, and each device gets the sums of its own.

  Args:
    run: `mix`.
    mesh: the devices.
    axis: of the mesh, whose size divides E; None: all experts everywhere.
    x: the rows.
    choice: of `route`.
    *experts: arrays of `mix`, shared out by expert.
    rows: axes of the mesh, or tuples of them, that share out the leading axes
      of `x`; (): every device has all rows.
  """
  num_experts = experts[0].shape[0]
  size = num_experts // (1 if axis is None else mesh.shape[axis])
  of_first = rows[0] if rows and rows[0] else ()
  is_gathered = axis is not None and axis in of_first

  def local(x, choice, *experts):
    if axis is None:
      return run(x, choice, *experts)
    if is_gathered:
      x, choice = jax.tree.map(
        lambda part: jax.lax.all_gather(part, axis, axis=0, tiled=True),
        (x, choice),
      )
    mine = choice.experts - jax.lax.axis_index(axis) * size
    is_mine = (mine >= 0) & (mine < size)
    # The rows of others lie behind the last group.
    found = Choice(jnp.where(is_mine, mine, size), choice.weights)
    out = run(x, found, *experts, is_part=True)
    if is_gathered:
      return jax.lax.psum_scatter(out, axis, scatter_dimension=0, tiled=True)
    return jax.lax.psum(out, axis)

  def lies(weight):
    if isinstance(weight, stack.Row):
      return stack.Row(PartitionSpec(None, axis), PartitionSpec())
    return PartitionSpec(axis)

  batch = PartitionSpec(*rows)
  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(batch, batch, *map(lies, experts)),
    out_specs=batch,
    check_vma=False,
  )(x, choice, *experts)


def mix_reference(
  x: Float[Array, '*batch D'],
  choice: Choice,
  gate_up: Float[Array, 'E D F2'],
  down: Float[Array, 'E F D'],
  gate_up_bias: Float[Array, 'E F2'] | None = None,
  down_bias: Float[Array, 'E D'] | None = None,
  *,
  activation: str = 'silu',
) -> Float[Array, '*batch D']:
  """The specification of `mix`: every expert on every row, one by one."""
  total = jnp.zeros_like(x)
  for i in range(gate_up.shape[0]):
    weight = jnp.sum(choice.weights * (choice.experts == i), axis=-1)
    columns = x @ gate_up[i]
    if gate_up_bias is not None:
      columns += gate_up_bias[i]
    out = layers.GATES[activation](*jnp.split(columns, 2, axis=-1)) @ down[i]
    if down_bias is not None:
      out += down_bias[i]
    total += weight[..., None].astype(x.dtype) * out
  return total
