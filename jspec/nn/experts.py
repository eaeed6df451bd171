# SPDX-License-Identifier: MIT
"""What chosen experts give: rows sorted by expert, and their outputs mixed.

  out = sum_i weights_i mlp_i(x)

Rows are multiplied by `jax.lax.ragged_dot`, a matmul whose row groups have
weights of their own: no capacity, no dropped row, work that follows rows x
top_k. Where XLA has no such product (a CPU) a loop over blocks of rows does it
(`nn.experts_on_cpu`). In a loop over layers on a TPU the groups are those of
all layers, empty but for one layer's, so that no layer's experts are copied out
of the stack first (`nn.stack.Row`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec.kernels import choose
from jspec.nn import experts_on_cpu, layers, qarray, stack
from jspec.typing import Array, Float, Int


class Choice(NamedTuple):
  """The experts of every row and what each one's output counts."""

  experts: Int[Array, '*batch X']
  weights: Float[Array, '*batch X']


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
  out = mlps(
    rows,
    sizes,
    expert[order],
    gate_up,
    down,
    gate_up_bias,
    down_bias,
    activation=activation,
  )
  # Back in the order of rows by a gather: a scatter would add in any order.
  # Behind the last group there may be anything.
  out = jnp.where(is_here[:, None], out[jnp.argsort(order)], 0)
  out = out.reshape(*choice.experts.shape, -1)
  weights = choice.weights.astype(out.dtype)
  return jnp.einsum('...XD,...X->...D', out, weights)


def mlps(
  rows: Float[Array, 'M D'],
  sizes: Int[Array, 'E'],
  expert: Int[Array, 'M'],
  gate_up: Float[Array, 'E D F2'] | qarray.QArray | stack.Row,
  down: Float[Array, 'E F D'] | qarray.QArray | stack.Row,
  gate_up_bias: Float[Array, 'E F2'] | None = None,
  down_bias: Float[Array, 'E D'] | None = None,
  *,
  activation: str = 'silu',
) -> Float[Array, 'M D']:
  """What its expert gives of every row.

  Args:
    rows: sorted by expert.
    sizes: rows of every expert; behind them there may be anything.
    expert: of every row.
    gate_up: of `mix`, as what follows.
    down: of `mix`.
    gate_up_bias: of `mix`.
    down_bias: of `mix`.
    activation: of `mix`.
  """
  columns = _by_expert(rows, gate_up, sizes, expert)
  if gate_up_bias is not None:
    columns += gate_up_bias[expert]
  gate, up = jnp.split(columns, 2, axis=-1)
  out = _by_expert(layers.GATES[activation](gate, up), down, sizes, expert)
  return out if down_bias is None else out + down_bias[expert]


def _by_expert(rows, weight, sizes, expert):
  """Rows, sorted by expert, times the matrix of theirs."""
  scale = None
  if isinstance(weight, stack.Row):
    num_layers, num_experts, *matrix = weight.stacked.shape
    start = (weight.index * num_experts,)
    every = jnp.zeros((num_layers * num_experts,), sizes.dtype)
    sizes = jax.lax.dynamic_update_slice(every, sizes, start)
    weight = weight.stacked.reshape(-1, *matrix)
  elif isinstance(weight, qarray.QArray):
    weight, scale = weight.values, weight.scale
  if choose.machine()[0] == 'cpu':
    out = experts_on_cpu.ragged_dot(rows, weight, sizes)
  else:
    weight = weight if scale is None else weight.astype(rows.dtype)
    out = _on_accelerator(rows, weight, sizes)
  return qarray.scaled(out, None if scale is None else scale[expert, 0])


def _on_accelerator(rows, weight, sizes):
  # Products of bfloat16 are exact in any precision; where 'highest' is asked
  # for, XLA's kernel for TPUs does not compile for them (libtpu 0.0.42).
  precision = jax.lax.Precision.DEFAULT if rows.dtype == jnp.bfloat16 else None
  return jax.lax.ragged_dot(rows, weight, sizes, precision=precision)


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
