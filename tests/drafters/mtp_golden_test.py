# SPDX-License-Identifier: MIT
"""MTP, dense and with experts, against numbers from the reference."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jspec.cache import paged
from jspec.checkpoints import names
from jspec.drafters import base, borrowed, mtp, mtp_config, mtp_loss
from tests import shared_data

NAMES = ('mtp_dense', 'mtp_moe')
LAYER = 'model.layers.4.'
OWN = ('enorm', 'hnorm', 'eh_proj', 'final_layernorm')
# Settings of the reference's loss, as ours. It adds them to a cross-entropy.
VARIANTS = {
  'ce_gt': {'ground_truth': True},
  'kl_full': {'kl': 1.0},
  'kl_topk8_a': {'kl': 1.0, 'top_k': 8},
  'kl_topk8_b': {'kl': 1.0, 'top_k': 8, 'renormalise': False},
  'tv': {'tv': 1.0},
  'kl': {'kl': 1.0},
  'lk_eta3': {'lk': 1.0, 'lk_eta': 3.0},
  'lk_topk8': {'lk': 1.0, 'top_k': 8},
  'e2e_weighted_tv': {'tv': 1.0, 'e2e_weighted': 1.0},
  'e2e_weighted_lk': {'lk': 1.0, 'e2e_weighted': 1.0, 'e2e_term': 'lk'},
  'e2e_direct_tv': {'tv': 1.0, 'e2e_direct': 1.0},
}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _native(tensors):
  """Hy3's layout by our names, its experts fused and turned."""
  found, experts = {}, {}
  for name, value in tensors.items():
    name = name.removeprefix(LAYER)
    parts = name.split('.')
    if parts[:2] == ['mlp', 'experts']:
      experts.setdefault(parts[3], {})[int(parts[2])] = value.T
    elif parts[0] in OWN:
      found[name] = value
    else:
      found[f'midlayer.{name}'] = value
  for name, of_expert in experts.items():
    stacked = np.stack([of_expert[i] for i in range(len(of_expert))])
    found[f'midlayer.mlp.experts_{name}'] = stacked
  return found


def _config(draft, **changes):
  # A dense layer's file says nothing of experts.
  fields = {
    name: draft[key]
    for name, key in mtp_config.CONFIG_KEYS.items()
    if key in draft
  }
  fields |= {
    'taps': (3,),
    'target_num_layers': 4,
    'num_draft_tokens': 3,
    'draft_vocab_size': None,
    'embedding_first': True,
    'input_postnorm': True,
    'feedback_postnorm': True,
    'zero_first_embedding': 'every_step',
  }
  return mtp.Config(**{**fields, **changes})


def _load(name, loss=None, **changes):
  file = shared_data.path('goldens/targets/qwen3') / 'model.safetensors'
  target = safetensors.numpy.load_file(file)
  head = jnp.asarray(target['lm_head.weight'].T)
  arrays = borrowed.Borrowed(
    embedding=jnp.asarray(target['model.embed_tokens.weight']),
    head=head,
    final_norm=jnp.asarray(target['model.norm.weight']),
    target_head=head,
    norm_eps=1e-6,
  )
  folder = shared_data.path(f'goldens/drafters/{name}')
  config = _config(
    json.loads((folder / 'draft_config.json').read_text()), **changes
  )
  loss_config = mtp.LossConfig(
    **{
      'ttt_length': 3,
      'on_policy': False,
      'ce': 1.0,
      'lk': 0.0,
      'chunk': 7,
      **(loss or {}),
    }
  )
  drafter = mtp.MTP(config, loss_config, arrays, jax.random.key(0))
  tensors = _native(safetensors.numpy.load_file(folder / 'model.safetensors'))
  leaves = names.fill(
    mtp_config.rules(config),
    names.Held('the fixture', tensors),
    mtp_config.array_shapes(config),
  )
  for leaf, param in drafter.leaves().items():
    param[...] = jnp.asarray(leaves[leaf])
  return drafter, np.load(folder / 'golden.npz')


def _batch(length=24):
  common = np.load(shared_data.path('goldens/drafters/common.npz'))
  mine = np.load(shared_data.path('goldens/drafters/common_mtp.npz'))
  shape = (2, length)
  batch = base.DraftBatch(
    tokens=jnp.asarray(mine['raw_input_ids'][:, :length]),
    positions=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), shape),
    # One document: the reference's steps run on into the padding, and what is
    # compared does not see it.
    segments=jnp.ones(shape, jnp.int32),
    is_answer=jnp.asarray(mine['raw_loss_mask'][:, :length] > 0.5),
    taps=jnp.asarray(common['last_hidden_prenorm'][:, :length, None]),
  )
  return batch, mine['attention_mask'][:, :length] > 0.5


@jax.jit
def _hidden(drafter, batch):
  return drafter.train_hidden(batch)


def _reference_ce(drafter, batch, hidden):
  """Of the target's argmax, over the reference's slots (each for itself)."""
  head = np.asarray(drafter.head[...])
  normed = drafter.first_states(batch.taps)
  labels = mtp_loss.window((normed @ head).argmax(-1), batch.segments, 1, 3)
  logq = np.asarray(jax.nn.log_softmax(hidden @ head))
  ce = -np.take_along_axis(logq, np.asarray(labels)[..., None], -1)[..., 0]
  counts = mtp_loss.window(batch.is_answer, batch.segments, 2, 3)
  return [ce[:, :, s][np.asarray(counts)[:, :, s]].mean() for s in range(3)]


@pytest.mark.few(2)
@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('on_policy', [False, True])
def test_training_forward_equals_the_reference(name, on_policy):
  drafter, golden = _load(name, {'on_policy': on_policy})
  batch, is_real = _batch()
  hidden = np.asarray(_hidden(drafter, batch))
  prefix = 'onpolicy_hidden' if on_policy else 'hidden'
  for step in range(3):
    want = golden[f'{prefix}_step{step}']
    np.testing.assert_allclose(
      hidden[:, :, step][is_real], want[is_real], atol=1e-4
    )
  ce = golden['onpolicy_ce' if on_policy else 'ce']
  np.testing.assert_allclose(
    _reference_ce(drafter, batch, hidden), ce, atol=1e-4
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_loss_terms_equal_the_reference(name):
  drafter, golden = _load(name)
  batch, _ = _batch()
  labels = mtp_loss.labels(batch, None, 3)
  counts = mtp_loss.window(batch.is_answer, batch.segments, 2, 3)
  configs = {
    variant: dataclasses.replace(drafter.loss_config, **changes)
    for variant, changes in VARIANTS.items()
  }

  @jax.jit
  def run(drafter):
    # The forward pass is the same for all of them: XLA sees that.
    found = {}
    for variant, config in configs.items():
      drafter.loss_config = config
      found[variant] = drafter.loss_at(batch, labels, counts)
    return found

  found = run(drafter)
  share = np.asarray(counts).sum((0, 1)) * 0.8 ** np.arange(3)
  for variant, changes in VARIANTS.items():
    loss, metrics = found[variant]
    step = [x for x in mtp_loss.STEP_TERMS[1:] if changes.get(x)]
    chain = [x for x in mtp_loss.CHAIN_TERMS if changes.get(x)]
    of_term = {'ce': 'ce', **dict.fromkeys(step, 'kl')}
    of_term |= dict.fromkeys(chain, 'e2e')
    for term, key in of_term.items():
      np.testing.assert_allclose(
        metrics[term], golden[f'loss_{variant}_{key}'], atol=1e-4
      )
    # Every term is in the sum; the decay is over all slots.
    total = sum(np.average(metrics[x], weights=share) for x in ['ce', *step])
    total += sum(metrics[x] for x in chain)
    np.testing.assert_allclose(loss, total, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize('name', NAMES)
def test_later_steps_of_the_first_row_differ_only_by_their_embedding(name):
  """The reference zeroes it at every step, servers at position 0 alone."""
  drafter, golden = _load(name, zero_first_embedding='first_step')
  batch, is_real = _batch()
  hidden = np.asarray(_hidden(drafter, batch))
  for step in range(3):
    gap = np.abs(hidden[:, :, step] - golden[f'hidden_step{step}']).max(-1)
    assert gap[:, 1:][is_real[:, 1:]].max() < 1e-4
    assert np.all((gap[:, 0] < 1e-4) == (step == 0))


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'change', ['embedding_first', 'input_postnorm', 'feedback_postnorm']
)
def test_forward_differs_when_a_field_is_the_other_way(change):
  drafter, golden = _load('mtp_dense', **{change: False})
  batch, is_real = _batch()
  hidden = np.asarray(_hidden(drafter, batch))
  step = 1 if change == 'feedback_postnorm' else 0
  want = golden[f'hidden_step{step}']
  assert np.abs(hidden[:, :, step] - want)[is_real].max() > 1e-2


@pytest.mark.few(1)
@pytest.mark.parametrize('name', NAMES)
def test_decoding_equals_the_reference(name):
  """Every row's output in turn is the state that a commit leaves behind."""
  drafter, golden = _load(name, zero_first_embedding='first_step')
  batch, _ = _batch()

  @jax.jit
  def step(drafter, state, table, rows):
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, rows.num_rows, jnp.zeros((), bool))
    draft = drafter.propose(state, table, rows.next_token, None, None)
    return state, table, draft.tokens

  table = paged.contiguous_table(2, 6)
  state = drafter.init_state(table, 12, 4)
  for row in range(20):
    rows = base.Committed(
      batch.tokens[:, row : row + 1],
      batch.taps[:, row : row + 1],
      jnp.ones((2,), jnp.int32),
      batch.tokens[:, row + 1],
    )
    state, table, tokens = step(drafter, state, table, rows)
    want = golden['infer_hidden'][:, row]
    np.testing.assert_allclose(state.hidden, want, atol=1e-4)
    logits = want @ np.asarray(drafter.head[...])
    np.testing.assert_array_equal(tokens[:, 1], logits.argmax(-1))
