# SPDX-License-Identifier: MIT
"""What a DFlash block may see, and that training and decoding agree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.cache import paged
from jspec.drafters import (
  anchors,
  base,
  block_config,
  block_drafter,
  block_loss,
  borrowed,
)
from jspec.testing import drafter_suite, toy

LENGTH = 20
DRAFT_IDS = np.arange(0, 60, 3)


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def drafter(target):
  return toy.drafter(target)


def _batch(target, is_answer=None):
  rng = np.random.default_rng(0)
  tokens = toy.prompts(2, LENGTH)
  shape = (2, LENGTH, target.num_layers, target.width)
  if is_answer is None:
    is_answer = np.ones(tokens.shape, bool)
  return base.DraftBatch(
    tokens=jnp.asarray(tokens),
    positions=jnp.asarray(
      np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
    ),
    segments=jnp.ones(tokens.shape, jnp.int32),
    is_answer=jnp.asarray(is_answer),
    taps=jnp.asarray(rng.normal(size=shape), jnp.float32),
  )


def _at(*index):
  index = jnp.asarray([index, index], jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


_hidden = jax.jit(lambda drafter, *args: drafter.train_hidden(*args))
_loss = jax.jit(lambda drafter, *args: drafter.loss(*args))
_loss_at = jax.jit(lambda drafter, *args: drafter.loss_at(*args))


def _replace_taps(batch, position):
  taps = np.array(batch.taps)
  taps[:, position] += 5
  return dataclasses.replace(batch, taps=jnp.asarray(taps))


@pytest.mark.parametrize('second', [6, 8, 15])
def test_block_sees_no_context_at_or_after_its_anchor(target, drafter, second):
  """Anchors 1, 3 and 10 apart: overlapping blocks and distant ones."""
  batch, at = _batch(target), _at(5, second)
  before = np.asarray(_hidden(drafter, batch, at))
  for position in (5, 6, second - 1, second, second + 1, LENGTH - 1):
    changed = _replace_taps(batch, position)
    after = np.asarray(_hidden(drafter, changed, at))
    for i, anchor in enumerate((5, second)):
      moved = np.abs(after[:, i] - before[:, i]).max()
      assert (moved > 1e-3) if position < anchor else (moved == 0)


def test_block_does_not_see_another_block(target, drafter):
  batch = _batch(target)
  tokens = np.array(batch.tokens)
  tokens[:, 9] = (tokens[:, 9] + 1) % 60
  other = dataclasses.replace(batch, tokens=jnp.asarray(tokens))
  before = np.asarray(_hidden(drafter, batch, _at(5, 9)))
  after = np.asarray(_hidden(drafter, other, _at(5, 9)))
  np.testing.assert_array_equal(before[:, 0], after[:, 0])
  assert np.abs(before[:, 1] - after[:, 1]).max() > 1e-3


def test_document_does_not_see_another_document(target, drafter):
  segments = np.ones((2, LENGTH), np.int32)
  segments[:, 8:] = 2
  batch = dataclasses.replace(_batch(target), segments=jnp.asarray(segments))
  before = np.asarray(_hidden(drafter, batch, _at(5, 12)))
  for position in (3, 10):
    after = np.asarray(
      _hidden(drafter, _replace_taps(batch, position), _at(5, 12))
    )
    moved = np.abs(after - before).max(axis=(0, 2, 3)) > 1e-3
    np.testing.assert_array_equal(moved, [position == 3, position == 10])


def test_slots_of_a_block_see_each_other_both_ways(target, drafter):
  at = _at(5)
  batch = _batch(target)
  x = drafter.slots(batch.tokens[:, 5:6])

  @jax.jit
  def run(drafter, x, positions, context, *rest):
    return drafter.block.train(x, positions, lambda layer: context, *rest)

  positions = jnp.broadcast_to(5 + jnp.arange(4), (2, 1, 4))
  context = drafter.fusion.prepare(batch.taps)[0]
  rest = (positions, context, batch.positions, at.index, batch.segments)
  before = np.asarray(run(drafter, x, *rest))
  for slot in range(4):
    changed = np.array(x)
    changed[:, :, slot] += 1
    after = np.asarray(run(drafter, jnp.asarray(changed), *rest))
    moved = np.abs(after - before).max(axis=(0, 1, 3))
    assert np.all(moved > 1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize('label_shift', [0, 1])
def test_training_block_equals_decoding_with_a_cache(target, label_shift):
  num_drafts = 3 + label_shift
  drafter = toy.drafter(
    target, label_shift=label_shift, num_draft_tokens=num_drafts
  )
  batch, index = _batch(target), 11
  trained = _hidden(drafter, batch, _at(4, index))[:, 1]
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)
  num_rows = jnp.full((2,), index, jnp.int32)

  @jax.jit
  def decode(drafter, state, table):
    # The chunk goes past the anchor: what is not committed must not count.
    rows = base.Committed(
      batch.tokens, batch.taps, num_rows, batch.tokens[:, index]
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
    x = drafter.slots(batch.tokens[:, index])
    hidden = drafter.predicting(drafter.block.score(x, state, table))
    return hidden, drafter.propose(
      state, table, batch.tokens[:, index], None, None
    )

  hidden, draft = decode(drafter, state, table)
  np.testing.assert_allclose(hidden, trained, atol=1e-5)
  logits = np.asarray(trained) @ np.asarray(drafter.head[...])
  np.testing.assert_array_equal(draft.tokens[:, 1:], logits.argmax(-1))


@pytest.mark.parametrize('label_shift', [0, 1])
def test_label_of_depth_k_is_the_kth_token_behind_the_anchor(
  target, label_shift
):
  drafter = toy.drafter(
    target, label_shift=label_shift, num_draft_tokens=3 + label_shift
  )
  batch, at = _batch(target), _at(4, 11)
  logits = np.asarray(_hidden(drafter, batch, at)) @ np.asarray(
    drafter.head[...]
  )
  logp = logits - np.log(np.sum(np.exp(logits), -1, keepdims=True))
  num_labels = 3 + label_shift
  ce = np.zeros((2, 2, num_labels))
  for row in range(2):
    for i, anchor in enumerate((4, 11)):
      for k in range(num_labels):
        ce[row, i, k] = -logp[row, i, k, batch.tokens[row, anchor + 1 + k]]
  weights = np.broadcast_to(np.exp(-np.arange(num_labels) / 4), ce.shape)
  loss, metrics = _loss_at(drafter, batch, at)
  np.testing.assert_allclose(loss, np.average(ce, weights=weights), rtol=1e-5)
  np.testing.assert_allclose(metrics['weight'], weights.sum(), rtol=1e-6)


def test_label_outside_the_draft_vocabulary_ends_its_block(target):
  drafter = toy.drafter(target, draft_token_ids=DRAFT_IDS)
  batch = _batch(target)
  tokens = np.full((2, LENGTH), 3, np.int32)
  tokens[:, 7] = 4  # The second label of the anchor at 5; 4 is not drafted.
  batch = dataclasses.replace(batch, tokens=jnp.asarray(tokens))
  _, metrics = _loss_at(drafter, batch, _at(5))
  assert metrics['num_out_of_vocabulary'] == 2
  assert metrics['num_blocks'] == 2
  np.testing.assert_allclose(metrics['weight'], 2.0)
  assert metrics['tokens_per_round'] <= 2.0


def test_loss_is_zero_and_finite_when_a_batch_has_no_answer(target, drafter):
  batch = _batch(target, np.zeros((2, LENGTH), bool))
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  @jax.jit
  def grad(params, key):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, key)

    return jax.value_and_grad(loss, has_aux=True)(params)

  (loss, metrics), grads = grad(params, jax.random.key(0))
  assert loss == 0 and metrics['num_blocks'] == 0
  assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_loss_is_a_function_of_its_key(target, drafter):
  answer = np.arange(LENGTH) > 3
  batch = _batch(target, np.broadcast_to(answer, (2, LENGTH)))
  first, _ = _loss(drafter, batch, jax.random.key(1))
  again, _ = _loss(drafter, batch, jax.random.key(1))
  other, _ = _loss(drafter, batch, jax.random.key(2))
  assert first == again != other


def test_only_own_weights_are_parameters(drafter):
  _, params, rest = nnx.split(drafter, nnx.Param, ...)
  names = {path[-1] for path, _ in nnx.to_flat_state(params)}
  assert names == {
    *('proj', 'norm', 'final_norm', 'attn_norm', 'q', 'kv'),
    *('q_norm', 'k_norm', 'out', 'mlp_norm', 'gate_up', 'down'),
  }
  frozen = {path[-1] for path, _ in nnx.to_flat_state(rest)}
  scales = {'tap_scale', 'proj_scale', 'norm_scale'}
  assert frozen == {'embedding', 'head', 'target_norm', *scales}


def test_fewer_drafts_are_a_prefix_of_the_full_block(target):
  full, cut = toy.drafter(target), toy.drafter(target, num_draft_tokens=2)
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  suite = drafter_suite.Suite(full, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['one_prefill'])
  drafts = [
    np.asarray(
      drafter_suite.propose(
        drafter, state, table, text[:, -1], None, None
      ).tokens
    )
    for drafter in (full, cut)
  ]
  np.testing.assert_array_equal(drafts[0][:, :3], drafts[1])


@pytest.mark.parametrize(
  'changes',
  [
    {},
    pytest.param(
      {'draft_token_ids': DRAFT_IDS, 'label_shift': 1, 'num_draft_tokens': 2},
      marks=pytest.mark.slow,
    ),
  ],
  ids=['full_head', 'reduced_head_shifted'],
)
def test_conformance(target, changes):
  drafter_suite.run(toy.drafter(target, **changes), target)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'block_size': 3, 'num_draft_tokens': 2}, 'block_size=3'),
    ({'block_size': 33}, 'block_size=33'),
    ({'label_shift': 2}, 'label_shift=2'),
    ({'num_draft_tokens': 4}, 'num_draft_tokens=4'),
    ({'num_draft_tokens': 0}, 'num_draft_tokens=0'),
    ({'taps': (0, 0)}, 'taps'),
    ({'taps': (0, 3)}, 'taps'),
    ({'taps': ()}, 'taps'),
    ({'mask_token_id': 64}, 'mask_token_id=64'),
    ({'num_heads': 3}, 'num_heads=3'),
  ],
)
def test_config_refuses_when_a_field_is_off(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    toy.config(target, **changes)


def test_drafter_refuses_another_targets_arrays(target):
  config = toy.config(target)
  arrays = borrowed.Borrowed(jnp.zeros((64, 16)), jnp.zeros((16, 64)))
  with pytest.raises(errors.UserError, match='borrowed embedding'):
    block_drafter.BlockDrafter(
      config, block_loss.LossConfig(), arrays, jax.random.key(0)
    )


def test_taps_are_the_papers_or_an_error_when_layers_are_few():
  assert block_config.choose_taps(36, 5) == (1, 9, 17, 25, 33)
  assert block_config.choose_taps(30, 1) == (15,)
  for num_layers in range(1, 8):
    with pytest.raises(errors.UserError, match='taps'):
      block_config.choose_taps(num_layers, 5)


def test_options_change_how_it_decodes_and_unknown_ones_are_refused():
  drafter = toy.drafter(toy.target())
  drafter.set_options(tree_size=9, min_expected_accepted=1)
  assert drafter.num_draft_tokens == 9
  drafter.set_options(tree_size=0, num_draft_tokens=2)
  assert drafter.num_draft_tokens == 2
  for options, message in (
    ({'width': 64}, 'width: no option of this drafter'),
    ({'tree_size': 'big'}, "tree_size='big': expected int"),
    ({'tree_size': 128}, 'tree_size=128: expected 0 .a chain. to 127'),
  ):
    with pytest.raises(errors.UserError, match=message):
      drafter.set_options(**options)
