# SPDX-License-Identifier: MIT
"""One decoder layer: what happens before attention, and what behind it.

  x += out(attention(norm(x)));  x += down(silu(gate(norm(x))) * up(norm(x)))

or a mixture of experts in place of the second.
Query, key and value share one matmul, gate and up another; weights are stored
[in, out]. What attends to what is the caller's.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.nn import fused, layers, moe, qarray, rope, stack, tiles
from jspec.targets import architecture, latent

# In the order in which a module holds them; what a layer lacks is None.
NAMES = (
  *('attn_norm', 'qkv', 'out', 'mlp_norm', 'gate_up', 'down'),
  *('qkv_bias', 'q_norm', 'k_norm', 'post_attn_norm', 'post_mlp_norm'),
  *('out_bias', 'sinks'),
  *('latents', 'kv_norm', 'q_latent_norm', 'queries', 'kv_up'),
)


class Layer(nnx.Module):
  """The weights of one decoder layer, or of all stacked on a leading axis.

  The columns of `gate_up` lie as `nn.fused` says for `num_mlp_shards`.
  """

  def __init__(
    self,
    arrays: dict[str, qarray.Weight],
    experts: moe.MoeConfig | None = None,
  ):
    """Holds `arrays`, named as `architecture.layer_shapes` says.

    Args:
      arrays: those of one layer, or stacked.
      experts: of the mixture, where the model has one.
    """
    self.num_mlp_shards = 1
    for name in NAMES:
      array = arrays.get(name)
      setattr(self, name, None if array is None else nnx.Param(array))
    own = moe.array_shapes(experts) if 'router' in arrays else ()
    self.moe = (
      moe.Moe(experts, {name: arrays[name] for name in own}) if own else None
    )

  def before_attention(self, x, config):
    """Query, key and value columns of the residual stream [B, T, D]."""
    normed = layers.rms_norm(x, self.attn_norm[...], config.norm_eps)
    columns = tiles.matmul(normed, self.qkv[...])
    return columns if self.qkv_bias is None else columns + self.qkv_bias[...]

  def after_attention(self, x, mixed, config):
    """The new residual stream, from the heads' mixed values."""
    if config.latent is not None:
      mixed = latent.values(config, self, mixed)
    added = tiles.matmul(mixed, self.out[...])
    if self.out_bias is not None:
      added += self.out_bias[...]
    x = x + self._post_normed(added, self.post_attn_norm, config)
    normed = layers.rms_norm(x, self.mlp_norm[...], config.norm_eps)
    if self.moe is not None:
      added = self.moe(normed)
    else:
      added = layers.gated_mlp(
        normed,
        self.gate_up[...],
        self.down[...],
        self.num_mlp_shards,
        config.activation,
      )
    return x + self._post_normed(added, self.post_mlp_norm, config)

  def _post_normed(self, x, gain, config):
    return x if gain is None else layers.rms_norm(x, gain[...], config.norm_eps)

  def head_sinks(self):
    """A logit of each head."""
    return self.sinks[...]

  def head_norms(self):
    """Gains of the norms of queries and keys."""
    return self.q_norm[...], self.k_norm[...]


def assemble(
  config: architecture.TransformerConfig,
  arrays: dict[str, np.ndarray | qarray.Weight],
  is_split: bool,
) -> nnx.Module:
  """The layers of a stack in one of the forms of `nn.stack`.

  Args:
    config: of the stack.
    arrays: named and shaped as `architecture.array_shapes` says.
    is_split: keep every layer's weights apart.
  """
  at = architecture.layers_with(config)

  def of(group):
    """The arrays of some layers of one kind, on a leading axis."""
    names = architecture.layer_shapes(config, group[0])
    return {
      name: arrays[name]
      if group == at[name]
      else arrays[name][np.array([at[name].index(i) for i in group])]
      for name in names
    }

  def make(found):
    return Layer(jax.tree.map(jnp.asarray, found), config.experts)

  every = range(config.num_layers)
  if is_split:
    names = (architecture.layer_shapes(config, i) for i in every)
    return nnx.List(
      make({name: arrays[name][at[name].index(i)] for name in found})
      for i, found in enumerate(names)
    )
  kinds = [architecture.has_experts(config, i) for i in every]
  groups = [
    [i for i in every if kinds[i] == kind] for kind in dict.fromkeys(kinds)
  ]
  if len(groups) == 1:
    return make(of(groups[0]))
  return stack.Mixed(
    [make(of(group)) for group in groups],
    tuple(int(kind != kinds[0]) for kind in kinds),
  )


def heads(config: architecture.TransformerConfig, num_shards: int):
  """Returns the function from the residual stream to queries, keys, values.

  Args:
    config: of the stack.
    num_shards: how the columns of `qkv` lie (`nn.fused`).
  """
  if config.latent is not None:
    return latent.heads(config)
  widths = architecture.qkv_widths(config)

  def before(layer, x):
    return layer.before_attention(x, config)

  def run(weights, layer_idx, x, cos, sin):
    columns = stack.apply(weights, layer_idx, before, x)
    queries, keys, values = (
      part.reshape(*x.shape[:2], -1, config.head_width)
      for part in fused.split(columns, widths, num_shards)
    )
    if config.qk_norm:
      gains = stack.apply(weights, layer_idx, Layer.head_norms)
      queries, keys = (
        layers.rms_norm(part, gain, config.norm_eps)
        for part, gain in zip((queries, keys), gains, strict=True)
      )
    return rope.apply(queries, cos, sin), rope.apply(keys, cos, sin), values

  return run
