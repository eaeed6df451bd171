# SPDX-License-Identifier: MIT
"""What SpecBlock trains on, and that training computes what decoding does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jspec import errors
from jspec.drafters import base, rank_head
from jspec.drafters import specblock_loss as loss_lib
from jspec.testing import toy
from tests.drafters import specblock_toy

LENGTH, SLOTS = specblock_toy.LENGTH, specblock_toy.SLOTS
DRAFT_IDS = specblock_toy.DRAFT_IDS


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def drafter(target):
  return specblock_toy.drafter(target)


def test_labels_by_hand():
  #            0  1  2  3  4  5  6  7  8  9
  segments = [[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]]
  answer = [[0, 0, 0, 1, 1, 1, 0, 0, 1, 0]]
  batch = base.DraftBatch(
    tokens=jnp.arange(10)[None],
    positions=jnp.arange(10)[None],
    segments=jnp.asarray(segments),
    is_answer=jnp.asarray(answer, bool),
    taps=jnp.zeros((1, 10, 1, 4)),
  )
  rows = specblock_toy.rows(*range(10), num_rows=1)
  # {row: tokens that slots 0, 1, 2 are to draft}
  tables = {
    0: {1: [3, 4, 5], 2: [4, 5], 3: [5], 6: [8]},
    # The run must begin at the row's first label, i + 2.
    1: {1: [4, 5], 2: [5]},
    2: {1: [5]},
    3: {},
  }
  for offset, table in tables.items():
    index, exists = loss_lib.labels(batch, rows, offset, SLOTS)
    found = {
      i: index[0, i, exists[0, i]].tolist()
      for i in range(10)
      if exists[0, i, 0]
    }
    assert found == table
    assert not np.any(exists[..., 1:] & ~exists[..., :-1])


@pytest.mark.slow
def test_drawn_rows_are_those_with_a_label(target):
  drafter = specblock_toy.drafter(target, loss={'num_anchors': 5})
  is_answer = np.zeros((2, LENGTH), bool)
  is_answer[:, 5:8] = True
  segments = np.ones((2, LENGTH), np.int32)
  segments[1, 6:] = 2
  batch = specblock_toy.batch(target, is_answer, segments)
  counts, draw = set(), jax.jit(loss_lib.draw)
  for seed in range(20):
    draws = draw(drafter, batch, jax.random.key(seed))
    index, keep = np.asarray(draws.rows.index), np.asarray(draws.rows.keep)
    kept = [index[row, keep[row]].tolist() for row in range(2)]
    # Token 7 of row 1 is a label behind the document's first token alone.
    assert kept == [[3, 4, 5], [3]]
    counts |= set(draws.counts.tolist())
  assert counts == set(range(1, SLOTS + 1))


def _certain(target, batch):
  """The batch with a teacher that says what the text says."""
  head = np.asarray(target.head[...])
  following = np.roll(np.asarray(batch.tokens), -1, axis=1)
  last = np.random.default_rng(3).normal(size=(*following.shape, 32))
  right = head.T[following]
  last = last + 9 * right / np.sum(right**2, axis=-1, keepdims=True)
  last = base.LastHidden(jnp.asarray(last, jnp.float32), is_normed=True)
  return dataclasses.replace(batch, last=last)


def _mostly_right(drafter, tokens, ids):
  """States of three blocks, two slots of three drafting the right token."""
  rng = np.random.default_rng(6)
  head = np.asarray(drafter.head[...])
  ids = np.arange(64) if ids is None else ids
  states, offset = [], 0
  for count in (0, 2, 1):
    offset += count
    hidden = rng.normal(size=(2, LENGTH, SLOTS, 32))
    for b, i, k in np.ndindex(2, LENGTH, SLOTS):
      at = i + 2 + offset + k
      column = np.flatnonzero(ids == tokens[b, at]) if at < LENGTH else []
      if len(column) and rng.random() < 0.67:
        hidden[b, i, k] += 12 * head[:, column[0]]
    states.append(jnp.asarray(hidden, jnp.float32))
  return states


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'labels, ids',
  [('teacher', None), ('teacher', DRAFT_IDS), ('text', DRAFT_IDS)],
  ids=['teacher', 'teacher, reduced', 'text, reduced'],
)
def test_loss_equals_the_description(target, ids, labels, monkeypatch):
  """Over full logits, slot by slot, with chunks that divide nothing."""
  drafter = specblock_toy.drafter(
    target, ids, loss={'labels': labels, 'rank_weight': 0.7, 'chunk': 3}
  )
  is_answer = np.broadcast_to(np.arange(LENGTH) > 3, (2, LENGTH))
  tokens = toy.prompts(2, LENGTH)
  if ids is not None:  # All but a few tokens are in the draft vocabulary.
    tokens = np.where(tokens % 7 == 0, tokens, tokens // 2 * 2)
  batch = _certain(target, specblock_toy.batch(target, is_answer, None, tokens))
  draws = specblock_toy.draws()
  states = _mostly_right(drafter, tokens, ids)
  monkeypatch.setattr(loss_lib, 'states', lambda *_: states)
  ids = np.arange(64) if ids is None else ids
  column = {int(token): i for i, token in enumerate(ids)}
  teacher = np.asarray(batch.last.hidden) @ np.asarray(target.head[...])
  total, offset, parts, num_alive = 0.0, 0, [], 0
  for block, hidden in enumerate(states):
    offset += (0, 2, 1)[block]
    normed = np.asarray(drafter.normed(jnp.asarray(hidden)))
    logits = normed @ np.asarray(drafter.head[...])
    logq = np.asarray(jax.nn.log_softmax(jnp.asarray(logits)))
    per_slot = [[] for _ in range(SLOTS)]
    classes = np.zeros(logits.shape[:3], np.int32)
    has_label = np.zeros(logits.shape[:3], bool)
    for b, i in np.ndindex(2, LENGTH):
      is_alive = True
      for k in range(SLOTS):
        at = i + 2 + offset + k
        if i + 2 <= 3 or at >= LENGTH:
          break
        right = int(tokens[b, at])
        if labels == 'teacher':
          right = int(teacher[b, at - 1].argmax())
        if right not in column:
          break
        law = np.eye(len(ids))[column[right]]
        if labels == 'teacher':
          p = teacher[b, at - 1][ids]
          law = np.exp(p - p.max()) / np.exp(p - p.max()).sum()
        logp = np.log(np.where(law > 0, law, 1))
        order = np.argsort(-logits[b, i, k], kind='stable')
        rank = order.tolist().index(column[right]) + 1
        classes[b, i, k] = sum(rank > last for last in (1, 4, 10))
        has_label[b, i, k] = True
        if is_alive:
          per_slot[k].append((law * (logp - logq[b, i, k])).sum())
        is_alive &= rank == 1
    means = [np.mean(x) if x else 0.0 for x in per_slot]
    num_alive += sum(map(len, per_slot))
    assert per_slot[1] and (block or len(per_slot[1]) < len(per_slot[0]))
    draft_loss = sum(0.8**k * mean for k, mean in enumerate(means))
    largest = jax.lax.top_k(jnp.asarray(logits), 20)[0]
    scores = drafter.rank_scores(jnp.asarray(normed), largest)
    rank_loss, _ = rank_head.loss(
      scores, jnp.asarray(classes), jnp.asarray(has_label)
    )
    parts.append((draft_loss, float(rank_loss)))
    total += draft_loss + 0.7 * rank_loss
  loss, metrics = jax.jit(lambda *args: loss_lib.loss_at(*args))(
    drafter, batch, draws
  )
  found = np.stack([metrics['draft_loss'], metrics['rank_loss']], axis=1)
  np.testing.assert_allclose(found, parts, rtol=2e-5)
  np.testing.assert_allclose(loss, total, rtol=2e-5)
  assert metrics['weight'] == num_alive


def test_slot_behind_a_wrong_one_has_no_gradient_but_the_next_block_has(
  target, monkeypatch
):
  drafter = specblock_toy.drafter(target, loss={'labels': 'text'})
  batch = specblock_toy.batch(target)
  head = np.random.default_rng(0).normal(size=(32, 64))
  drafter.head[...] = jnp.asarray(head, jnp.float32)
  drafter.final_norm[...] = jnp.ones(32)
  tokens = np.asarray(batch.tokens)
  row, counts = 4, (2, 1)
  hidden = np.zeros((3, 2, 1, SLOTS, 32), np.float32)
  for block, offset in enumerate((0, 2, 3)):
    for b, k in np.ndindex(2, SLOTS):
      right = tokens[b, row + 2 + offset + k]
      is_wrong = b == 0 and block == 0 and k == 1
      hidden[block, b, 0, k] = head[:, (right + is_wrong) % 64]
  monkeypatch.setattr(loss_lib, 'states', lambda *_: list(hidden_in[0]))

  @jax.jit
  @jax.grad
  def grad(hidden):
    hidden_in[0] = hidden
    return loss_lib.loss_at(drafter, batch, draws)[0]

  draws = specblock_toy.draws(row, counts=counts)
  hidden_in = [None]
  grads = np.asarray(grad(jnp.asarray(hidden)))
  moved = np.abs(grads).max(axis=-1)[:, :, 0] > 0
  expected = np.ones((3, 2, SLOTS), bool)
  expected[0, 0, 2] = False
  np.testing.assert_array_equal(moved, expected)


@jax.jit
def _value_and_grad(drafter, batch, draws):
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  def loss(params):
    return loss_lib.loss_at(nnx.merge(graph, params, rest), batch, draws)

  (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
  return metrics, dict(nnx.to_flat_state(grads))


@pytest.fixture(scope='module')
def two_blocks(target):
  return specblock_toy.drafter(target, loss={'num_blocks': 2})


@pytest.mark.slow
def test_loss_without_labels_is_zero_and_finite(target, two_blocks):
  batch = specblock_toy.batch(target, np.zeros((2, LENGTH), bool))
  metrics, grads = _value_and_grad(
    two_blocks, batch, specblock_toy.draws(counts=(2,))
  )
  assert metrics['loss'] == metrics['weight'] == metrics['num_blocks'] == 0
  assert all(np.all(np.asarray(g[...]) == 0) for g in grads.values())


@pytest.mark.slow
def test_every_parameter_trains_and_chunks_do_not_matter(target, two_blocks):
  """And the rank loss trains the rank head alone."""
  batch = specblock_toy.batch(target)
  draws = specblock_toy.draws(counts=(2,))
  metrics, grads = _value_and_grad(two_blocks, batch, draws)
  other = specblock_toy.drafter(
    target, loss={'num_blocks': 2, 'chunk': 100, 'rank_weight': 5.0}
  )
  more, others = _value_and_grad(other, batch, draws)
  for name in ('draft_loss', 'rank_loss', 'rank_accuracy', 'accuracy'):
    np.testing.assert_allclose(metrics[name], more[name], rtol=1e-5)
  np.testing.assert_allclose(
    more['loss'] - metrics['loss'], 4 * metrics['rank_loss'].sum(), rtol=1e-4
  )
  for path, grad in grads.items():
    assert np.abs(np.asarray(grad[...])).max() > 0, path
    factor = 5 if path[-1] in ('rank_in', 'rank_out') else 1
    np.testing.assert_allclose(
      others[path][...], factor * grad[...], atol=2e-5 * factor
    )


@pytest.mark.slow
def test_teacher_is_demanded_where_it_is_the_label(target, drafter):
  batch = dataclasses.replace(specblock_toy.batch(target), last=None)
  assert drafter.needs_last
  with pytest.raises(errors.UserError, match='SpecBlock needs the last states'):
    jax.eval_shape(loss_lib.loss_at, drafter, batch, specblock_toy.draws())
  by_text = specblock_toy.drafter(target, loss={'labels': 'text'})
  assert not by_text.needs_last
  jax.eval_shape(loss_lib.loss_at, by_text, batch, specblock_toy.draws())


def test_norm_of_the_teacher_is_applied_once(target, drafter):
  batch = specblock_toy.batch(target)
  raw = batch.last.hidden
  found = [
    loss_lib.targets(
      drafter,
      dataclasses.replace(batch, last=base.LastHidden(raw, is_normed)),
    ).law
    for is_normed in (False, True)
  ]
  np.testing.assert_array_equal(found[1], raw)
  size = np.sqrt(np.mean(np.square(raw), axis=-1, keepdims=True))
  np.testing.assert_allclose(
    found[0], raw / size * np.asarray(target.final_norm[...]), rtol=1e-4
  )


@pytest.mark.slow
def test_one_sample_is_learned_by_heart(target):
  batch = _certain(target, specblock_toy.batch(target))
  drafter = specblock_toy.drafter(
    target, is_fresh=True, loss={'chunk': 30, 'num_blocks': 2}
  )
  drafter.calibrate(batch)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  optimizer = optax.adam(1e-2)

  @jax.jit
  def step(params, state, batch, key):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, key)

    (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, metrics

  state = optimizer.init(params)
  for i in range(80):
    params, state, metrics = step(params, state, batch, jax.random.key(i))
    if not i:
      first = metrics
  assert first['tokens_per_round'] < 2
  most = 1 + np.mean([min(SLOTS, LENGTH - 2 - i) for i in range(LENGTH - 2)])
  assert metrics['tokens_per_round'] > 0.97 * most
  assert metrics['rank_accuracy'][0] > 0.95
  assert np.all(metrics['draft_loss'] < 0.3 * first['draft_loss'])
