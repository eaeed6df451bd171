# SPDX-License-Identifier: MIT
"""DFlash against numbers from the reference implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.drafters import anchors, base, block_loss, interchange, objective
from jspec.nn import layers
from tests import shared_data
from tests.drafters import goldens

FINGERPRINT = 'qwen3-tiny'
EXTRA = {
  'dflash': {'block_size': 4, 'num_draft_tokens': 3},
  'zlab_dflash': {'num_draft_tokens': 7},
}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _load(name):
  target = goldens.target()
  folder = shared_data.path(f'goldens/drafters/{name}')
  drafter = interchange.load(
    folder,
    target,
    target_fingerprint=FINGERPRINT,
    extra={
      'label_shift': 0,
      'target_fingerprint': FINGERPRINT,
      **EXTRA[name],
    },
    loss_config=block_loss.LossConfig(
      num_anchors=5, mix=objective.Mix(chunk=2)
    ),
  )
  common = np.load(shared_data.path('goldens/drafters/common.npz'))
  return drafter, common, np.load(folder / 'golden.npz')


def _batch(common, positions, segments):
  return base.DraftBatch(
    tokens=jnp.asarray(common['input_ids']),
    positions=jnp.asarray(positions),
    segments=jnp.asarray(segments, jnp.int32),
    is_answer=jnp.asarray(common['loss_mask'] > 0.5),
    taps=jnp.asarray(common['target_hidden_layers']),
  )


@jax.jit
def _train(drafter, batch, at):
  return drafter.train_hidden(batch, at), drafter.loss_at(batch, at)


@jax.jit
def _decode(drafter, taps, tokens, anchor):
  """Commits `taps`, then runs one block; all slots after the final norm."""
  table = paged.contiguous_table(2, 4)
  state = drafter.init_state(table, 8, 4)
  hidden = []
  for taps_of_call, anchor_of_call in zip(taps, anchor, strict=True):
    num_rows = jnp.full((2,), taps_of_call.shape[1], jnp.int32)
    rows = base.Committed(
      tokens[:, : taps_of_call.shape[1]], taps_of_call, num_rows, anchor_of_call
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
    x = drafter.block.score(drafter.slots(anchor_of_call), state, table)
    x = layers.rms_norm(x, drafter.final_norm[...], drafter.config.norm_eps)
    hidden.append(x)
  draft = drafter.propose(state, table, anchor[-1], None, None)
  return hidden, x @ drafter.head[...], draft


def test_training_equals_the_reference():
  drafter, common, golden = _load('dflash')
  batch = _batch(common, golden['context_position_ids'], np.ones((2, 24)))
  keep = common['keep_mask']
  at = anchors.Anchors(jnp.asarray(common['anchors']), jnp.asarray(keep))
  hidden, (loss, metrics) = _train(drafter, batch, at)
  np.testing.assert_allclose(
    drafter.fusion.prepare(batch.taps)[0], golden['context_feature'], atol=1e-5
  )
  want = golden['draft_hidden'].reshape(2, 5, 4, 64)[:, :, 1:]
  np.testing.assert_allclose(np.asarray(hidden)[keep], want[keep], atol=1e-4)
  logits = np.asarray(hidden) @ np.asarray(drafter.head[...])
  want = golden['logits'].reshape(2, 5, 4, 256)[:, :, 1:]
  np.testing.assert_allclose(logits[keep], want[keep], atol=1e-4)
  np.testing.assert_allclose(loss, golden['train_loss'], atol=1e-4)
  np.testing.assert_allclose(
    metrics['accuracy'], golden['train_acc_per_position'][1:]
  )


def test_packed_documents_equal_the_reference():
  drafter, common, golden = _load('dflash')
  batch = _batch(
    common, common['packed_position_ids'], common['packed_doc_ids'] + 1
  )
  keep = common['packed_keep_mask']
  at = anchors.Anchors(jnp.asarray(common['packed_anchors']), jnp.asarray(keep))
  hidden, _ = _train(drafter, batch, at)
  want = golden['packed_draft_hidden'].reshape(2, 5, 4, 64)[:, :, 1:]
  np.testing.assert_allclose(np.asarray(hidden)[keep], want[keep], atol=1e-4)
  # The negative control: the same blocks in one document.
  one = _batch(common, common['packed_position_ids'], np.ones((2, 24)))
  hidden, _ = _train(drafter, one, at)
  assert np.abs(np.asarray(hidden)[keep] - want[keep]).max() > 1e-2


def test_decoding_equals_the_reference():
  drafter, common, golden = _load('dflash')
  at = int(common['infer_anchor'])
  tokens = jnp.asarray(common['input_ids'])
  taps = jnp.asarray(common['target_hidden_layers'][:, :at])
  hidden, logits, draft = _decode(drafter, [taps], tokens, [tokens[:, at]])
  np.testing.assert_allclose(hidden[0], golden['infer_draft_hidden'], atol=1e-4)
  np.testing.assert_allclose(logits, golden['infer_base_logits'], atol=1e-4)
  np.testing.assert_array_equal(
    np.asarray(draft.tokens)[:, 1:],
    golden['infer_base_logits'][:, 1:].argmax(-1),
  )


def test_zlab_decoding_equals_the_reference_in_one_call_and_in_two():
  drafter, common, golden = _load('zlab_dflash')
  tokens = jnp.asarray(golden['input_ids'])
  taps = jnp.asarray(common['target_hidden_layers'])
  anchor = jnp.asarray(golden['infer_block_ids'][:, 0])
  hidden, logits, _ = _decode(drafter, [taps[:, :12]], tokens, [anchor])
  np.testing.assert_allclose(hidden[0], golden['infer_draft_hidden'], atol=1e-4)
  np.testing.assert_allclose(logits, golden['infer_logits'], atol=1e-4)
  context = drafter.fusion.prepare(taps[:, :12])[0]
  np.testing.assert_allclose(context, golden['infer_ctx_projected'], atol=1e-4)

  calls = [taps[:, :8], taps[:, 8:12]]
  hidden, _, _ = _decode(drafter, calls, tokens, [tokens[:, 8], anchor])
  np.testing.assert_allclose(
    hidden[0], golden['cached_call1_hidden'], atol=1e-4
  )
  np.testing.assert_allclose(
    hidden[1], golden['cached_call2_hidden'], atol=1e-4
  )


def test_zlab_blocks_in_one_pass_equal_the_reference():
  drafter, common, golden = _load('zlab_dflash')
  positions = np.broadcast_to(np.arange(24, dtype=np.int32), (2, 24))
  batch = _batch(common, positions, np.ones((2, 24)))
  keep = golden['mb_keep']
  at = anchors.Anchors(jnp.asarray(golden['mb_anchors']), jnp.asarray(keep))
  hidden, _ = _train(drafter, batch, at)
  want = golden['mb_draft_hidden'].reshape(2, 3, 8, 64)[:, :, 1:]
  np.testing.assert_allclose(np.asarray(hidden)[keep], want[keep], atol=1e-4)
