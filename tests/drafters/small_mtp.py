# SPDX-License-Identifier: MIT
"""MTP drafters and a batch small enough for any test."""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import base, borrowed, mtp
from jspec.testing import toy

DRAFT_IDS = np.arange(0, 64, 3, dtype=np.int32)
EXPERTS = {
  'num_experts': 5,
  'experts_per_token': 2,
  'expert_ff_width': 24,
  'num_shared_experts': 1,
  'router_scale': 1.5,
}
# Every choice of the config the other way, sooner or later.
OTHER_WAY = {
  'embedding_first': False,
  'input_postnorm': False,
  'feedback_postnorm': False,
  'zero_first_embedding': 'never',
  'qk_norm': False,
}


def config(of, **changes) -> mtp.Config:
  fields = {
    'width': of.width,
    'ff_width': 48,
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_width': 8,
    'norm_eps': 1e-5,
    'rope_base': 10000.0,
    'taps': (of.num_layers - 1,),
    'target_width': of.width,
    'target_num_layers': of.num_layers,
    'vocab_size': of.vocab_size,
    'num_draft_tokens': 3,
    'draft_vocab_size': None,
    'qk_norm': True,
    'embedding_first': True,
    'input_postnorm': True,
    'feedback_postnorm': True,
    'zero_first_embedding': 'first_step',
    'tree_width': 3,
  }
  return mtp.Config(**{**fields, **changes})


def drafter(
  of, draft_token_ids=None, loss=None, is_random=True, **changes
) -> mtp.MTP:
  """With `is_random` all weights are large enough to matter."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  model = mtp.MTP(
    config(of, **changes),
    mtp.LossConfig(**{'ttt_length': 3, 'chunk': 5, **(loss or {})}),
    borrowed.from_target(of, draft_token_ids),
    jax.random.key(1),
  )
  if is_random:
    rng = np.random.default_rng(1)
    for name, leaf in model.leaves().items():
      is_norm = 'norm' in name
      noise = (0.2 if is_norm else 0.3) * rng.normal(size=leaf.shape)
      leaf[...] = jnp.asarray(is_norm + noise, jnp.float32)
  return model


def batch(of, segments=None, is_answer=None, length=14) -> base.DraftBatch:
  """Two sequences of random tokens with the target's last layer."""
  tokens = jnp.asarray(toy.prompts(2, length))
  if segments is None:
    segments = np.ones((2, length))
  segments = np.asarray(segments, np.int32)
  starts = np.maximum.accumulate(
    np.where(np.diff(segments, axis=1, prepend=-1), np.arange(length), 0), 1
  )
  positions = jnp.asarray(np.arange(length) - starts, jnp.int32)
  _, taps = _encode(of, tokens, positions, jnp.asarray(segments))
  return base.DraftBatch(
    tokens=tokens,
    positions=positions,
    segments=jnp.asarray(segments),
    is_answer=jnp.asarray(segments > 0 if is_answer is None else is_answer),
    taps=taps,
  )


@jax.jit
def _encode(target, tokens, positions, segments):
  return target.encode(tokens, positions, segments, (target.num_layers - 1,))
