# SPDX-License-Identifier: MIT
"""D2SD drafters and a batch small enough for any test."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import (
  anchors,
  base,
  block_loss,
  borrowed,
  d2sd,
  d2sd_drafter,
  d2sd_loss,
  objective,
)
from jspec.nn import layers
from jspec.testing import toy

DRAFT_IDS = np.arange(0, 64, 3, dtype=np.int32)
LENGTH = 20


def config(of, num_cuts=2, shared=True, **changes):
  """Of a toy block drafter, with branches."""
  return dataclasses.replace(
    toy.config(of, **changes),
    method=d2sd.METHOD.name,
    num_cuts=num_cuts,
    shared=shared,
  )


def drafter(
  of,
  mix=None,
  num_anchors=6,
  prefix_decay=0.85,
  draft_token_ids=None,
  is_random=True,
  **changes,
) -> d2sd_drafter.D2SD:
  """With `is_random` all weights are large enough to matter."""
  if draft_token_ids is not None:
    changes['draft_vocab_size'] = len(draft_token_ids)
  mix = mix or objective.Mix(chunk=4)
  loss = d2sd_loss.LossConfig(
    block=block_loss.LossConfig(num_anchors=num_anchors, mix=mix),
    prefix_decay=prefix_decay,
  )
  arrays = borrowed.from_target(of, draft_token_ids)
  model = d2sd.METHOD.make(
    config(of, **changes), loss, arrays, jax.random.key(1)
  )
  if is_random:
    toy.randomise(model, 1)
  return model


def batch(of, length=LENGTH, **changes) -> base.DraftBatch:
  """One document of random text in each of two rows."""
  tokens = jnp.asarray(toy.prompts(2, length))
  shape = (2, length, of.num_layers, of.width)
  taps = np.random.default_rng(0).normal(size=shape)
  taps = jnp.asarray(taps, jnp.float32)
  normed = layers.rms_norm(
    taps[:, :, -1], of.final_norm[...], of.config.norm_eps
  )
  made = base.DraftBatch(
    tokens=tokens,
    positions=jnp.broadcast_to(
      jnp.arange(length, dtype=jnp.int32), tokens.shape
    ),
    segments=jnp.ones(tokens.shape, jnp.int32),
    is_answer=jnp.ones(tokens.shape, bool),
    taps=taps,
    last=base.LastHidden(normed, is_normed=True),
  )
  return dataclasses.replace(made, **changes)


def at(*index) -> anchors.Anchors:
  """The same anchors in both rows."""
  index = jnp.asarray([index, index], jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))
