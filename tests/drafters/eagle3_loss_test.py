# SPDX-License-Identifier: MIT
"""Which labels the steps have, and what the terms of the loss are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import anchors, base, eagle3_loss
from jspec.testing import toy
from tests.drafters import small_eagle3

# token       0  1  2  3  4  5  6  7  8  9 10 11
SEGMENTS = [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]]
ANSWER = [[0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1]]
# Row (one before the anchor) -> tokens its steps 0, 1, 2 predict. In document 1
# the answer is 3 4; in document 2 it begins with 6, which no row can draft (its
# anchor would be in document 1), goes on with 8 9, and padding ends it.
LABELS = {
  1: [3, 4, None],
  2: [4, None, None],
  6: [8, 9, None],
  7: [9, None, None],
}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _batch(segments=SEGMENTS, answer=ANSWER):
  shape = np.shape(segments)
  return base.DraftBatch(
    tokens=100 + jnp.broadcast_to(jnp.arange(shape[1]), shape),
    positions=jnp.zeros(shape, jnp.int32),
    segments=jnp.asarray(segments, jnp.int32),
    is_answer=jnp.asarray(answer, bool),
    taps=jnp.zeros((*shape, 1, 1)),
  )


def _table(batch, num_anchors, key=0, ttt_length=3):
  """Row -> label of every step, as `LABELS`."""
  config = eagle3_loss.LossConfig(num_anchors=num_anchors)
  at = eagle3_loss.anchors(batch, config, jax.random.key(key))
  found = eagle3_loss.labels(batch, at, ttt_length)
  table = {}
  for i in np.flatnonzero(at.keep[0]):
    steps = zip(found.tokens[0, i], found.exists[0, i], strict=True)
    labels = [int(token) - 100 if exists else None for token, exists in steps]
    table[int(at.index[0, i]) - 1] = labels
  return table


@pytest.mark.few(1)
@pytest.mark.parametrize('num_anchors', [0, 4, 9])
def test_labels_are_those_of_the_table(num_anchors):
  assert _table(_batch(), num_anchors) == LABELS


def test_first_answer_token_is_predicted_at_steps_0_to_2():
  """As in the docstring: a prompt of three tokens, an answer of three."""
  batch = _batch([[1, 1, 1, 1, 1, 1, 0]], [[0, 0, 0, 1, 1, 1, 0]])
  assert _table(batch, 0) == {1: [3, 4, 5], 2: [4, 5, None], 3: [5, None, None]}
  # A mask that belongs to the row itself would have begun two rows late.
  assert 1 in _table(batch, 0, ttt_length=1)


def test_drawn_rows_are_some_of_all_rows():
  for key in range(4):
    table = _table(_batch(), 2, key)
    assert len(table) == 2 and table.items() <= LABELS.items()


def _case(num_columns=8, seed=0):
  rng = np.random.default_rng(seed)
  hidden = jnp.asarray(rng.normal(size=(2, 3, 2, 4)), jnp.float32)
  head = jnp.asarray(rng.normal(size=(4, num_columns)), jnp.float32)
  wanted = eagle3_loss.Labels(
    jnp.asarray(rng.integers(0, 12, (2, 3, 2)), jnp.int32),
    jnp.asarray([[[1, 1], [1, 0], [0, 0]], [[1, 1], [1, 1], [0, 0]]], bool),
  )
  teacher = eagle3_loss.Teacher(
    jnp.asarray(rng.normal(size=(2, 3, 2, 5)), jnp.float32),
    jnp.asarray(rng.normal(size=(5, 12)), jnp.float32),
  )
  return hidden, head, wanted, teacher


def _dense(hidden, head, ids, wanted, teacher):
  """Every term in whole matrices, and the rows that count."""
  q = jax.nn.softmax(hidden @ head)
  everything = teacher.hidden @ teacher.head
  p = jax.nn.softmax(everything[..., ids])
  tv = jnp.sum(jnp.abs(p - q), -1) / 2
  kl = jnp.sum(p * jnp.log(p / q), -1)
  share = jax.lax.stop_gradient(jnp.exp(-2.0 * (1 - tv)))
  column = np.array(
    [np.flatnonzero(ids == t)[0] if t in ids else 0 for t in range(12)]
  )[np.asarray(wanted.tokens)]
  inside = np.isin(wanted.tokens, ids)
  ce = -jnp.log(jnp.take_along_axis(q, column[..., None], -1)[..., 0])
  can_draft = np.isin(np.argmax(everything, -1), ids)
  mask = np.asarray(wanted.exists) & can_draft
  terms = {
    'kl': (kl, mask),
    'tv': (tv, mask),
    'lk_hybrid': (share * kl + (1 - share) * tv, mask),
    'ce': (ce, mask & inside),
  }
  return {
    name: jnp.sum(x * m, (0, 1)) / np.maximum(m.sum((0, 1)), 1)
    for name, (x, m) in terms.items()
  }


WEIGHTS = (
  {'kl': 1.0},
  {'kl': 0.0, 'ce': 0.7},
  {'kl': 0.3, 'tv': 0.5, 'lk_hybrid': 2.0, 'ce': 0.7},
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'weights, chunk',
  [*((weights, 2) for weights in WEIGHTS), (WEIGHTS[-1], 16)],
)
def test_loss_is_the_sum_of_its_terms_in_value_and_gradient(weights, chunk):
  ids = np.array([0, 2, 3, 5, 7, 8, 10, 11])
  hidden, head, wanted, teacher = _case()
  config = eagle3_loss.LossConfig(
    ttt_length=2, step_decay=0.5, chunk=chunk, lk_eta=2.0, **weights
  )
  is_taught = config.needs_teacher

  @jax.jit
  def ours(hidden, head):
    return eagle3_loss.loss(
      config,
      hidden,
      head,
      jnp.asarray(ids),
      wanted,
      teacher if is_taught else None,
    )

  def dense(hidden, head):
    if is_taught:
      terms = _dense(hidden, head, ids, wanted, teacher)
    else:  # Every label counts that can be drafted.
      q = jax.nn.log_softmax(hidden @ head)
      inside = np.isin(wanted.tokens, ids) & np.asarray(wanted.exists)
      column = np.searchsorted(ids, wanted.tokens) * inside
      ce = -jnp.take_along_axis(q, column[..., None], -1)[..., 0]
      terms = {'ce': jnp.sum(ce * inside, (0, 1)) / inside.sum((0, 1))}
    decay = np.array([1.0, 0.5])
    return sum(w * jnp.sum(decay * terms[n]) for n, w in weights.items() if w)

  (got, metrics), grads = jax.value_and_grad(ours, (0, 1), has_aux=True)(
    hidden, head
  )
  want, want_grads = jax.value_and_grad(dense, (0, 1))(hidden, head)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  for a, b in zip(grads, want_grads, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)
  assert set(metrics) >= {name for name, w in weights.items() if w}


@pytest.mark.slow
def test_no_row_of_the_teacher_outside_the_draft_vocabulary_counts(target):
  hidden, head, wanted, teacher = _case()
  config = eagle3_loss.LossConfig(ttt_length=2)
  counts = []
  for ids in (np.arange(8), np.array([0, 2, 3, 5, 7, 8, 10, 11])):
    best = np.argmax(np.asarray(teacher.hidden @ teacher.head), -1)
    mask = np.isin(best, ids) & np.asarray(wanted.exists)
    _, metrics = eagle3_loss.loss(
      config, hidden, head, jnp.asarray(ids), wanted, teacher
    )
    np.testing.assert_array_equal(metrics['num_rows'], mask.sum((0, 1)))
    counts.append(mask.sum())
  assert counts[0] != counts[1] and max(counts) < wanted.exists.sum()


def test_tokens_per_round_counts_the_joint_prefix():
  hidden, _, wanted, _ = _case()
  wanted = dataclasses.replace(wanted, tokens=jnp.zeros((2, 3, 2), jnp.int32))
  head = jnp.zeros((4, 8)).at[:, 0].set(1.0)
  # Row (0, 0) hits twice, (0, 1) hits its only one, (1, 0) misses the first.
  sign = np.ones((2, 3, 2, 1))
  sign[1, 0, 0] = sign[1, 1, 1] = -1
  config = eagle3_loss.LossConfig(ttt_length=2, kl=0.0, ce=1.0)
  _, metrics = eagle3_loss.loss(
    config, jnp.abs(hidden) * sign, head, None, wanted, None
  )
  np.testing.assert_allclose(metrics['tokens_per_round'], 1 + (2 + 1 + 1) / 4)
  np.testing.assert_allclose(metrics['accuracy'], [3 / 4, 2 / 3])


@pytest.mark.slow
def test_loss_is_zero_and_finite_when_there_are_no_labels(target):
  model = small_eagle3.drafter(
    target,
    small_eagle3.DRAFT_IDS,
    {'lk_hybrid': 0.5, 'ce': 0.1, 'num_anchors': 3},
  )
  batch = small_eagle3.batch(target, is_answer=np.zeros((2, 16), bool))
  loss, params, _ = small_eagle3.split(model)
  run = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (value, metrics), grads = run(params, batch, jax.random.key(0))
  assert value == 0 and metrics['num_blocks'] == 0
  for grad in jax.tree.leaves(grads):
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'ttt_length': 0}, 'ttt_length=0: expected 1 or more'),
    ({'step_decay': 1.5}, 'step_decay=1.5'),
    ({'step_decay': 0.0}, 'step_decay=0.0'),
    ({'num_anchors': -1}, 'num_anchors=-1'),
    ({'chunk': 0}, 'chunk=0'),
    ({'kl': 0.0}, 'at least one above'),
    ({'tv': -1.0}, 'no weight below 0'),
    ({'lk_eta': -1.0}, 'lk_eta=-1.0'),
  ],
)
def test_config_refuses_what_cannot_be_meant(changes, message):
  with pytest.raises(errors.UserError, match=message):
    eagle3_loss.LossConfig(**changes)


@pytest.mark.slow
def test_teacher_loss_without_last_states_is_an_error(target):
  model = small_eagle3.drafter(target)
  assert model.needs_last
  batch = dataclasses.replace(small_eagle3.batch(target), last=None)
  with pytest.raises(errors.UserError, match='EAGLE-3 needs the last states'):
    model.loss(batch, jax.random.key(0))
  # Cross-entropy alone needs none.
  model = small_eagle3.drafter(target, loss={'kl': 0.0, 'ce': 1.0})
  assert not model.needs_last
  loss, _ = jax.jit(lambda m, b: m.loss(b, jax.random.key(0)))(model, batch)
  assert np.isfinite(loss) and loss > 0


@pytest.mark.slow
def test_states_without_the_final_norm_are_normed_once(target):
  model = small_eagle3.drafter(target)
  batch = small_eagle3.batch(target)
  at = anchors.Anchors(jnp.asarray([[5], [8]]), jnp.ones((2, 1), bool))
  run = jax.jit(lambda model, batch: model.loss_at(batch, at)[0])
  raw = base.LastHidden(batch.taps[:, :, -1], is_normed=False)
  normed = run(model, batch)
  np.testing.assert_allclose(
    run(model, dataclasses.replace(batch, last=raw)), normed, rtol=1e-5
  )
  wrong = base.LastHidden(raw.hidden, is_normed=True)
  other = run(model, dataclasses.replace(batch, last=wrong))
  assert abs(other - normed) > 1e-3
