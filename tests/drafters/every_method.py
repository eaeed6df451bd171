# SPDX-License-Identifier: MIT
"""One small drafter of every method that trains, and a batch for any of them.

What holds for all of them is tested over `NAMES`, so a new method is a line.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.drafters import (
  base,
  block_loss,
  dflare,
  dflash,
  dflash2,
  dfly,
  dspark,
  objective,
)
from jspec.testing import toy
from tests.drafters import small_d2sd, small_eagle3, small_mtp, specblock_toy

BLOCK = {
  'dflash': dflash.METHOD,
  'dflash2': dflash2.METHOD,
  'dflare': dflare.METHOD,
  'dfly': dfly.METHOD,
  'dspark': dspark.METHOD,
}
PLAIN = {
  'eagle3': small_eagle3.drafter,
  'mtp': small_mtp.drafter,
  'specblock': specblock_toy.drafter,
}
NAMES = (*BLOCK, 'd2sd', *PLAIN)


def some(names):
  """Parameters of a test that compiles: one method always, all with slow."""
  return [
    pytest.param(name, marks=() if name == 'dfly' else pytest.mark.slow)
    for name in names
  ]


# All terms at once, each with a weight of its own.
MIX = {
  **{'ce': 1.0, 'l1': 0.2, 'kl': 0.3, 'kl_topk_a': 0.4, 'kl_topk_b': 0.5},
  **{'kl_top_k': 5, 'lk_alpha': 0.6, 'lk_hybrid': 0.7, 'e2e_tv': 0.8},
}
PLAIN_LOSS = {
  'eagle3': {'kl': 0.3, 'tv': 0.5, 'lk_hybrid': 2.0, 'ce': 0.7},
  'mtp': {
    **{'ce': 0.1, 'kl': 0.2, 'tv': 0.3, 'lk': 1.0},
    **{'e2e_direct': 0.4, 'e2e_weighted': 0.5},
  },
  'specblock': {'rank_weight': 0.7, 'num_blocks': 2},
}
DRAFT_IDS = np.arange(0, 60, 2, dtype=np.int32)


def drafter(of, name, draft_token_ids=None, num_anchors=6, chunk=4, **changes):
  """A drafter whose every weight and every term of the loss matters."""
  ids = {'draft_token_ids': draft_token_ids}
  if name in PLAIN:
    loss = {**PLAIN_LOSS[name], 'num_anchors': num_anchors, 'chunk': chunk}
    return PLAIN[name](of, **ids, loss=loss, **changes)
  if name == 'd2sd':
    mix = objective.Mix(**MIX, chunk=chunk)
    return small_d2sd.drafter(
      of, mix=mix, num_anchors=num_anchors, **ids, **changes
    )
  confidence = 0.9 if name == 'dspark' else 0.0
  mix = objective.Mix(**MIX, chunk=chunk, confidence=confidence)
  loss = block_loss.LossConfig(
    num_anchors=num_anchors,
    mix=mix,
    selector=1.0 if name == 'dflash2' else 0.0,
  )
  return toy.drafter(of, loss_config=loss, method=BLOCK[name], **ids, **changes)


def options(name) -> dict:
  """Options of the method's builder, for the targets of these tests."""
  if name in PLAIN:
    return {'loss': {}}
  parts = {'num_cuts': 2} if name == 'd2sd' else toy.PARTS[name]
  return {
    'num_layers': 1,
    'num_taps': 2,
    'mask_token_id': toy.MASK_TOKEN_ID,
    'block_size': 4,
    'parts': dict(parts),
    'loss': {'num_anchors': 4},
  }


def builder(name) -> str:
  """The method's builder, as a config names it."""
  module = {'d2sd': 'build_d2sd'} | dict.fromkeys(PLAIN, 'build_plain')
  return f'jspec.train.{module.get(name, "build")}:{name}'


def batch(of, taps, is_answer, segments=None, tokens=None) -> base.DraftBatch:
  """Random text with noise for the target's states, for any `taps`."""
  rng = np.random.default_rng(0)
  is_answer = np.asarray(is_answer, bool)
  shape = is_answer.shape
  if tokens is None:
    tokens = toy.prompts(*shape)
  segments = np.ones(shape, np.int32) if segments is None else segments
  starts = np.maximum.accumulate(
    np.where(np.diff(segments, axis=1, prepend=-1), np.arange(shape[1]), 0),
    axis=1,
  )
  states = rng.normal(size=(*shape, of.num_layers, of.width))
  states = jnp.asarray(states, jnp.float32)
  return base.DraftBatch(
    tokens=jnp.asarray(tokens),
    positions=jnp.asarray(np.arange(shape[1]) - starts, jnp.int32),
    segments=jnp.asarray(segments, jnp.int32),
    is_answer=jnp.asarray(is_answer),
    taps=states[:, :, np.asarray(taps)],
    last=base.LastHidden(states[:, :, -1], is_normed=False),
  )


def round_to_bfloat16(model) -> None:
  """Parameters as a checkpoint stores them, so that nothing is lost there."""
  for leaf in map(
    lambda x: x[1], nnx.to_flat_state(nnx.state(model, nnx.Param))
  ):
    leaf[...] = leaf[...].astype(jnp.bfloat16).astype(jnp.float32)


def with_tap(given: base.DraftBatch, position: int) -> base.DraftBatch:
  """The batch with other features of one token."""
  taps = np.array(given.taps)
  noise = np.random.default_rng(position).normal(size=taps.shape[2:])
  taps[:, position] += 5 * noise
  return dataclasses.replace(given, taps=jnp.asarray(taps))
