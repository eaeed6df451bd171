# SPDX-License-Identifier: MIT
"""Mixed losses: chunked against dense, which slots count, what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import distill, losses, objective

# Every term at a weight of its own.
ALL = objective.Mix(
  ce=0.3,
  l1=0.5,
  kl=0.7,
  kl_topk_a=0.11,
  kl_topk_b=0.13,
  kl_top_k=5,
  lk_alpha=0.17,
  lk_hybrid=0.19,
  lk_eta=2.0,
  e2e_tv=0.23,
  confidence=0.29,
)
B, A, G, D, V, R = 2, 7, 3, 8, 33, 4


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def problem():
  """Trained arrays (Markov head: `memory` and `out`), and the rest."""
  rng = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  trained = dict(
    hidden=normal(B, A, G, D),
    head=normal(D, V),
    memory=normal(B, A, G, R),
    out=normal(R, V),
    confidence=normal(B, A, G),
  )
  given = dict(
    labels=jnp.asarray(rng.integers(0, V, (B, A, G)), jnp.int32),
    exists=jnp.asarray(rng.uniform(size=(B, A, G)) < 0.8),
    inside=jnp.asarray(rng.uniform(size=(B, A, G)) < 0.9),
    teacher_hidden=normal(B, A, G, 6),
    teacher_head=normal(6, V),
  )
  return trained, given


def compute(mix, trained, given):
  given = dict(given)
  wide = jnp.concatenate([trained['hidden'], trained['memory']], axis=-1)
  head = jnp.concatenate([trained['head'], trained['out']])
  return objective.compute(
    mix,
    wide,
    head,
    given.pop('labels'),
    given.pop('exists'),
    given.pop('inside'),
    confidence_logits=trained['confidence'],
    **given,
  )


def dense(mix, trained, given):
  """All terms by their formulas, from all logits at once."""
  logits = trained['hidden'] @ trained['head']
  logits += trained['memory'] @ trained['out']
  teacher = given['teacher_hidden'] @ given['teacher_head']
  logq, logp = jax.nn.log_softmax(logits), jax.nn.log_softmax(teacher)
  p, q = jnp.exp(logp), jnp.exp(logq)
  at_label = jnp.take_along_axis(logq, given['labels'][..., None], -1)[..., 0]
  counts = np.cumprod(
    np.asarray(given['exists']) & np.asarray(given['inside']), axis=-1
  )
  alpha = jnp.sum(jnp.minimum(p, q), axis=-1)
  kl = jnp.sum(p * (logp - logq), axis=-1)
  # The teacher's top, by a mask.
  least = jnp.sort(teacher, axis=-1)[..., -mix.kl_top_k, None]
  top = teacher >= least
  logp_a, logq_a = (
    jax.nn.log_softmax(jnp.where(top, x, -1e9)) for x in (teacher, logits)
  )
  share = jnp.exp(-mix.lk_eta * jax.lax.stop_gradient(alpha))
  goal = jax.lax.stop_gradient(alpha)
  chance = jax.nn.sigmoid(trained['confidence'])
  values = {
    'ce': -at_label,
    'l1': jnp.sum(jnp.abs(p - q), axis=-1),
    'kl': kl,
    'kl_topk_a': jnp.sum(jnp.exp(logp_a) * (logp_a - logq_a), axis=-1),
    'kl_topk_b': jnp.sum(jnp.where(top, p * (logp - logq), 0), axis=-1),
    'lk_alpha': -jnp.log(alpha),
    'lk_hybrid': share * kl + (1 - share) * (1 - alpha),
    'confidence': -goal * jnp.log(chance) - (1 - goal) * jnp.log(1 - chance),
  }
  if mix.weights == 'dpace':
    c = (1 - mix.dpace_alpha) * jnp.exp(at_label) + mix.dpace_alpha
    weights = jnp.zeros(counts.shape)
    for j in range(G):
      for m in range(j, G):
        reach = jnp.prod(c[..., : m + 1], axis=-1) * counts[..., m]
        weights = weights.at[..., j].add(reach)
    weights = jax.lax.stop_gradient(weights) * counts
  else:
    weights = counts * np.exp(-np.arange(G) / mix.decay_gamma)
  means = {
    n: jnp.sum(weights * x) / jnp.sum(weights) for n, x in values.items()
  }
  blocks = []
  for b in range(B):
    for a in range(A):
      length = int(counts[b, a].sum())
      if length:
        reached = [jnp.prod(alpha[b, a, : j + 1]) for j in range(length)]
        blocks.append(1 - sum(reached) / length)
  means['e2e_tv'] = sum(blocks) / len(blocks)
  return means


@pytest.mark.parametrize(
  'weights, chunks',
  [
    pytest.param('decay', (1, 3, 7), marks=pytest.mark.slow),
    ('dpace', (2, 5)),
  ],
)
def test_every_term_equals_its_dense_form_for_every_chunk(
  problem, weights, chunks
):
  trained, given = problem
  mix = dataclasses.replace(ALL, weights=weights)

  def by_formulas(trained):
    terms = dense(mix, trained, given)
    return terms, terms

  want_grads, want = jax.jit(jax.jacrev(by_formulas, has_aux=True))(trained)
  for chunk in chunks:
    one = dataclasses.replace(mix, chunk=chunk)

    def terms(trained, one=one):
      loss, metrics = compute(one, trained, given)
      return {n: metrics[n] for n in objective.TERMS}, (loss, metrics)

    grads, (loss, metrics) = jax.jit(jax.jacrev(terms, has_aux=True))(trained)
    for name in objective.TERMS:
      np.testing.assert_allclose(
        metrics[name], want[name], rtol=1e-5, err_msg=name
      )
      for leaf, grad in grads[name].items():
        np.testing.assert_allclose(
          grad, want_grads[name][leaf], atol=1e-5, err_msg=(name, leaf, chunk)
        )
      moved = 'confidence' if name == 'confidence' else 'memory'
      assert np.abs(want_grads[name][moved]).max() > 1e-3, name
    total = sum(getattr(mix, n) * want[n] for n in objective.TERMS)
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    assert loss == metrics['loss']
  # The acceptance that the confidence head learns is no loss of the drafter.
  np.testing.assert_array_equal(grads['confidence']['hidden'], 0)


def test_what_comes_behind_a_gap_is_not_trained(problem):
  trained, given = problem
  exists = jnp.ones((B, A, G), bool).at[:, :, 1].set(False)
  given = dict(given, exists=exists, inside=jnp.ones_like(exists))

  run = jax.jit(jax.value_and_grad(lambda *args: compute(ALL, *args)[0]))
  value, grads = run(trained, given)
  for name in ('hidden', 'memory', 'confidence'):
    assert np.all(grads[name][:, :, 1:] == 0), name
    assert np.all(np.abs(grads[name][:, :, 0]).max(axis=(0, 1)) > 0), name
  # As if the blocks had one slot.
  short = dict(given, exists=exists.at[:, :, 2].set(False))
  np.testing.assert_allclose(run(trained, short)[0], value, rtol=1e-6)
  # The control: without the gap they are.
  whole = dict(given, exists=jnp.ones_like(exists))
  grads = run(trained, whole)[1]
  assert np.abs(grads['hidden'][:, :, 2]).max() > 1e-3


def test_a_label_outside_the_draft_vocabulary_ends_its_block_as_a_miss():
  head = jnp.eye(4) * 20
  labels = jnp.array([[[1, 2, 3], [1, 2, 3]]])
  exists = jnp.ones((1, 2, 3), bool)
  inside = exists.at[0, 1, 1].set(False)
  loss, metrics = objective.compute(
    objective.Mix(weights='uniform'),
    jax.nn.one_hot(labels, 4),
    head,
    labels,
    exists,
    inside,
  )
  assert loss < 1e-6 and metrics['weight'] == 4
  # Three hits and one.
  assert metrics['tokens_per_round'] == 3 and metrics['num_blocks'] == 2
  assert metrics['num_out_of_vocabulary'] == 1 and metrics['num_chains'] == 2


def test_micro_batches_weighed_by_their_weight_make_the_batch(problem):
  trained, given = problem
  mix = dataclasses.replace(ALL, e2e_tv=0.0)

  def part(rows):
    cut = {'head', 'out', 'teacher_head'}
    return [
      {k: x if k in cut else x[rows] for k, x in arrays.items()}
      for arrays in (trained, given)
    ]

  run = jax.jit(lambda *args: compute(mix, *args))
  whole, _ = run(trained, given)
  parts = [run(*part(slice(b, b + 1))) for b in range(B)]
  weights = [metrics['weight'] for _, metrics in parts]
  assert abs(weights[0] - weights[1]) > 0.5
  mean = sum(w * loss for w, (loss, _) in zip(weights, parts, strict=True))
  np.testing.assert_allclose(mean / sum(weights), whole, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize('weights', ['decay', 'dpace'])
def test_without_labels_everything_is_zero_and_finite(problem, weights):
  trained, given = problem
  given = dict(given, exists=jnp.zeros((B, A, G), bool))
  mix = dataclasses.replace(ALL, weights=weights)
  (loss, metrics), grads = jax.jit(
    jax.value_and_grad(lambda x: compute(mix, x, given), has_aux=True)
  )(trained)
  assert loss == 0 and metrics['weight'] == 0 and metrics['num_blocks'] == 0
  assert all(np.all(x == 0) for x in jax.tree.leaves(grads))
  assert all(np.all(np.isfinite(x)) for x in metrics.values())


def test_only_terms_with_a_weight_are_computed_and_shown(problem):
  trained, given = problem
  mix = objective.Mix(ce=1.0, e2e_tv=0.5)
  assert mix.active == ('ce', 'e2e_tv') and mix.rows == ('ce', 'tv')
  metrics = jax.eval_shape(lambda: compute(mix, trained, given)[1])
  assert set(metrics) & set(objective.TERMS) == {'ce', 'e2e_tv'}
  only = objective.Mix(ce=0.0, lk_alpha=1.0)
  assert only.rows == ('lk',) and only.needs_teacher
  # The weights of D-PACE need the cross-entropy and no teacher.
  dpace = dataclasses.replace(only, weights='dpace')
  assert dpace.rows == ('ce', 'lk')
  assert not objective.Mix(weights='dpace').needs_teacher


def test_memory_does_not_grow_with_slots_times_vocabulary():
  def peak(num_anchors, vocab_size, chunk):
    mix = dataclasses.replace(ALL, chunk=chunk)
    shape = (1, num_anchors, 4)

    def loss(hidden, head, teacher_hidden, teacher_head):
      return objective.compute(
        mix,
        hidden,
        head,
        jnp.zeros(shape, jnp.int32),
        jnp.ones(shape, bool),
        teacher_hidden=teacher_hidden,
        teacher_head=teacher_head,
        confidence_logits=jnp.zeros(shape),
      )[0]

    shapes = [(*shape, 8), (8, vocab_size)] * 2
    args = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
    compiled = jax.jit(jax.grad(loss)).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  logits = 2 * 128 * 4 * 4096 * 4
  assert peak(128, 4096, 2) < logits / 5
  assert peak(128, 4096, 128) > logits


def refused(match, make):
  with pytest.raises(errors.UserError, match=match):
    make()


def test_what_cannot_be_meant_is_refused(problem):
  refused('all weights are 0', lambda: objective.Mix(ce=0.0))
  refused('ce=-1', lambda: objective.Mix(ce=-1.0))
  refused('kl=nan', lambda: objective.Mix(kl=float('nan')))
  refused('weights=rising', lambda: objective.Mix(weights='rising'))
  refused('dpace_alpha=2', lambda: objective.Mix(dpace_alpha=2.0))
  refused('decay_gamma=-1', lambda: objective.Mix(decay_gamma=-1.0))
  refused('chunk=0', lambda: objective.Mix(chunk=0))
  refused('kl_top_k=0', lambda: objective.Mix(kl_top_k=0))

  trained, given = problem
  labels, exists = given['labels'], given['exists']
  arrays = (trained['hidden'], trained['head'], labels, exists)
  teacher = {k: x for k, x in given.items() if k.startswith('teacher')}
  for term in objective.TERMS:
    if term != 'ce':
      mix = objective.Mix(**{'ce': 0.0, term: 1.0})
      assert mix.needs_teacher
      refused('no teacher', lambda mix=mix: objective.compute(mix, *arrays))
  mix = objective.Mix(confidence=1.0)
  refused(
    'no confidence head', lambda: objective.compute(mix, *arrays, **teacher)
  )
  many = objective.Mix(kl_topk_a=1.0, kl_top_k=V + 1)
  refused('33 tokens', lambda: objective.compute(many, *arrays, **teacher))


def test_a_perfect_drafter_has_no_loss_and_no_gradient(problem):
  trained, given = problem
  mix = dataclasses.replace(ALL, ce=0.0, kl_topk_b=0.0, confidence=0.0)
  logits = trained['hidden'] @ trained['head']

  @jax.jit
  @jax.value_and_grad
  def loss(logits, teacher):
    return objective.compute(
      mix,
      logits,
      jnp.eye(V),
      given['labels'],
      given['exists'],
      teacher_hidden=teacher,
      teacher_head=jnp.eye(V),
    )[0]

  value, grad = loss(logits, logits)
  np.testing.assert_allclose(value, 0, atol=1e-6)
  np.testing.assert_allclose(grad, 0, atol=1e-6)
  # The control: a teacher of another mind.
  value, grad = loss(logits, logits[..., ::-1])
  assert value > 0.1 and np.abs(grad).max() > 1e-3


def test_slot_weights_of_every_kind():
  counts = jnp.array([[[True, True, False]]])
  ce = -jnp.log(jnp.array([[[0.9, 0.5, 0.1]]]))

  def weights(**changes):
    mix = objective.Mix(**changes)
    return objective.slot_weights(mix, {'ce': ce}, counts)[0, 0]

  np.testing.assert_array_equal(weights(weights='uniform'), [1, 1, 0])
  np.testing.assert_allclose(weights(decay_gamma=2.0), [1, np.exp(-0.5), 0])
  np.testing.assert_allclose(
    weights(weights='dpace', dpace_alpha=0.0), [0.9 + 0.45, 0.45, 0], rtol=1e-6
  )


def test_hybrid_without_eta_is_kl_and_eta_moves_it_to_tv():
  kl, tv = jnp.array([2.0, 0.1]), jnp.array([0.9, 0.05])
  np.testing.assert_allclose(distill.lk_hybrid(kl, tv, 0.0), kl)
  np.testing.assert_allclose(distill.lk_hybrid(kl, tv, 1e3), tv)
  assert losses.weighted_mean(kl, jnp.ones(2)) == 1.05
