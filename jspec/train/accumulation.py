# SPDX-License-Identifier: MIT
"""The gradient of a batch that goes through in portions, as of the whole.

  1.  weight_i = sum_m weight_im                      over the portions m
  2.  loss = sum_m sum_i value_im weight_im / weight_i,  and its gradient

(`jspec.drafters.parts`). Only one portion's activations exist at a time. What
the weights do not depend on is not computed in pass 1: mostly that is both
networks, as weights come from masks; D-PACE's take the drafter's forward.

A portion takes every n-th row, so that it lies on all devices as the batch
does. It draws its own anchors.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.drafters import parts as parts_lib
from jspec.typing import Array, Float, Key, PyTree

# Loss and metrics of a batch under parameters and a key.
Loss = Callable[..., tuple[Float[Array, ''], dict[str, Array]]]


def value_and_grad(
  loss_of: Loss,
  num_portions: int,
  params: dict[str, Array],
  batch: dict[str, Array],
  key: Key[Array, ''],
) -> tuple[Float[Array, ''], dict[str, Array], PyTree]:
  """Loss, metrics and gradient of a batch.

  Args:
    loss_of: `loss_of(params, batch, key)`.
    num_portions: 1 is the plain gradient, without a second pass.
    params: what the gradient is by.
    batch: arrays of rows, a multiple of the portions.
    key: of the draws.

  Raises:
    UserError: the loss does not tell its parts.
  """
  if num_portions == 1:
    (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(
      params, batch, key
    )
    return loss, parts_lib.take(metrics)[0], grads
  inputs = (portions(batch, num_portions), jax.random.split(key, num_portions))
  weights = total_weights(loss_of, params, inputs)

  def share_of(params, portion):
    metrics, values, own = parts_lib.take(loss_of(params, *portion)[1])
    total = sum(
      jnp.sum(value * own[name] / jnp.maximum(weights[name], 1e-6))
      for name, value in values.items()
    )
    return total, metrics

  def add(carry, portion):
    found, grads = jax.value_and_grad(share_of, has_aux=True)(params, portion)
    return jax.tree.map(jnp.add, carry, grads), found

  zeros = jax.tree.map(jnp.zeros_like, params)
  grads, (shares, metrics) = jax.lax.scan(add, zeros, inputs)
  return jnp.sum(shares), join(metrics), grads


def total_weights(
  loss_of: Loss,
  params: dict[str, Array],
  inputs: tuple[dict[str, Array], Key[Array, 'M']],
) -> dict[str, Array]:
  """The weight of every part, over portions of a batch and their keys."""

  def weights_of(carry, portion):
    _, values, weights = parts_lib.take(loss_of(params, *portion)[1])
    if not values:
      raise errors.UserError(
        'this loss is no sum of means, so portions of a batch do not add up to'
        ' it: set optim.num_micro_batches to 1'
      )
    return carry, weights

  _, weights = jax.lax.scan(weights_of, (), inputs)
  return jax.tree.map(lambda x: jnp.sum(x, axis=0), weights)


def portions(batch: dict[str, Array], num_portions: int) -> dict[str, Array]:
  """Arrays [B, ...] as [M, B / M, ...]: row b goes to portion b mod M."""

  def cut(x):
    rows = x.reshape(x.shape[0] // num_portions, num_portions, *x.shape[1:])
    return jnp.moveaxis(rows, 1, 0)

  return jax.tree.map(cut, batch)


def join(metrics: dict[str, Any]) -> dict[str, Any]:
  """Metrics of the whole from those of the portions, stacked.

  Counts and weights are added, the rest is averaged by the number of blocks.
  """
  blocks = metrics.get('num_blocks')

  def of(name, value):
    if name.startswith('num_') or name.endswith('weight'):
      return jnp.sum(value, axis=0)
    if blocks is None:
      return jnp.mean(value, axis=0)
    shares = blocks / jnp.maximum(jnp.sum(blocks), 1)
    return jnp.tensordot(shares, value, axes=1)

  return {name: of(name, value) for name, value in metrics.items()}
