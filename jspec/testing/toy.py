# SPDX-License-Identifier: MIT
"""A target and block drafters small enough for any test, random weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.drafters import (
  block_config,
  block_drafter,
  block_loss,
  block_method,
  borrowed,
  dflash,
  objective,
)
from jspec.nn import rope, stack
from jspec.targets import transformer

VOCAB_SIZE = 64
MASK_TOKEN_ID = 63
# What a method's toy has besides the backbone.
PARTS = {
  'dflash': {},
  'dflash2': {'selector_rank': 4, 'selector_size': 6, 'conv_group': 8},
  'dflare': {},
  'dfly': {'correction_width': 16},
  'dspark': {
    'markov_rank': 4,
    'has_confidence': True,
    'confidence_sees_token': True,
  },
}


def target(
  seed: int = 0,
  weights: str | None = None,
  cache_form: str | None = None,
  **changes,
) -> transformer.Transformer:
  """A random target of three layers; `changes` replace config fields."""
  config = transformer.TransformerConfig(
    num_layers=3,
    width=32,
    ff_width=48,
    num_heads=4,
    num_kv_heads=2,
    head_width=8,
    vocab_size=VOCAB_SIZE,
    max_len=256,
    norm_eps=1e-5,
    rope=rope.RopeConfig(base=10000.0),
    tied=False,
  )
  config = dataclasses.replace(config, **changes)
  return transformer.random(config, jax.random.key(seed), weights, cache_form)


def split(of: transformer.Transformer) -> transformer.Transformer:
  """The same target with every layer's weights apart, its form for CPUs."""
  other = jax.tree.map(lambda array: array, of)  # The module anew.
  other.layers = stack.split(of.layers, of.num_layers)
  return other


def config(
  of: transformer.Transformer,
  method: block_method.BlockMethod = dflash.METHOD,
  **changes,
) -> block_config.BlockDrafterConfig:
  """The config of a two-layer block drafter for a toy target."""
  fields = {
    'width': of.width,
    'ff_width': 48,
    'num_layers': 2,
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_width': 8,
    'norm_eps': 1e-5,
    'rope_base': 10000.0,
    'taps': tuple(range(of.num_layers)),
    'target_width': of.width,
    'target_num_layers': of.num_layers,
    'vocab_size': of.vocab_size,
    'mask_token_id': MASK_TOKEN_ID,
    'block_size': 4,
    'num_draft_tokens': 3,
    'label_shift': 0,
    'draft_vocab_size': None,
  }
  return method.config(**{**fields, **PARTS[method.name], **changes})


def drafter(
  of: transformer.Transformer,
  seed: int = 1,
  draft_token_ids: np.ndarray | None = None,
  loss_config: block_loss.LossConfig | None = None,
  method: block_method.BlockMethod = dflash.METHOD,
  **changes,
) -> block_drafter.BlockDrafter:
  """A random block drafter for a toy target; weights large enough to matter."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  if loss_config is None:
    loss_config = block_loss.LossConfig(
      num_anchors=6, mix=objective.Mix(chunk=4)
    )
  model = method.make(
    config(of, method, **changes),
    loss_config,
    borrowed.from_target(of, draft_token_ids),
    jax.random.key(seed),
  )
  randomise(model, seed)
  return model


def randomise(model: nnx.Module, seed: int) -> None:
  """Draws every parameter anew, so that each one counts.

  Fresh weights are small, norms are 1 and added parts start without effect.
  """
  rng = np.random.default_rng(seed)
  for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    name = '.'.join(map(str, path))
    size = leaf[...].shape
    if 'norm' in name:
      value = 1 + 0.2 * rng.normal(size=size)
    elif name.endswith(('proj', 'mix', 'gate', 'conv_base')):
      value = np.asarray(leaf[...]) + 0.1 * rng.normal(size=size)
    else:
      value = 0.3 * rng.normal(size=size)
    leaf[...] = jnp.asarray(value, jnp.float32)


def prompts(
  num_rows: int, length: int, seed: int = 2, vocab_size: int = VOCAB_SIZE - 1
) -> np.ndarray:
  """Random tokens [B, S]; the mask token is not among them."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, vocab_size, (num_rows, length), dtype=np.int32)
