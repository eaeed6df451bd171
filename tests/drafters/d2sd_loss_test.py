# SPDX-License-Identifier: MIT
"""The loss behind a prefix: which slots count, and who is measured."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import block_loss, d2sd_loss, objective
from jspec.testing import toy
from tests.drafters import small_d2sd

B, A, G, D, V = 2, 5, 4, 8, 33
ALL = objective.Mix(
  ce=0.3,
  l1=0.5,
  kl=0.7,
  kl_topk_a=0.11,
  kl_topk_b=0.13,
  kl_top_k=5,
  lk_alpha=0.17,
  lk_hybrid=0.19,
  e2e_tv=0.23,
  chunk=2,
)
GIVEN = jnp.asarray([[0, 1, 2, 3, 0], [3, 0, 1, 2, 2]])


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


_loss = jax.jit(lambda drafter, *args: drafter.loss(*args))
_loss_at = jax.jit(lambda drafter, *args: drafter.loss_at(*args))


def _with_grads(drafter, *args):
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  @jax.jit
  def run(params, *args):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(*args)

    return jax.value_and_grad(loss, has_aux=True)(params)

  (loss, metrics), grads = run(params, *args)
  return loss, metrics, grads


@pytest.mark.parametrize('decay', [0.0, 0.5, 0.85, 1.0])
def test_prefixes_follow_their_law(decay):
  drawn = d2sd_loss.prefix_lengths(jax.random.key(3), (200, 200), G, decay)
  share = np.bincount(np.asarray(drawn).ravel(), minlength=G) / drawn.size
  want = decay ** np.arange(G)
  np.testing.assert_allclose(share, want / want.sum(), atol=0.01)
  assert share.size == G


@pytest.mark.few(1)
@pytest.mark.parametrize('weights', ['decay', 'dpace', 'uniform'])
def test_logits_of_the_prefix_have_no_gradient_in_any_term(weights):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  logits, teacher = normal(B, A, G, V), normal(B, A, G, D)
  labels = jnp.asarray(rng.integers(0, V, (B, A, G)))
  head = normal(D, V)
  mix = dataclasses.replace(ALL, weights=weights)

  @jax.jit
  @jax.grad
  def grad(logits):
    return objective.compute(
      mix,
      logits,
      jnp.eye(V),
      labels,
      jnp.ones((B, A, G), bool),
      teacher_hidden=teacher,
      teacher_head=head,
      first=GIVEN,
    )[0]

  size = np.abs(grad(logits)).max(axis=-1)
  is_given = np.arange(G) < np.asarray(GIVEN)[..., None]
  assert np.all(size[is_given] == 0)
  assert np.all(size[~is_given] > 1e-5)


@pytest.mark.slow
def test_an_offset_is_the_loss_of_the_rest_of_the_block():
  """Blocks that are all given l tokens, against blocks of G - l slots."""
  rng = np.random.default_rng(1)
  hidden = jnp.asarray(rng.normal(size=(B, A, G, D)), jnp.float32)
  teacher = jnp.asarray(rng.normal(size=(B, A, G, D)), jnp.float32)
  head = jnp.asarray(rng.normal(size=(D, V)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, V, (B, A, G)))
  exists = jnp.arange(G) < jnp.asarray(rng.integers(1, G + 1, (B, A, 1)))

  @functools.partial(jax.jit, static_argnames='mix')
  def run(mix, hidden, labels, exists, teacher, first):
    return objective.compute(
      mix,
      hidden,
      head,
      labels,
      exists,
      teacher_hidden=teacher,
      teacher_head=head,
      first=first,
    )[1]

  rest = (hidden, labels, exists, teacher)
  for weights, count in (('decay', 2), ('dpace', 1), ('uniform', 3)):
    mix = dataclasses.replace(ALL, weights=weights)
    whole = run(mix, *rest, jnp.full((B, A), count))
    part = run(mix, *(x[:, :, count:] for x in rest), None)
    for name in (*mix.active, 'loss', 'weight', 'num_chains'):
      np.testing.assert_allclose(
        whole[name], part[name], rtol=1e-5, err_msg=(name, weights)
      )
    assert whole['num_blocks'] == 0 < part['num_blocks']


@pytest.mark.slow
@pytest.mark.parametrize('label_shift', [0, 1])
def test_loss_is_that_of_the_slots_behind_the_prefix(target, label_shift):
  """By hand: labels, weights from the first new slot, the run's end."""
  depth = 3 + label_shift
  drafter = small_d2sd.drafter(
    target, label_shift=label_shift, num_draft_tokens=depth
  )
  # A run of two labels behind anchor 4; all of them behind 11.
  is_answer = np.ones((2, small_d2sd.LENGTH), bool)
  is_answer[:, 7] = False
  batch = small_d2sd.batch(target, is_answer=jnp.asarray(is_answer))
  at = small_d2sd.at(4, 11)
  given = np.asarray([[1, 2], [2, 0]])

  @jax.jit
  def log_probs(drafter, given):
    slots = d2sd_loss.slots(drafter.first, batch, at, given)
    hidden = drafter.first.train_hidden(batch, at, slots)
    return jax.nn.log_softmax(hidden @ drafter.first.head[...])

  logp = np.asarray(log_probs(drafter, jnp.asarray(given)))
  total = weight = 0.0
  for row in range(2):
    for i, (anchor, run) in enumerate(((4, 2), (11, depth))):
      for k in range(given[row, i] + 1, run + 1):
        w = np.exp(-(k - given[row, i] - 1) / 4)
        label = batch.tokens[row, anchor + k]
        total -= w * logp[row, i, k - 1, label]
        weight += w
  loss, metrics = _loss_at(drafter, batch, at, jnp.asarray(given))
  np.testing.assert_allclose(loss, total / weight, rtol=1e-5)
  np.testing.assert_allclose(metrics['weight'], weight, rtol=1e-6)
  # One block was given nothing: it alone is measured.
  assert metrics['num_blocks'] == 1


def test_slots_hold_the_prefix_and_masks(target):
  drafter = small_d2sd.drafter(target).first
  batch, at = small_d2sd.batch(target), small_d2sd.at(4, 17)
  given = jnp.asarray([[0, 2], [1, 3]])
  found = d2sd_loss.slots(drafter, batch, at, given)
  embedding, tokens = np.asarray(drafter.embedding[...]), batch.tokens
  mask = toy.MASK_TOKEN_ID
  for row, i, want in (
    (0, 0, [tokens[0, 4], mask, mask, mask]),
    (0, 1, [tokens[0, 17], tokens[0, 18], tokens[0, 19], mask]),
    (1, 0, [tokens[1, 4], tokens[1, 5], mask, mask]),
  ):
    np.testing.assert_array_equal(found[row, i], embedding[jnp.asarray(want)])


@pytest.mark.slow
def test_without_prefixes_it_trains_a_dflash(target):
  """Loss, metrics and every gradient; with prefixes it does not."""
  mix = objective.Mix(ce=0.5, l1=0.5, chunk=4)
  batch, key = small_d2sd.batch(target), jax.random.key(5)
  drafter = small_d2sd.drafter(target, mix=mix, prefix_decay=0.0)
  got = _with_grads(drafter, batch, key)
  want = _with_grads(drafter.first, batch, key)
  jax.tree.map(
    np.testing.assert_array_equal,
    (*got[:2], nnx.to_pure_dict(got[2])['first']),
    (*want[:2], nnx.to_pure_dict(want[2])),
  )
  other = small_d2sd.drafter(target, mix=mix, prefix_decay=0.85)
  assert abs(_loss(other, batch, key)[0] - got[0]) > 1e-3


def test_what_is_measured_is_a_first_block(target):
  """Acceptance is DFlash's on the blocks that were given nothing."""
  drafter = small_d2sd.drafter(target)
  batch = small_d2sd.batch(target, tokens=jnp.full((2, 20), 23, jnp.int32))
  at = small_d2sd.at(3, 6, 9, 12)
  given = jnp.asarray([[0, 1, 0, 2], [1, 2, 0, 0]])
  _, metrics = _loss_at(drafter, batch, at, given)
  first = anchors_lib.Anchors(at.index, at.keep & (given == 0))
  _, want = _loss_at(drafter.first, batch, first)
  assert metrics['num_blocks'] == 4
  for name in ('tokens_per_round', 'accuracy', 'joint_accuracy'):
    np.testing.assert_allclose(metrics[name], want[name], rtol=1e-6)


@pytest.mark.slow
def test_a_first_drafter_of_its_own_keeps_its_loss(target):
  drafter = small_d2sd.drafter(target, shared=False)
  batch, key = small_d2sd.batch(target), jax.random.key(2)
  loss, metrics, grads = _with_grads(drafter, batch, key)
  first, theirs, of_first = _with_grads(drafter.first, batch, key)
  np.testing.assert_allclose(loss, first + metrics['second_loss'], rtol=1e-6)
  assert metrics['loss'] == loss and metrics['second_loss'] > 0
  for name in ('tokens_per_round', 'num_blocks', 'weight', 'ce'):
    assert metrics[name] == theirs[name], name
  grads = nnx.to_pure_dict(grads)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    grads['first'],
    nnx.to_pure_dict(of_first),
  )
  assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(grads['second']))


@pytest.mark.slow
def test_without_labels_the_loss_is_zero_and_finite(target):
  drafter = small_d2sd.drafter(target, mix=ALL, shared=False)
  none = jnp.zeros((2, small_d2sd.LENGTH), bool)
  batch = small_d2sd.batch(target, is_answer=none)
  loss, metrics, grads = _with_grads(drafter, batch, jax.random.key(0))
  assert loss == 0 and metrics['num_blocks'] == 0
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(metrics))
  assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_what_lacks_its_part_is_refused(target):
  drafter = small_d2sd.drafter(target, mix=objective.Mix(kl=1.0))
  assert drafter.needs_last
  batch = small_d2sd.batch(target, last=None)
  with pytest.raises(errors.UserError, match='last states'):
    jax.eval_shape(drafter.loss, batch, jax.random.key(0))
  with pytest.raises(errors.UserError, match='confidence=1.0'):
    small_d2sd.drafter(target, mix=objective.Mix(confidence=1.0))
  for decay in (-0.1, 1.1, float('nan')):
    with pytest.raises(errors.UserError, match='prefix_decay'):
      d2sd_loss.LossConfig(prefix_decay=decay)


def test_a_term_it_does_not_have_is_refused():
  block = block_loss.LossConfig(on_policy=0.5)
  with pytest.raises(errors.UserError, match='on_policy=0.5'):
    d2sd_loss.LossConfig(block=block)
