# SPDX-License-Identifier: MIT
"""How the arrays of a target lie on a mesh: tensor parallelism.

Every matmul of a layer is shared out over one axis of the mesh, columns first
and rows second, so that a block ends in one sum over the devices (Megatron-LM,
arXiv 1909.08053, section 3):

  x += all_reduce(attention(norm(x) qkv_s) out_s)       s: the device's shard
  x += all_reduce((silu(norm(x) gate_s) * norm(x) up_s) down_s)

  array              shared out
  embedding, head    vocabulary
  qkv, out           columns and rows, by key-value heads; biases as columns
  gate_up, down      columns and rows, by F
  experts            by expert (`nn.moe_sharded`); the shared one as an MLP
  norms              nowhere

`qkv` and `gate_up` hold several matrices, whose columns are put in the order of
shards (`nn.fused`); who reads weights of a placed target must know.

Attention stays whole on every device where the key-value heads do not share out
evenly (SmolLM2 has 3), and with it the pages: on meshes of more devices than
there are key-value heads, too. F and the vocabulary must share out.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.nn import fused, stack
from jspec.targets import architecture, transformer

AXIS = 'model'
# One head of latents does not share out.
_LATENT = ('latents', 'kv_norm', 'q_latent_norm', 'queries', 'kv_up')


def checked(mesh: Mesh) -> Mesh:
  """The mesh with axes that leave the rest of the work to the compiler.

  `jax.make_mesh` makes axes that do not.

  Raises:
    UserError: the mesh has no axis `AXIS`.
  """
  if AXIS not in mesh.axis_names:
    raise errors.UserError(
      f'the mesh has axes {mesh.axis_names}: name one {AXIS!r}, over which the'
      ' target is shared out'
    )
  types = (AxisType.Auto,) * len(mesh.axis_names)
  return Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def attention_axis(num_kv_heads: int, mesh: Mesh) -> str | None:
  """The axis that key-value heads lie on; None: whole on every device."""
  return None if num_kv_heads % mesh.shape[AXIS] else AXIS


def specs(
  config: architecture.TransformerConfig, mesh: Mesh
) -> dict[str, PartitionSpec]:
  """How each array of `transformer.array_shapes` is spread over the mesh.

  Raises:
    UserError: F, the experts or the vocabulary do not share out evenly.
  """
  num_shards = mesh.shape[AXIS]
  sizes = [('vocabulary', config.vocab_size)]
  if config.experts is not None:
    sizes.append(('number of experts', config.experts.num_experts))
    sizes.append(('shared expert', config.experts.shared_ff_width))
  if config.experts is None or config.dense_layers:
    sizes.append(('feed-forward width', config.ff_width))
  for what, size in sizes:
    if size % num_shards:
      raise errors.UserError(
        f"the target's {what} of {size} does not share out over"
        f' {num_shards} devices: take a mesh of as many as divide it'
      )
  num_kv_heads, _ = architecture.cached_row(config)
  heads = attention_axis(num_kv_heads, mesh)
  return {
    'embedding': PartitionSpec(AXIS, None),
    'head': PartitionSpec(None, AXIS),
    'final_norm': PartitionSpec(),
    'attn_norm': PartitionSpec(),
    'qkv': PartitionSpec(None, None, heads),
    **dict.fromkeys(_LATENT, PartitionSpec()),
    'qkv_bias': PartitionSpec(None, heads),
    'out_bias': PartitionSpec(),
    'sinks': PartitionSpec(None, heads),
    'q_norm': PartitionSpec(),
    'k_norm': PartitionSpec(),
    'post_attn_norm': PartitionSpec(),
    'post_mlp_norm': PartitionSpec(),
    'out': PartitionSpec(None, heads, None),
    'mlp_norm': PartitionSpec(),
    'router': PartitionSpec(),
    'expert_bias': PartitionSpec(),
    'router_bias': PartitionSpec(),
    'experts_gate_up_bias': PartitionSpec(None, AXIS),
    'experts_down_bias': PartitionSpec(None, AXIS),
    'experts_gate_up': PartitionSpec(None, AXIS),
    'experts_down': PartitionSpec(None, AXIS),
    'shared_gate_up': PartitionSpec(None, None, AXIS),
    'shared_down': PartitionSpec(None, AXIS),
    'gate_up': PartitionSpec(None, None, AXIS),
    'down': PartitionSpec(None, AXIS, None),
  }


def place(target: nnx.Module, mesh: Mesh) -> transformer.Transformer:
  """A copy of the target on the mesh; tiles, which are for a CPU, are left.

  One that lies there already is returned as it is.

  Args:
    target: a `Transformer`, stacked or split.
    mesh: of `checked`.

  Raises:
    UserError: no layout is known for such a target, or see `specs`.
  """
  if not isinstance(target, transformer.Transformer):
    raise errors.UserError(
      f'{type(target).__name__} has no layout on a mesh (jspec.targets.sharding'
      ' has those there are): serve it without a mesh'
    )
  if is_placed(target, mesh):
    return target
  placed = jax.tree.map(lambda array: array, target)  # The module anew.
  layout = arrange(placed, mesh)
  is_split = isinstance(placed.layers, nnx.List)
  layer_arrays = architecture.layers_with(placed.config)
  for path, variable in nnx.to_flat_state(nnx.state(placed)):
    name, array = path[-1], variable[...]
    if name in layout.order:
      array = fused.interleave(array, *layout.order[name])
    is_row = is_split and name in layer_arrays

    def spread(part, name=name, is_row=is_row):
      return put(part, layout.sharding(name, part.shape, is_row=is_row))

    # Values and scales apart, of weights of eight bits.
    variable.set_value(jax.tree.map(spread, array))
  return placed


def is_placed(target: transformer.Transformer, mesh: Mesh) -> bool:
  """Whether a target lies on the mesh, as `targets.reading` leaves it."""
  lies = NamedSharding(mesh, PartitionSpec(AXIS, None))
  return target.embedding[...].sharding == lies


@dataclasses.dataclass(frozen=True)
class Layout:
  """How the arrays of a target lie.

  Attributes:
    mesh: of the devices.
    specs: of each array, layers stacked.
    order: widths and shards of each array whose columns `nn.fused` interleaves.
  """

  mesh: Mesh
  specs: dict[str, PartitionSpec]
  order: dict[str, tuple[tuple[int, ...], int]]

  def sharding(
    self, name: str, shape: tuple[int, ...], *, is_row: bool
  ) -> NamedSharding:
    """How an array lies, or the values or the scale of one of eight bits.

    Args:
      name: of the array.
      shape: an axis of 1, as scales have, is whole everywhere.
      is_row: it is of one layer, without that axis.
    """
    spec = self.specs[name][is_row:]
    axes = zip(spec, shape, strict=False)
    return NamedSharding(
      self.mesh, PartitionSpec(*(None if n == 1 else axis for axis, n in axes))
    )


def arrange(target: transformer.Transformer, mesh: Mesh) -> Layout:
  """Tells a target how its arrays are going to lie; its tiles are dropped.

  Args:
    target: changed in place, but for its arrays.
    mesh: of `checked`.

  Raises:
    UserError: see `specs`.
  """
  config = target.config
  spread = specs(config, mesh)
  num_shards = mesh.shape[AXIS]
  num_attention_shards = num_shards if spread['qkv'][-1] else 1
  order = {
    'qkv': (architecture.qkv_widths(config), num_attention_shards),
    'qkv_bias': (architecture.qkv_widths(config), num_attention_shards),
    'gate_up': ((config.ff_width,) * 2, num_shards),
  }
  if config.experts is not None:
    shared = (config.experts.shared_ff_width,) * 2
    order['shared_gate_up'] = (shared, num_shards)
  target.tiled, target.tiled_head = nnx.data(None), nnx.data(None)
  target.num_attention_shards = num_attention_shards
  for layer in stack.parts(target.layers):
    layer.num_mlp_shards = num_shards
    if layer.moe is not None:
      layer.moe.num_shards, layer.moe.mesh = num_shards, mesh
      layer.moe.axis = AXIS
  return Layout(mesh, spread, order)


def put(array: Any, lies: NamedSharding | None) -> jax.Array:
  """An array of this process, placed; None: on the first device.

  Devices of other processes get theirs there, of an array that must be the
  same everywhere: `jax.device_put` would compare all of it over the network.
  """
  if lies is None or lies.is_fully_addressable:
    return jax.device_put(array, lies)
  if isinstance(array, jax.Array) and not array.is_fully_addressable:
    # Shared out already, by `targets.reading`.
    return jax.jit(lambda x: x, out_shardings=lies)(array)
  host = np.asarray(array)
  return jax.make_array_from_callback(
    host.shape, lies, lambda index: host[index]
  )
