# SPDX-License-Identifier: MIT
"""Losses against a teacher, row by row, against AngelSpec's.

Logits are given there; with an identity for the head they are hidden states.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import distill, losses
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import layers
from tests import shared_data


def read(name):
  file = np.load(shared_data.path(f'goldens/losses/{name}.npz'))
  return {key: jnp.asarray(file[key]) for key in file.files}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def rows_of(student, teacher, names, top_k=None, labels=None):
  """`linear_xent` on logits, in chunks that do not fit."""
  size = student.shape[-1]
  return linear_xent.linear_xent(
    student,
    jnp.eye(size),
    losses=names,
    labels=labels,
    **(
      dict(teacher_hidden=teacher, teacher_head=jnp.eye(size))
      if set(names) & set(linear_xent.OF_TEACHER)
      else {}
    ),
    top_k=top_k,
    row_chunk=7,
  )


ROWS = {
  'ce': (('ce',), None, None),
  'kl_full': (('kl',), None, None),
  # A floor of 1e-9 under the teacher: nothing to be seen of it here.
  'kl_eps': (('kl',), None, None),
  'kl_topk_a': (('kl_topk_a',), 8, None),
  'kl_topk_b': (('kl_topk_b',), 10, None),
  'tv': (('tv',), None, None),
  'tv_topk8': (('tv_topk',), 8, None),
  'dflash_l1': (('tv',), None, lambda tv: 2 * tv),
  'dflash_lk_alpha': (('lk',), None, None),
  'dflash_lk_hybrid': (
    ('kl', 'tv'),
    None,
    lambda kl, tv: distill.lk_hybrid(kl, tv, 3.0),
  ),
  'lk_eta3': (
    ('kl', 'tv'),
    None,
    lambda kl, tv: distill.lk_hybrid(kl, tv, 3.0),
  ),
  'lk_eta1': (
    ('kl', 'tv'),
    None,
    lambda kl, tv: distill.lk_hybrid(kl, tv, 1.0),
  ),
  'lk_eta3_topk8': (
    ('kl_topk_a', 'tv_topk'),
    8,
    lambda kl, tv: distill.lk_hybrid(kl, tv, 3.0),
  ),
}


@pytest.mark.few(5)
@pytest.mark.parametrize('name', ROWS)
def test_a_row_equals_the_reference_in_value_and_gradient(name):
  golden = read('elementwise')
  names, top_k, combine = ROWS[name]

  def loss(student):
    out = rows_of(
      student, golden['teacher_logits'], names, top_k, golden['targets']
    )
    values = [out[n] for n in names]
    value = combine(*values) if combine else values[0]
    return jnp.sum(value), value

  (_, value), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    golden['student_logits']
  )
  np.testing.assert_allclose(value, golden[name], atol=1e-4)
  np.testing.assert_allclose(grad, golden[f'grad_{name}'], atol=1e-4)
  assert np.abs(golden[f'grad_{name}']).max() > 1e-2


def test_confidence_equals_the_reference():
  golden = read('elementwise')
  tv = rows_of(golden['student_logits'], golden['teacher_logits'], ('tv',))[
    'tv'
  ]
  np.testing.assert_allclose(1 - tv, golden['accept_rate'], atol=1e-5)
  bce = distill.confidence(golden['confidence_logits'], tv)
  np.testing.assert_allclose(bce, golden['confidence_bce'], atol=1e-5)


@pytest.mark.parametrize('alpha', [0.0, 0.25, 0.5, 1.0])
def test_dpace_weights_equal_the_reference(alpha):
  golden = read('weights_e2e')
  chance = golden['dpace_confidences']
  got = losses.dpace_weights(
    -jnp.log(chance), jnp.ones(chance.shape, bool), alpha
  )
  np.testing.assert_allclose(
    got, golden[f'dpace_weights_alpha{alpha}'], atol=1e-5
  )


def test_end_to_end_equals_the_reference_in_value_and_gradient():
  golden = read('weights_e2e')
  counts = golden['e2e_mask'] > 0.5

  def loss(student):
    out = rows_of(
      student.reshape(-1, 32), golden['e2e_teacher'].reshape(-1, 32), ('tv',)
    )
    return distill.end_to_end(out['tv'].reshape(counts.shape), counts)

  value, grad = jax.jit(jax.value_and_grad(loss))(golden['e2e_student'])
  np.testing.assert_allclose(value, golden['e2e_loss'], atol=1e-5)
  np.testing.assert_allclose(grad, golden['e2e_grad_student'], atol=1e-5)
  assert np.abs(golden['e2e_grad_student']).max() > 1e-3


def test_end_to_end_of_mtp_chains_equals_the_reference():
  golden = read('weights_e2e')
  ell, alpha, mask = (
    golden[f'mtp_e2e_{name}'].T for name in ('ell', 'alpha', 'mask')
  )
  # There a chain counts as a whole or not at all.
  counts = jnp.all(mask > 0.5, axis=-1, keepdims=True) & (mask > 0.5)
  np.testing.assert_allclose(
    distill.end_to_end(1 - alpha, counts), golden['mtp_e2e_direct'], atol=1e-5
  )
  np.testing.assert_allclose(
    distill.end_to_end_surrogate(ell, 1 - alpha, counts),
    golden['mtp_e2e_weighted'],
    atol=1e-5,
  )


@pytest.mark.parametrize('name', ['kl_p', 'kl_hs'])
def test_eagle_soft_cross_entropy_equals_the_reference(name):
  golden = read('eagle_mtp_opd')
  if name == 'kl_p':
    teacher = (jnp.log(golden['target_p']), jnp.eye(32))
  else:
    teacher = (golden['target_hidden'], golden['target_lm_head'].T)
  p = jax.nn.softmax(teacher[0] @ teacher[1])
  entropy = -jnp.sum(p * jnp.log(p), axis=-1)
  valid = golden['valid_idx']
  head = golden['draft_lm_head'].T

  def loss(prenorm):
    hidden = layers.rms_norm(prenorm, golden['norm_weight'], 1e-6)[valid]
    kl = linear_xent.linear_xent(
      hidden,
      head,
      losses=('kl',),
      teacher_hidden=teacher[0][valid],
      teacher_head=teacher[1],
      row_chunk=4,
    )['kl']
    # Soft cross-entropy is the KL and what the teacher's entropy adds.
    return jnp.sum(kl + entropy[valid]), hidden

  (value, hidden), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    golden['prenorm_hidden']
  )
  np.testing.assert_allclose(value, golden[f'{name}_sum'], atol=1e-4)
  np.testing.assert_allclose(grad, golden[f'{name}_grad'], atol=1e-4)
  assert golden[f'{name}_count'] == valid.size
  best = linear_xent.linear_argmax(hidden, head, row_chunk=4)
  goal = linear_xent.linear_argmax(teacher[0][valid], teacher[1], row_chunk=5)
  assert jnp.sum(best == goal) == golden[f'{name}_correct']


MTP = {
  'ce_self': (None, None),
  'ce_gt': (None, None),
  'kl': (('kl',), None),
  'kl_a8': (('kl_topk_a',), 8),
  'kl_b8': (('kl_topk_b',), 8),
  'tv_pp': (('tv',), None),
  'lk_pp': (('kl', 'tv'), None),
  'lk_top8_pp': (('kl_topk_a', 'tv_topk'), 8),
}


@pytest.mark.parametrize('name', MTP)
def test_mtp_losses_equal_the_reference(name):
  golden = read('eagle_mtp_opd')
  names, top_k = MTP[name]
  valid = golden['valid_idx']
  head = golden['target_lm_head'].T
  hidden = golden['prenorm_hidden'][valid]
  teacher = golden['target_hidden'][valid]
  best = linear_xent.linear_argmax(teacher, head)
  labels = golden['mtp_gt'][valid] if name == 'ce_gt' else best
  out = linear_xent.linear_xent(
    hidden,
    head,
    losses=('ce', *(names or ())),
    labels=labels,
    teacher_hidden=teacher if names else None,
    teacher_head=head if names else None,
    top_k=top_k,
  )
  want_ce, want, _, count, _ = golden[f'mtp_{name}']
  np.testing.assert_allclose(jnp.sum(out['ce']), want_ce, atol=1e-4)
  assert count == valid.size
  if names is None:
    assert want == 0
    return
  values = out[names[0]]
  if len(names) == 2:
    values = distill.lk_hybrid(out[names[0]], out[names[1]], 3.0)
  np.testing.assert_allclose(jnp.sum(values), want, atol=1e-4)
  if f'mtp_{name}_ell' in golden:
    np.testing.assert_allclose(
      values, golden[f'mtp_{name}_ell'][valid], atol=1e-4
    )
    np.testing.assert_allclose(
      1 - out[names[-1]], golden[f'mtp_{name}_alpha'][valid], atol=1e-5
    )
