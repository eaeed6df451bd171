# SPDX-License-Identifier: MIT
"""A new MTP drafter that begins as a copy of a layer of its target."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jspec import errors
from jspec.drafters import mtp
from jspec.nn import qarray, stack


def warm_start_from_target_layer(
  drafter: mtp.MTP,
  target: nnx.Module,
  layer: int,
  read: Callable[[int], Mapping[str, Any]] | None = None,
) -> None:
  """Copies a decoder layer of the target into a dense drafter, in place.

  `eh_proj` begins by passing the state through and the embedding not at all,
  and the last norm is the target's final one: the drafter starts as a guess of
  the target's next layer.

  Args:
    drafter: with a dense layer of the target's shapes.
    target: its `layers` have the arrays of `mtp_layer.array_shapes`.
    layer: 0-based.
    read: gives the arrays of a layer of the target by name, from its files;
      None takes those of `target`.

  Raises:
    UserError: no such layer, or it has other arrays or shapes.
  """
  if not 0 <= layer < target.num_layers:
    raise errors.UserError(
      f'layer={layer}: the target has layers 0..{target.num_layers - 1}'
    )
  source = read(layer) if read else _arrays(stack.layer(target.layers, layer))
  leaves = drafter.layer.leaves()
  shapes = {name: leaf.shape for name, leaf in leaves.items()}
  theirs = {name: array.shape for name, array in source.items()}
  if shapes != theirs:
    differ = sorted(set(shapes.items()) ^ set(theirs.items()))
    raise errors.UserError(
      f'layer {layer} of the target does not fit the drafter, they differ in'
      f' {differ}: give the drafter the shapes of the target, dense'
    )
  for name, leaf in leaves.items():
    array = qarray.dequantised(source[name])
    leaf[...] = jnp.asarray(array, leaf.dtype)
  width = drafter.config.width
  halves = [jnp.zeros((width, width)), jnp.eye(width)]
  if not drafter.config.embedding_first:
    halves.reverse()
  drafter.eh_proj[...] = jnp.concatenate(halves).astype(drafter.eh_proj.dtype)
  drafter.final_layernorm[...] = drafter.target_norm[...]


def _arrays(layer):
  params = vars(layer).items()
  return {name: x[...] for name, x in params if isinstance(x, nnx.Param)}
