# SPDX-License-Identifier: MIT
"""The DFlash family against numbers from the reference implementations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import (
  base,
  block_loss,
  block_steps,
  dflare,
  dflash,
  dfly,
  dspark,
  objective,
  token_head,
)
from tests.drafters import goldens, walk

LOSS = block_loss.LossConfig(mix=objective.Mix(chunk=2))
OF_DSPARK = block_loss.LossConfig(
  mix=objective.Mix(ce=0.1, l1=0.9, confidence=1.0, chunk=2)
)
MARKOV = {'markov_rank': 8}
HEADS = {**MARKOV, 'has_confidence': True, 'confidence_sees_token': True}
CASES = {
  'dflash': (dflash.METHOD, LOSS, {}),
  'dflash_gated': (
    dflash.METHOD,
    dataclasses.replace(LOSS, gate_entropy=0.1),
    {'fusion': 'gated', 'gate_temperature': 0.7},
  ),
  'dflare': (dflare.METHOD, LOSS, {}),
  'dfly': (dfly.METHOD, LOSS, {'correction_width': 32}),
  'dspark': (dspark.METHOD, OF_DSPARK, HEADS),
}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _load(name):
  method, loss, parts = CASES[name]
  return goldens.block_drafter(name, method, loss, **parts)


def _slots(x):
  """Slots [B, A T, ...] by block, those that predict."""
  return x.reshape(2, 5, 4, *x.shape[2:])[:, :, 1:]


@pytest.mark.few(1)
@pytest.mark.parametrize('name', CASES)
def test_training_equals_the_reference(name):
  drafter, golden = _load(name), goldens.arrays(name)
  batch = goldens.batch(golden['context_position_ids'], np.ones((2, 24)))
  at = goldens.blocks()
  keep = np.asarray(at.keep)
  hidden, loss, metrics = goldens.train(drafter, batch, at)
  want = _slots(golden['draft_hidden'])
  np.testing.assert_allclose(np.asarray(hidden)[keep], want[keep], atol=1e-4)
  np.testing.assert_allclose(
    metrics['accuracy'], golden['train_acc_per_position'][1:]
  )
  want = golden['train_loss']
  if name == 'dspark':
    want = _with_our_l1(drafter, batch, at, golden, metrics)
  np.testing.assert_allclose(loss, want, atol=1e-4)


def _with_our_l1(drafter, batch, at, golden, metrics):
  """The reference's loss, had it normed its teacher for L1 as for the rest."""
  for name in ('ce', 'confidence'):
    np.testing.assert_allclose(
      metrics[name], golden[f'train_comp_{name}_loss'], atol=1e-4
    )
  # What it does compute: L1 against states that lack the final norm.
  bare = base.LastHidden(batch.last.hidden, is_normed=True)
  _, _, off = goldens.train(drafter, dataclasses.replace(batch, last=bare), at)
  theirs = golden['train_comp_l1_loss']
  np.testing.assert_allclose(off['l1'], theirs, atol=1e-4)
  return golden['train_loss'] + 0.9 * (metrics['l1'] - theirs)


@pytest.mark.parametrize('name', ['dfly', 'dspark'])
def test_teacher_forced_logits_equal_the_reference(name):
  drafter, golden = _load(name), goldens.arrays(name)
  keep = np.asarray(goldens.blocks().keep)
  hidden = jnp.asarray(_slots(golden['draft_hidden']))
  before = jnp.asarray(golden['prev_token_ids'][:, :, 1:])
  states = token_head.teacher_forced(
    drafter.token_head, hidden, drafter.embedding[...][before], before
  )
  logits = states @ drafter.token_head.matrix(drafter.head[...])
  want = _slots(golden['logits'])
  np.testing.assert_allclose(np.asarray(logits)[keep], want[keep], atol=1e-4)
  if name == 'dfly':
    want = _slots(golden['corrected_hidden'])
    np.testing.assert_allclose(np.asarray(states)[keep], want[keep], atol=1e-4)
  else:
    sure = drafter.confidence_logits(hidden, before)
    want = golden['confidence_logits'][:, :, 1:]
    np.testing.assert_allclose(np.asarray(sure)[keep], want[keep], atol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize('name', CASES)
def test_decoding_equals_the_reference(name):
  drafter, golden = _load(name), goldens.arrays(name)
  given = goldens.common()
  at = int(given['infer_anchor'])
  tokens = jnp.asarray(given['input_ids'])
  taps = jnp.asarray(given['target_hidden_layers'][:, :at])
  hidden, draft = goldens.decode(drafter, [taps], tokens, [tokens[:, at]])
  np.testing.assert_allclose(hidden[0], golden['infer_draft_hidden'], atol=1e-4)
  logits = hidden[0] @ drafter.head[...]
  np.testing.assert_allclose(logits, golden['infer_base_logits'], atol=1e-4)
  want = golden.get(
    'infer_seq_tokens', golden['infer_base_logits'][:, 1:].argmax(-1)
  )
  np.testing.assert_array_equal(np.asarray(draft.tokens)[:, 1:], want)
  if name == 'dspark':
    want = jax.nn.sigmoid(golden['infer_seq_confidence_logits'])
    np.testing.assert_allclose(draft.confidence[:, 1:], want, atol=1e-4)


@pytest.mark.parametrize('name', ['dfly', 'dspark'])
def test_steps_of_decoding_equal_the_reference(name):
  drafter, golden = _load(name), goldens.arrays(name)
  at = int(goldens.common()['infer_anchor'])
  token = jnp.asarray(goldens.common()['input_ids'][:, at])
  hidden = jnp.asarray(golden['infer_draft_hidden'][:, 1:])
  logits = golden['infer_seq_logits']
  greedy = jnp.asarray(logits[:, :2].argmax(-1), jnp.int32)
  source = block_steps.build(drafter, hidden, token)
  for depth, found in enumerate(walk.laws(source, greedy, 256)):
    want = np.asarray(jax.nn.log_softmax(logits[:, depth]))
    want = np.take_along_axis(want, found.ids, axis=-1)
    np.testing.assert_allclose(found.log_probs, want, atol=1e-4)


def test_dfly_without_its_correction_equals_the_reference():
  ignored = [
    f'hidden_correction.{name}.weight'
    for name in (
      *('hidden_norm', 'embed_norm', 'gate_proj', 'up_proj', 'down_proj'),
    )
  ]
  drafter = goldens.block_drafter('dfly', dfly.METHOD, LOSS, ignored)
  golden = goldens.arrays('dfly', 'golden_nocorr.npz')
  positions = goldens.arrays('dfly')['context_position_ids']
  batch = goldens.batch(positions, np.ones((2, 24)))
  _, loss, _ = goldens.train(drafter, batch, goldens.blocks())
  np.testing.assert_allclose(loss, golden['train_loss'], atol=1e-4)


def test_dspark_with_fewer_heads_equals_the_reference():
  confidence = [f'confidence_head.proj.{name}' for name in ('weight', 'bias')]
  positions = goldens.arrays('dspark')['context_position_ids']
  batch = goldens.batch(positions, np.ones((2, 24)))
  drafter = goldens.block_drafter(
    'dspark', dspark.METHOD, LOSS, confidence, **MARKOV
  )
  golden = goldens.arrays('dspark', 'golden_markov_only.npz')
  _, loss, _ = goldens.train(drafter, batch, goldens.blocks())
  np.testing.assert_allclose(loss, golden['train_loss'], atol=1e-4)


def test_gate_and_fusion_start_as_the_reference():
  golden = goldens.arrays('dflash_gated')
  drafter = _load('dflash_gated')
  np.testing.assert_allclose(
    drafter.fusion.gate_weights(), golden['gate_weights'], atol=1e-6
  )
  taps = jnp.asarray(goldens.common()['target_hidden_layers'])
  context = drafter.fusion.prepare(taps)[0]
  np.testing.assert_allclose(context, golden['context_feature'], atol=1e-5)
  fresh = dflare.METHOD.make(
    _load('dflare').config,
    None,
    goldens.borrowed.from_target(goldens.target()),
    jax.random.key(0),
  )
  np.testing.assert_allclose(
    fresh.fusion.mix[...], goldens.arrays('dflare')['fusion_logits_at_init']
  )
