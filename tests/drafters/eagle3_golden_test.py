# SPDX-License-Identifier: MIT
"""EAGLE-3 against numbers from the reference implementation.

The reference's loss mask is not shifted to the predicted token at step 0; ours
is. So its mask goes into our loss here, and our own is tested elsewhere.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.checkpoints import names, safetensors
from jspec.drafters import anchors, base, borrowed, eagle3, eagle3_loss
from tests import shared_data

VARIANTS = ('eagle3', 'eagle3_pruned')
NUM_STEPS, LENGTH = 3, 24


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _folder(path):
  return safetensors.SafetensorsFolder(shared_data.path(f'goldens/{path}'))


@functools.cache
def _load(name):
  """The drafter, its inputs and the reference's numbers."""
  of_target, source = _folder('targets/qwen3'), _folder(f'drafters/{name}')
  folder = shared_data.path(f'goldens/drafters/{name}')
  raw = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
  ids = None
  if 'd2t' in source.names():
    ids = (np.arange(64) + source.read('d2t')).astype(np.int32)
  config = eagle3.Config(
    **{
      field: raw[key] for field, key in eagle3.CONFIG_KEYS.items() if key in raw
    }
    | {
      'taps': (0, 1, 2),
      'target_width': 64,
      'target_num_layers': 4,
      'draft_vocab_size': None if ids is None else len(ids),
      'norm_output': raw.get('norm_output', False),
      'fc_norm': raw.get('fc_norm', False),
      'num_draft_tokens': NUM_STEPS,
    }
  )
  head = jnp.asarray(of_target.read('lm_head.weight').T)
  arrays = borrowed.Borrowed(
    embedding=jnp.asarray(of_target.read('model.embed_tokens.weight')),
    head=head if ids is None else head[:, ids],
    draft_token_ids=None if ids is None else jnp.asarray(ids),
    final_norm=jnp.asarray(of_target.read('model.norm.weight')),
    target_head=head,
    norm_eps=1e-6,
  )
  loss_config = eagle3.LossConfig(ttt_length=NUM_STEPS, chunk=5)
  drafter = eagle3.Eagle3(config, loss_config, arrays, jax.random.key(0))
  leaves = drafter.leaves()
  values = names.fill(
    eagle3.rules(config),
    source,
    {leaf_name: leaf.shape for leaf_name, leaf in leaves.items()},
    ignored=('embed_tokens.weight', 'd2t', 't2d'),
  )
  for leaf_name, leaf in leaves.items():
    leaf[...] = jnp.asarray(values[leaf_name])
  common = dict(np.load(shared_data.path('goldens/drafters/common.npz')))
  common |= np.load(shared_data.path('goldens/drafters/common_ttt.npz'))
  return drafter, common, np.load(folder / 'golden.npz')


@functools.cache
def _hidden(name):
  """Features, outputs of every step and their logits."""
  drafter, common, _ = _load(name)
  batch = base.DraftBatch(
    tokens=jnp.asarray(common['input_ids']),
    positions=jnp.broadcast_to(jnp.arange(LENGTH), (2, LENGTH)),
    segments=jnp.ones((2, LENGTH), jnp.int32),
    is_answer=jnp.ones((2, LENGTH), bool),
    taps=jnp.asarray(common['target_hidden_layers']),
  )
  # The anchor of the last row would be the token behind the end.
  index = jnp.broadcast_to(jnp.arange(1, LENGTH + 1), (2, LENGTH))
  at = anchors.Anchors(index, jnp.ones(index.shape, bool))

  @jax.jit
  def run(drafter, batch):
    hidden = drafter.train_hidden(batch, at, NUM_STEPS)
    normed = drafter.normed(hidden)
    return drafter.feature(batch.taps), hidden, normed @ drafter.head[...]

  return run(drafter, batch)


@pytest.mark.parametrize('name', VARIANTS)
def test_training_forward_equals_the_reference(name):
  drafter, common, golden = _load(name)
  feature, hidden, logits = _hidden(name)
  is_text = common['attention_mask'] > 0
  np.testing.assert_allclose(feature, golden['fc_out'], atol=1e-4)
  for step in range(NUM_STEPS):
    np.testing.assert_allclose(
      np.asarray(hidden)[:, :, step][is_text],
      golden[f'hidden_step{step}'][is_text],
      atol=1e-4,
    )
  np.testing.assert_allclose(
    np.asarray(logits)[:, :, 0][is_text],
    golden['logits_step0'][is_text],
    atol=1e-4,
  )


@pytest.mark.parametrize('name', VARIANTS)
def test_loss_equals_the_reference_under_its_mask(name):
  drafter, common, golden = _load(name)
  _, hidden, _ = _hidden(name)
  states, head = common['last_hidden_postnorm'], drafter.target_head[...]

  def shifted(x, count):
    return np.concatenate([x[:, count:], np.zeros_like(x[:, :count])], axis=1)

  steps = range(NUM_STEPS)
  teacher = np.stack([shifted(states, 1 + step) for step in steps], axis=2)
  mask = np.stack([shifted(common['loss_mask'], step) for step in steps], 2) > 0
  scores = teacher @ np.asarray(head)
  best = scores.argmax(-1).astype(np.int32)
  _, metrics = jax.jit(
    lambda drafter, hidden, *rest: eagle3_loss.loss(
      drafter.loss_config,
      drafter.normed(hidden),
      drafter.head[...],
      drafter.token_ids(),
      *rest,
    )
  )(
    drafter,
    hidden,
    eagle3_loss.Labels(jnp.asarray(best), jnp.asarray(mask)),
    eagle3_loss.Teacher(jnp.asarray(teacher), head),
  )
  # The reference has the cross-entropy to the teacher: KL plus its entropy.
  if drafter.draft_token_ids is not None:
    ids = np.asarray(drafter.draft_token_ids[...])
    can_draft = np.isin(best, ids)
    np.testing.assert_array_equal(
      mask[:, :, 0] & can_draft[:, :, 0], golden['position_mask'] > 0
    )
    mask, scores = mask & can_draft, scores[..., ids]
  logp = np.asarray(jax.nn.log_softmax(scores))
  entropy = -np.sum(np.exp(logp) * logp, axis=-1)
  count = mask.sum((0, 1))
  np.testing.assert_array_equal(metrics['num_rows'], golden['count'])
  np.testing.assert_allclose(
    metrics['kl'] + np.sum(entropy * mask, (0, 1)) / count,
    golden['ploss'],
    atol=1e-4,
  )
  num_labels = np.stack([shifted(common['loss_mask'], s) for s in steps]).sum(
    (1, 2)
  )
  np.testing.assert_allclose(
    metrics['accuracy'] * num_labels / count, golden['acc'], atol=1e-6
  )
  assert np.any(golden['acc'] > 0) or name == 'eagle3'


@pytest.mark.parametrize('name', VARIANTS)
def test_committed_rows_equal_the_reference(name):
  """The state after a commit is the reference's inference state."""
  drafter, common, golden = _load(name)
  tokens = jnp.asarray(common['input_ids'])

  @jax.jit
  def commit(drafter, state, table, taps, tokens, following):
    num_rows = jnp.full((2,), tokens.shape[1], jnp.int32)
    rows = base.Committed(tokens, taps, num_rows, following)
    state = drafter.commit(state, table, rows)
    return state, paged.advance(table, num_rows, jnp.zeros((), bool))

  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)
  for start in range(0, 18, 6):
    end = start + 6
    taps = jnp.asarray(common['target_hidden_layers'][:, start:end])
    state, table = commit(
      drafter, state, table, taps, tokens[:, start:end], tokens[:, end]
    )
    want = golden['infer_hidden'][:, end - 1]
    np.testing.assert_allclose(state.hidden, want, atol=1e-4)
