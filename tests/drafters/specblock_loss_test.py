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
from jspec.cache import paged
from jspec.drafters import anchors, base, rank_head, specblock_decode
from jspec.drafters import specblock_loss as loss_lib
from jspec.testing import toy
from jspec.trees import multi_slot
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


_states = jax.jit(loss_lib.states)
_loss_at = jax.jit(loss_lib.loss_at)


def _rows(*index, num_rows=2):
  index = jnp.asarray([index] * num_rows, jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


def _draws(*index, counts=(2, 1)):
  index = index or range(LENGTH)
  return loss_lib.Draws(_rows(*index), jnp.asarray(counts, jnp.int32))


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
  rows = _rows(*range(10), num_rows=1)
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


def test_drawn_rows_are_those_with_a_label(target):
  drafter = specblock_toy.drafter(target, loss={'num_anchors': 5})
  is_answer = np.zeros((2, LENGTH), bool)
  is_answer[:, 5:8] = True
  segments = np.ones((2, LENGTH), np.int32)
  segments[1, 6:] = 2
  batch = specblock_toy.batch(target, is_answer, segments)
  counts = set()
  for seed in range(20):
    draws = loss_lib.draw(drafter, batch, jax.random.key(seed))
    kept = [row[keep] for row, keep in zip(*map(np.asarray, _pair(draws)))]
    # Token 7 of row 1 is a label behind the document's first token alone.
    assert [row.tolist() for row in kept] == [[3, 4, 5], [3]]
    counts |= set(draws.counts.tolist())
  assert counts == set(range(1, SLOTS + 1))


def _pair(draws):
  return draws.rows.index, draws.rows.keep


@pytest.mark.parametrize('ids', [None, DRAFT_IDS], ids=['whole', 'reduced'])
@pytest.mark.parametrize('labels', ['teacher', 'text'])
def test_loss_equals_the_description(target, ids, labels):
  """Over full logits, slot by slot, with chunks that divide nothing."""
  drafter = specblock_toy.drafter(
    target, ids, loss={'labels': labels, 'rank_weight': 0.7, 'chunk': 3}
  )
  is_answer = np.broadcast_to(np.arange(LENGTH) > 3, (2, LENGTH))
  tokens = toy.prompts(2, LENGTH)
  batch = specblock_toy.batch(target, is_answer, tokens=tokens)
  # Half the slots right, else later slots never count.
  drafter.head[...] += 3 * drafter.teacher_head[...]
  draws = _draws()
  states = [np.asarray(x) for x in _states(drafter, batch, draws)]
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
  loss, metrics = _loss_at(drafter, batch, draws)
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

  def loss(hidden):
    hidden_in[0] = hidden
    return loss_lib.loss_at(drafter, batch, _draws(row, counts=counts))[0]

  hidden_in = [None]
  grads = np.asarray(jax.grad(loss)(jnp.asarray(hidden)))
  moved = np.abs(grads).max(axis=-1)[:, :, 0] > 0
  expected = np.ones((3, 2, SLOTS), bool)
  expected[0, 0, 2] = False
  np.testing.assert_array_equal(moved, expected)


def _starts(slots, tokens):
  return multi_slot.Starts(
    tokens=tokens, slots=slots, is_live=jnp.ones(slots.shape, bool)
  )


@pytest.mark.parametrize('cross_rows', [False, True])
def test_training_equals_decoding_with_a_cache(target, cross_rows):
  """Both blocks, from every row, behind every slot."""
  drafter = specblock_toy.drafter(
    target, loss={'num_blocks': 2, 'cross_rows': cross_rows}
  )
  batch = specblock_toy.batch(target)
  trained = [
    _states(drafter, batch, _draws(counts=(m,))) for m in range(1, SLOTS + 1)
  ]
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)

  @jax.jit
  def decode(drafter, state, table, num_rows):
    # The chunk is longer: what is not committed must not count.
    rows = base.Committed(
      batch.tokens, batch.taps, num_rows, batch.tokens[:, num_rows[0]]
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
    slots = jnp.broadcast_to(jnp.arange(SLOTS), (2, SLOTS))
    tokens = batch.tokens[:, num_rows[0] + 1 + jnp.arange(SLOTS)]
    hidden = specblock_decode.second(
      drafter, state, table, _starts(slots, tokens)
    )
    return state.hidden, hidden

  gaps = []
  for row in range(LENGTH - SLOTS - 2):
    num_rows = jnp.full((2,), row + 1, jnp.int32)
    first, second = decode(drafter, state, table, num_rows)
    for m in range(SLOTS):
      np.testing.assert_allclose(first, trained[m][0][:, row], atol=2e-5)
      gaps.append(np.abs(second[:, m] - trained[m][1][:, row]).max())
  if cross_rows:  # The published training sees what decoding does not have.
    assert max(gaps[SLOTS:]) > 1e-2
  else:
    assert max(gaps) < 3e-5


def test_chosen_rows_are_computed_as_among_all(target):
  every = specblock_toy.drafter(target)
  batch = specblock_toy.batch(target)
  whole = _states(every, batch, _draws())
  few = _states(every, batch, _draws(9, 3, 6))
  for a, b in zip(whole, few, strict=True):
    np.testing.assert_allclose(a[:, jnp.asarray([9, 3, 6])], b, atol=2e-5)


def _moved(before, after):
  """[blocks, rows] of the first sequence that changed."""
  return np.stack(
    [
      np.abs(np.asarray(a) - np.asarray(b))[0].max(axis=(1, 2)) > 1e-4
      for a, b in zip(before, after, strict=True)
    ]
  )


def test_row_sees_nothing_later(target, drafter):
  batch = specblock_toy.batch(target)
  before = _states(drafter, batch, _draws())
  row = np.arange(LENGTH)
  for at in (0, 5, 11):
    taps = np.array(batch.taps)
    taps[:, at] += 3
    changed = dataclasses.replace(batch, taps=jnp.asarray(taps))
    moved = _moved(before, _states(drafter, changed, _draws()))
    np.testing.assert_array_equal(moved, [row >= at] * 3)
    tokens = np.array(batch.tokens)
    tokens[:, at] = (tokens[:, at] + 1) % 60
    changed = dataclasses.replace(batch, tokens=jnp.asarray(tokens))
    moved = _moved(before, _states(drafter, changed, _draws()))
    # Fed to row at - 1 in block 1, to row at - 3 in block 2, behind 2 slots,
    # and to row at - 4 in block 3.
    expected = np.stack([row >= at - 1] * 3)
    expected[1:, max(at - 3, 0)] |= at >= 3
    expected[2, max(at - 4, 0)] |= at >= 4
    # The last token is repeated where the text is over.
    np.testing.assert_array_equal(moved[:, :-4], expected[:, :-4])


def test_row_sees_no_other_document(target, drafter):
  segments = np.ones((2, LENGTH), np.int32)
  segments[:, 6:11] = 2
  segments[:, 11:] = 0
  batch = specblock_toy.batch(target, segments=segments)
  before = _states(drafter, batch, _draws())
  for at in (2, 7):
    taps = np.array(batch.taps)
    taps[:, at] += 3
    changed = dataclasses.replace(batch, taps=jnp.asarray(taps))
    moved = _moved(before, _states(drafter, changed, _draws()))
    row = np.arange(LENGTH)
    same = (row >= at) & (segments[0] == segments[0, at])
    np.testing.assert_array_equal(moved, [same] * 3)
  # The same document at another place of the sequence, with its own positions.
  alone = {
    name: jnp.asarray(np.asarray(getattr(batch, name))[:, 6:11])
    for name in ('tokens', 'positions', 'segments', 'is_answer', 'taps')
  }
  found = _states(drafter, base.DraftBatch(**alone), _draws(*range(5)))
  np.testing.assert_allclose(before[0][:, 6:10], found[0][:, :4], atol=2e-5)
  np.testing.assert_allclose(before[1][:, 6:8], found[1][:, :2], atol=2e-5)


def _value_and_grad(drafter, batch, draws):
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  @jax.jit
  def run(params):
    def loss(params):
      return loss_lib.loss_at(nnx.merge(graph, params, rest), batch, draws)

    return jax.value_and_grad(loss, has_aux=True)(params)

  return run(params)


def test_loss_without_labels_is_zero_and_finite(target, drafter):
  batch = specblock_toy.batch(target, np.zeros((2, LENGTH), bool))
  (loss, metrics), grads = _value_and_grad(drafter, batch, _draws())
  assert loss == metrics['weight'] == metrics['num_blocks'] == 0
  assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_every_parameter_trains_and_chunks_do_not_matter(target, drafter):
  batch = specblock_toy.batch(target)
  (loss, _), grads = _value_and_grad(drafter, batch, _draws())
  for path, grad in nnx.to_flat_state(grads):
    assert np.abs(np.asarray(grad[...])).max() > 0, path
  other = specblock_toy.drafter(target, loss={'chunk': 100})
  (loss_other, _), grads_other = _value_and_grad(other, batch, _draws())
  np.testing.assert_allclose(loss, loss_other, rtol=1e-5)
  leaves = zip(
    jax.tree.leaves(grads), jax.tree.leaves(grads_other), strict=True
  )
  for a, b in leaves:
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_rank_loss_trains_the_rank_head_alone(target):
  batch = specblock_toy.batch(target)
  found = []
  for weight in (0.0, 5.0):
    drafter = specblock_toy.drafter(target, loss={'rank_weight': weight})
    _, grads = _value_and_grad(drafter, batch, _draws())
    found.append({p[-1]: g[...] for p, g in nnx.to_flat_state(grads)})
  for name, grad in found[0].items():
    if name in ('rank_in', 'rank_out'):
      assert np.all(np.asarray(grad) == 0) and np.any(found[1][name] != 0)
    else:
      np.testing.assert_allclose(grad, found[1][name], atol=1e-6)


def test_teacher_is_demanded_where_it_is_the_label(target, drafter):
  batch = dataclasses.replace(specblock_toy.batch(target), last=None)
  assert drafter.needs_last
  with pytest.raises(errors.UserError, match='SpecBlock needs the last states'):
    loss_lib.loss_at(drafter, batch, _draws())
  by_text = specblock_toy.drafter(target, loss={'labels': 'text'})
  assert not by_text.needs_last
  loss, _ = loss_lib.loss_at(by_text, batch, _draws())
  assert np.isfinite(loss)


def test_norm_of_the_teacher_is_applied_once(target, drafter):
  batch = specblock_toy.batch(target)
  raw = jnp.asarray(np.random.default_rng(5).normal(size=(2, LENGTH, 32)))
  raw = 3 * raw.astype(jnp.float32)
  normed = raw * jax.lax.rsqrt(
    jnp.mean(jnp.square(raw), -1, keepdims=True) + 1e-5
  )
  normed = normed * target.final_norm[...]
  found = [
    _loss_at(
      drafter,
      dataclasses.replace(batch, last=base.LastHidden(hidden, is_normed)),
      _draws(),
    )[0]
    for hidden, is_normed in ((raw, False), (normed, True))
  ]
  np.testing.assert_allclose(*found, rtol=1e-5)


def _own_text(target):
  """The target's greedy text and its states."""
  size = 24
  positions = jnp.broadcast_to(jnp.arange(size), (2, size))
  ones = jnp.ones((2, size), jnp.int32)
  encode = jax.jit(
    lambda target, tokens: target.encode(tokens, positions, ones, (0, 1, 2))
  )
  tokens = np.zeros((2, size), np.int32)
  tokens[:, :3] = toy.prompts(2, 3, seed=4)
  for at in range(3, size):
    hidden, taps = encode(target, tokens)
    tokens[:, at] = np.argmax(target.logits(hidden[:, at - 1]), axis=-1)
  hidden, taps = encode(target, tokens)
  return base.DraftBatch(
    tokens=jnp.asarray(tokens),
    positions=positions,
    segments=ones,
    is_answer=jnp.broadcast_to(jnp.arange(size) >= 3, (2, size)),
    taps=taps,
    last=base.LastHidden(hidden, is_normed=True),
  )


def test_one_sample_is_learned_by_heart(target):
  batch = _own_text(target)
  drafter = specblock_toy.drafter(
    target, is_fresh=True, loss={'chunk': 30, 'num_blocks': 2}
  )
  drafter.calibrate(batch)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  optimizer = optax.adam(3e-3)

  @jax.jit
  def step(params, state, key):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, key)

    (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, metrics

  state = optimizer.init(params)
  for i in range(150):
    params, state, metrics = step(params, state, jax.random.key(i))
    if not i:
      first = metrics
  assert first['tokens_per_round'] < 2
  assert metrics['tokens_per_round'] > 0.95 * (SLOTS + 1 - 2 * 3 / 21)
  assert metrics['rank_accuracy'][0] > 0.95
  assert np.all(metrics['draft_loss'] < 0.3 * first['draft_loss'])
