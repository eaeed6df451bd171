# SPDX-License-Identifier: MIT
"""SpecBlock drafters of a toy target, and batches for them."""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import anchors, base, borrowed, specblock, specblock_loss
from jspec.testing import toy

LENGTH = 14
SLOTS = 3
DRAFT_IDS = np.arange(0, 60, 2)


def config(of, **changes) -> specblock.Config:
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
    'block_size': SLOTS,
    'num_draft_tokens': min(SLOTS, changes.get('block_size', SLOTS)),
    'label_shift': 1,
    'draft_vocab_size': None,
  }
  return specblock.Config(**{**fields, **changes})


def drafter(
  of, draft_token_ids=None, seed=1, is_fresh=False, loss=None, **changes
) -> specblock.SpecBlock:
  """A drafter whose every weight matters, unless it is to be fresh."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  model = specblock.SpecBlock(
    config(of, **changes),
    specblock.LossConfig(**{'chunk': 5, **(loss or {})}),
    borrowed.from_target(of, draft_token_ids),
    jax.random.key(seed),
  )
  if is_fresh:
    return model
  rng = np.random.default_rng(seed)
  for name, leaf in model.leaves().items():
    values = rng.normal(size=leaf.shape)
    is_gain = name.endswith('norm')
    scale = leaf.shape[0] ** -0.5 if leaf.ndim > 1 else 0.2
    values = 1 + 0.2 * values if is_gain else scale * values
    leaf[...] = jnp.asarray(values, jnp.float32)
  return model


def batch(of, is_answer=None, segments=None, tokens=None) -> base.DraftBatch:
  """Two rows of noise, all of it answer; its taps are noise as well."""
  rng = np.random.default_rng(0)
  tokens = toy.prompts(2, LENGTH) if tokens is None else tokens
  segments = np.ones(tokens.shape, np.int32) if segments is None else segments
  if is_answer is None:
    is_answer = np.ones(tokens.shape, bool)
  positions = np.zeros(tokens.shape, np.int32)
  for row, column in np.ndindex(tokens.shape):
    if column and segments[row, column] == segments[row, column - 1]:
      positions[row, column] = positions[row, column - 1] + 1
  shape = (*tokens.shape, of.num_layers, of.width)
  last = rng.normal(size=(*tokens.shape, of.width))
  return base.DraftBatch(
    tokens=jnp.asarray(tokens),
    positions=jnp.asarray(positions),
    segments=jnp.asarray(segments),
    is_answer=jnp.asarray(is_answer),
    taps=jnp.asarray(rng.normal(size=shape), jnp.float32),
    last=base.LastHidden(jnp.asarray(last, jnp.float32), is_normed=True),
  )


def rows(*index, num_rows=2) -> anchors.Anchors:
  """The same rows of every sequence."""
  index = jnp.asarray([index] * num_rows, jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


def draws(*index, counts=(2, 1)) -> specblock_loss.Draws:
  """Given rows, all if none are given, and transitions."""
  index = index or range(LENGTH)
  return specblock_loss.Draws(rows(*index), jnp.asarray(counts, jnp.int32))
