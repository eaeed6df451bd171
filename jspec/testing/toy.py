# SPDX-License-Identifier: MIT
"""A target and a drafter small enough for any test, with random weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import borrowed, dflash
from jspec.nn import rope
from jspec.targets import transformer

VOCAB_SIZE = 64
MASK_TOKEN_ID = 63


def target(seed: int = 0, **changes) -> transformer.Transformer:
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
  return transformer.random(config, jax.random.key(seed))


def dflash_config(
  of: transformer.Transformer, **changes
) -> dflash.DFlashConfig:
  """The config of a two-layer DFlash for a toy target."""
  config = {
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
  return dflash.DFlashConfig(**{**config, **changes})


def drafter(
  of: transformer.Transformer,
  seed: int = 1,
  draft_token_ids: np.ndarray | None = None,
  loss_config: dflash.LossConfig | None = None,
  **changes,
) -> dflash.DFlash:
  """A random DFlash for a toy target; weights large enough to matter."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  model = dflash.DFlash(
    dflash_config(of, **changes),
    loss_config or dflash.LossConfig(num_anchors=6, decay_gamma=4.0, chunk=4),
    borrowed.from_target(of, draft_token_ids),
    jax.random.key(seed),
  )
  # Fresh weights are small and norms are 1: tests want every one to count.
  rng = np.random.default_rng(seed)
  stack = model.block.layers
  for leaf in (stack.q, stack.kv, stack.out, stack.gate_up, stack.down):
    leaf[...] = jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32)
  norms = (stack.attn_norm, stack.q_norm, stack.k_norm, stack.mlp_norm)
  for leaf in (*norms, model.context_norm, model.final_norm):
    leaf[...] = jnp.asarray(1 + 0.2 * rng.normal(size=leaf.shape), jnp.float32)
  return model


def prompts(
  num_rows: int, length: int, seed: int = 2, vocab_size: int = VOCAB_SIZE - 1
) -> np.ndarray:
  """Random tokens [B, S]; the mask token is not among them."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, vocab_size, (num_rows, length), dtype=np.int32)
