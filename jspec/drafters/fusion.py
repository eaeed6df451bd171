# SPDX-License-Identifier: MIT
"""How captured target layers become the context of a draft layer.

With h_1 .. h_C the taps of a token, and for draft layer l

  concat             norm(W [h_1; ..; h_C])                   the same for all l
  gated              norm(sum_c softmax(g / temperature)_c norm_c(h_c))   same
  layer_mix          norm(sum_c softmax(w_l)_c h_c)
  concat_layer_mix   norm(W [h_1; ..; h_C] + sum_c softmax(w_l)_c h_c)

concat is DFlash's (arXiv 2602.06036, section 3), layer_mix DFlare's (arXiv
2606.02091), concat_layer_mix DFly's (arXiv 2607.25852); gated probes which
layers are worth capturing. w starts at -2 |c - depth of l|: every draft layer
looks at its own depth of the target.

`calibrate` sets frozen scales beside the parameters under which all channels
count alike (`tap_scale`), for the optimiser too; `saved` folds them in, so the
architecture stays as published.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.drafters import base, block_config, borrowed
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key


class Fusion(nnx.Module):
  """The parameters of one kind of fusion; those it lacks are None."""

  def __init__(
    self, config: block_config.BlockDrafterConfig, key: Key[Array, '']
  ):
    num_taps, width = len(config.taps), config.width
    self.config = config
    self.norm = nnx.Param(jnp.ones((width,)))
    # Of the taps, of what the projection gives, and of the norm's gain.
    self.tap_scale = borrowed.Frozen(jnp.ones((num_taps, config.target_width)))
    self.proj_scale = borrowed.Frozen(jnp.ones((width,)))
    self.norm_scale = borrowed.Frozen(jnp.ones((width,)))
    self.proj, self.mix = nnx.data(None), nnx.data(None)
    self.gate, self.tap_norms = nnx.data(None), nnx.data(None)
    if 'concat' in config.fusion:
      shape = (num_taps * config.target_width, width)
      scale = shape[0] ** -0.5
      self.proj = nnx.Param(scale * jax.random.normal(key, shape))
    if 'layer_mix' in config.fusion:
      self.mix = nnx.Param(mix_at_init(config.num_layers, num_taps))
    if config.fusion == 'gated':
      self.gate = nnx.Param(jnp.zeros((num_taps,)))
      self.tap_norms = nnx.Param(jnp.ones((num_taps, width)))

  @property
  def is_shared(self) -> bool:
    """Whether all draft layers have the same context."""
    return self.mix is None

  def gate_weights(self) -> Float[Array, 'C']:
    """The share of every tap ('gated')."""
    return jax.nn.softmax(self.gate[...] / self.config.gate_temperature)

  def prepare(
    self, taps: Float[Array, 'B S C Dt']
  ) -> tuple[Float[Array, 'B S D'] | None, Array | None]:
    """What all layers share: the finished or the projected sum, and taps."""
    config = self.config
    if config.fusion == 'gated':
      plain = jnp.ones((config.width,))
      normed = layers.rms_norm(taps, plain, config.norm_eps)
      normed = normed * self.tap_norms[...]
      summed = jnp.einsum('c,bscd->bsd', self.gate_weights(), normed)
      return self._norm(summed), None
    if config.fusion == 'layer_mix':
      return None, taps
    scaled = (taps * self.tap_scale[...]).reshape(*taps.shape[:2], -1)
    projected = scaled @ self.proj[...]
    if config.fusion == 'concat':
      return self._norm(projected), None
    return projected * self.proj_scale[...], taps

  def context(
    self, prepared: tuple[Array | None, Array | None], layer: Int[Array, '']
  ) -> Float[Array, 'B S D']:
    """The context of one draft layer."""
    base, taps = prepared
    if self.is_shared:
      return base
    mixed = jnp.einsum(
      'c,bscd->bsd', jax.nn.softmax(self.mix[...][layer]), taps
    )
    return self._norm(mixed if base is None else base + mixed)

  def _norm(self, x):
    gain = self.norm[...] * self.norm_scale[...]
    return layers.rms_norm(x, gain, self.config.norm_eps)

  def calibrate(self, taps: Float[np.ndarray, 'S C Dt']) -> None:
    """Sets the scales so that every channel of these tokens counts alike.

    A linear map takes that as scaled inputs; a sum of raw taps can only take it
    in the gain of the norm behind it, and what is added to the sum must be as
    large as the sum, channel by channel.
    """
    if self.proj is not None:
      self.tap_scale[...] = tap_scale(taps)
    if self.mix is None:
      return
    weights = np.asarray(jax.nn.softmax(self.mix[...], axis=-1)).mean(axis=0)
    mixed = np.einsum('c,scd->sd', weights, taps)
    typical = np.maximum(np.median(np.abs(mixed), axis=0), 1e-6)
    self.proj_scale[...] = jnp.asarray(typical, jnp.float32)
    length = np.median(np.sqrt(np.mean(mixed**2, axis=-1)))
    self.norm_scale[...] = jnp.asarray(length / typical, jnp.float32)

  def saved(self) -> dict[str, Array]:
    """The parameters by name, with the scales folded in."""
    found = {'context_norm': self.norm[...] * self.norm_scale[...]}
    if self.proj is not None:
      rows = self.tap_scale[...].reshape(-1, 1) * self.proj[...]
      found['context_proj'] = rows * self.proj_scale[...]
    for name in ('mix', 'gate', 'tap_norms'):
      if getattr(self, name) is not None:
        found[name] = getattr(self, name)[...]
    return found

  def leaves(self) -> dict[str, nnx.Param]:
    """The parameters by the names of `saved`."""
    own = {'context_norm': 'norm', 'context_proj': 'proj'}
    return {name: getattr(self, own.get(name, name)) for name in self.saved()}


def live(batch: base.DraftBatch) -> Float[np.ndarray, 'S C Dt']:
  """The taps of all tokens that are not padding."""
  return np.asarray(batch.taps)[np.asarray(batch.segments) > 0]


def tap_scale(taps: Float[np.ndarray, 'S C Dt']) -> Float[Array, 'C Dt']:
  """One over the median size of every channel.

  Channels of a residual stream differ by orders of magnitude; without a scale
  the few large ones drown the rest in whatever matrix reads them.
  """
  size = np.median(np.abs(taps), axis=0)
  return jnp.asarray(1 / np.maximum(size, 1e-6), jnp.float32)


def mix_at_init(num_layers: int, num_taps: int) -> Float[Array, 'L C']:
  """-2 |c - l (C - 1) / (L - 1)|, the depth rounded; one layer sits at 0."""
  depth = np.arange(num_layers) / max(num_layers - 1, 1) * (num_taps - 1)
  distance = np.abs(np.arange(num_taps) - np.round(depth)[:, None])
  return jnp.asarray(-2.0 * distance, jnp.float32)
