# SPDX-License-Identifier: MIT
"""An EAGLE-3 drafter and a batch small enough for any test."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.drafters import base, borrowed, eagle3
from jspec.testing import toy

DRAFT_IDS = np.arange(0, 64, 3, dtype=np.int32)


def config(of, **changes) -> eagle3.Config:
  fields = {
    'width': of.width,
    'ff_width': 48,
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_width': 8,
    'norm_eps': 1e-5,
    'rope_base': 10000.0,
    'taps': tuple(range(of.num_layers)),
    'target_width': of.width,
    'target_num_layers': of.num_layers,
    'vocab_size': of.vocab_size,
    'draft_vocab_size': None,
    'norm_output': False,
    'fc_norm': False,
    'num_draft_tokens': 3,
    'tree_width': 3,
  }
  return eagle3.Config(**{**fields, **changes})


def drafter(
  of, draft_token_ids=None, loss=None, is_random=True, **changes
) -> eagle3.Eagle3:
  """With `is_random` all weights are large enough to matter."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  model = eagle3.Eagle3(
    config(of, **changes),
    eagle3.LossConfig(**{'ttt_length': 3, 'chunk': 4, **(loss or {})}),
    borrowed.from_target(of, draft_token_ids),
    jax.random.key(1),
  )
  if is_random:
    rng = np.random.default_rng(1)
    for name, leaf in model.leaves().items():
      is_norm = name.endswith('norm')
      noise = (0.2 if is_norm else 0.3) * rng.normal(size=leaf.shape)
      leaf[...] = jnp.asarray(is_norm + noise, jnp.float32)
  return model


def batch(of, segments=None, is_answer=None, length=16) -> base.DraftBatch:
  """Two sequences of random tokens with the target's states."""
  tokens = jnp.asarray(toy.prompts(2, length))
  if segments is None:
    segments = np.ones((2, length))
  segments = np.asarray(segments, np.int32)
  starts = np.maximum.accumulate(
    np.where(np.diff(segments, axis=1, prepend=-1), np.arange(length), 0), 1
  )
  positions = jnp.asarray(np.arange(length) - starts, jnp.int32)
  hidden, taps = _encode(of, tokens, positions, jnp.asarray(segments))
  if is_answer is None:
    is_answer = segments > 0
  return base.DraftBatch(
    tokens=tokens,
    positions=positions,
    segments=jnp.asarray(segments),
    is_answer=jnp.asarray(is_answer),
    taps=taps,
    last=base.LastHidden(hidden, is_normed=True),
  )


@jax.jit
def _encode(target, tokens, positions, segments):
  taps = tuple(range(target.num_layers))
  return target.encode(tokens, positions, segments, taps)


def split(model):
  """`loss(params, batch, key)` and the parameters."""
  graph, params, rest = nnx.split(model, nnx.Param, ...)

  def loss(params, batch, key):
    return nnx.merge(graph, params, rest).loss(batch, key)

  return loss, params, lambda params: nnx.merge(graph, params, rest)
