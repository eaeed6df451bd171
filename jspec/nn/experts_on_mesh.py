# SPDX-License-Identifier: MIT
"""Experts shared out over a mesh axis: a device computes what its own add.

  gather   the rows of all devices of the axis, and what they chose
  own      sum_i weights_i mlp_i(x)  over the chosen experts that lie here
  sum      over the devices of the axis; each keeps its rows

Of n devices one has about 1 / n of what all rows chose, and at worst all of it.
A few rows are computed at once with room for the worst (`experts.mix`): their
time is that of reading weights. Of many rows only those that chose an own
expert are taken, a turn for every even share of them, until none is left: two
turns as a rule, memory and work of an even share, nothing dropped. The gradient
goes through the form with room for the worst.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jspec.nn import experts as experts_lib
from jspec.nn import qarray, stack
from jspec.typing import Array, Float, Int

# Rows times top_k that are computed at once.
MOST_AT_ONCE = 1024
_ROUND_TO = 128


def mix(
  mesh: Mesh,
  axis: str | None,
  x: Float[Array, '*batch D'],
  choice: experts_lib.Choice,
  *experts: qarray.Weight | stack.Row,
  activation: str = 'silu',
  rows: tuple = (),
) -> Float[Array, '*batch D']:
  """`experts.mix` with the experts shared out.

  Args:
    mesh: the devices.
    axis: of the mesh, whose size divides E; None: all experts everywhere.
    x: the rows.
    choice: of `moe.route`.
    *experts: arrays of `experts.mix`, shared out by expert.
    activation: of `experts.mix`.
    rows: axes of the mesh, or tuples of them, that share out the leading axes
      of `x`; (): every device has all rows.
  """
  num_shares = 1 if axis is None else mesh.shape[axis]
  size = experts[0].shape[0] // num_shares
  of_first = rows[0] if rows and rows[0] else ()
  is_gathered = axis is not None and axis in of_first

  def local(x, choice, *experts):
    if axis is None:
      return experts_lib.mix(x, choice, *experts, activation=activation)
    if is_gathered:
      x, choice = jax.tree.map(
        lambda part: jax.lax.all_gather(part, axis, axis=0, tiled=True),
        (x, choice),
      )
    mine = choice.experts - jax.lax.axis_index(axis) * size
    is_mine = (mine >= 0) & (mine < size)
    # The rows of others lie behind the last group.
    found = experts_lib.Choice(jnp.where(is_mine, mine, size), choice.weights)
    if choice.experts.size > MOST_AT_ONCE:
      share = -(-choice.experts.size // num_shares)
      share += -share % _ROUND_TO
      out = _own(activation, share, x, found, *experts)
    else:
      out = experts_lib.mix(
        x, found, *experts, activation=activation, is_part=True
      )
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _own(activation, share, x, choice, *experts):
  """What own experts add, by turns over `share` of the rows that chose one."""
  top_k = choice.experts.shape[-1]
  rows = x.reshape(-1, x.shape[-1])
  expert = choice.experts.reshape(-1)
  weights = choice.weights.reshape(-1)
  num_own = experts[0].shape[0]
  counts = jnp.zeros((num_own,), jnp.int32).at[expert].add(1, mode='drop')
  ends = jnp.cumsum(counts)
  # Own ones first; a last turn may reach beyond the end.
  order = jnp.pad(jnp.argsort(expert), (0, share))
  is_own = (choice.experts < num_own).astype(jnp.int32)
  # How many own experts of the row come before.
  rank = (jnp.cumsum(is_own, axis=-1) - is_own).reshape(-1)
  num_ranks = jnp.max(jnp.sum(is_own, axis=-1))

  def turn(state):
    begin, out = state
    chosen = jax.lax.dynamic_slice(order, (begin,), (share,))
    row = chosen // top_k
    found = experts_lib.mlps(
      rows[row],
      _within(begin, share, ends - counts, ends),
      expert[chosen],
      *experts,
      activation=activation,
    )
    is_there = begin + jnp.arange(share) < ends[-1]
    found = jnp.where(is_there[:, None], found, 0).astype(jnp.float32)
    found *= weights[chosen].astype(jnp.float32)[:, None]

    # A row is added to once at a time: the sum has one order.
    def add(number, out):
      is_now = is_there & (rank[chosen] == number)
      nowhere = rows.shape[0] + jnp.arange(share)
      at = jnp.where(is_now, row, nowhere)
      return out.at[at].add(found, mode='drop', unique_indices=True)

    return begin + share, jax.lax.fori_loop(0, num_ranks, add, out)

  _, out = jax.lax.while_loop(
    lambda state: state[0] < ends[-1],
    turn,
    (jnp.int32(0), jnp.zeros(rows.shape, jnp.float32)),
  )
  return out.astype(x.dtype).reshape(x.shape)


def _within(
  begin: Int[Array, ''],
  length: int,
  starts: Int[Array, 'E'],
  ends: Int[Array, 'E'],
) -> Int[Array, 'E']:
  """Rows of every expert among the `length` from `begin` on."""
  first, last = (jnp.clip(x - begin, 0, length) for x in (starts, ends))
  return last - first


def _own_forward(activation, share, x, choice, *experts):
  return _own(activation, share, x, choice, *experts), (x, choice, experts)


def _own_backward(activation, share, kept, gradient):
  del share
  x, choice, experts = kept
  _, back = jax.vjp(
    functools.partial(experts_lib.mix, activation=activation, is_part=True),
    x,
    choice,
    *experts,
  )
  return back(gradient)


_own.defvjp(_own_forward, _own_backward)
