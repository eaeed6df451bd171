# SPDX-License-Identifier: MIT
"""Mixed losses against the whole loss of AngelSpec's wrapper.

Its mask is slot by slot (a hole does not end a block) and its D-PACE products
run through masked slots, so the weights are made here its way and handed to
`objective.total`. Its L1 forgets the target's final norm and its confidence
does not; so terms with a teacher are fed one by one here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import anchors, losses, objective
from jspec.nn import layers
from tests import shared_data

CONFIGS = {
  'ce_decay_g4': dict(),
  'ce_nodecay': dict(decay_gamma=0.0),
  'ce_dpace_a05': dict(weights='dpace', dpace_alpha=0.5),
  'ce_dpace_a0': dict(weights='dpace', dpace_alpha=0.0),
  'ce_dpace_a1': dict(weights='dpace', dpace_alpha=1.0),
  'ce01_l109': dict(ce=0.1, l1=0.9),
  # Mixes of the reference: d * distill + (1 - d) * ce.
  'kl05_top5': dict(ce=0.5, kl_topk_b=0.5, kl_top_k=5),
  'kl1_top10': dict(ce=0.0, kl_topk_b=1.0, kl_top_k=10),
  'lk_alpha05': dict(ce=0.5, lk_alpha=0.5),
  'lk_hybrid1_dpace': dict(ce=0.0, lk_hybrid=1.0, weights='dpace'),
  # It drops the KL there.
  'lk_and_kl_both': dict(ce=0.7, lk_hybrid=0.3),
  'e2e1': dict(ce=1.0, e2e_tv=1.0),
  'lk_e2e': dict(ce=0.5, lk_hybrid=0.5, e2e_tv=0.5),
  'dspark_conf_plain': dict(ce=0.1, l1=0.9, confidence=1.0),
  'dspark_markov_conf': dict(ce=0.1, l1=0.9, confidence=1.0),
  'dspark_markov_only': dict(ce=1.0),
}


@pytest.fixture(scope='module')
def golden():
  file = np.load(shared_data.path('goldens/losses/dflash_tail.npz'))
  return {name: jnp.asarray(file[name]) for name in file.files}


@pytest.mark.few(5)
@pytest.mark.parametrize('name', CONFIGS)
def test_equals_the_reference_in_value_and_gradient(golden, name):
  mix = objective.Mix(**CONFIGS[name], chunk=3)
  tokens = golden['input_ids']
  at = anchors.Anchors(golden['anchors'], golden['keep_mask'])
  index, mask = anchors.label_index(at, 3, tokens.shape[1])
  mask &= anchors.gather(golden['loss_mask'] > 0.5, index)
  # The token before depth k, and the row of its state, are at depth k - 1.
  behind = jnp.minimum(at.index[..., None] + jnp.arange(3), tokens.shape[1] - 1)
  memory = golden['markov_w1'][anchors.gather(tokens, behind)]
  head = golden['lm_head'].T

  def teacher(term):
    states = golden['last_hidden_prenorm']
    if term != 'l1':
      states = layers.rms_norm(states, golden['target_norm_weight'], 1e-6)
    rows = jnp.take_along_axis(states, behind.reshape(2, -1, 1), axis=1)
    return rows.reshape(2, 4, 3, 16), head

  def loss(draft_hidden):
    hidden = draft_hidden.reshape(2, 4, 4, 16)[:, :, 1:]
    wide, wide_head, logits = hidden, head, None
    if 'markov' in name:
      wide = jnp.concatenate([hidden, memory], axis=-1)
      wide_head = jnp.concatenate([head, golden['markov_w2'].T])
    if name == 'dspark_conf_plain':
      logits = hidden @ golden['conf_plain_weight'][0] + golden['conf_bias']
    elif name == 'dspark_markov_conf':
      logits = wide @ golden['conf_weight'][0] + golden['conf_bias']
    total, terms = 0.0, {}
    for term in mix.active:
      others = {other: 0.0 for other in mix.active if other != term}
      one = dataclasses.replace(mix, **others)
      rows = objective.slot_rows(
        one,
        wide,
        wide_head,
        anchors.gather(tokens, index),
        *(teacher(term) if one.needs_teacher else ()),
      )
      everywhere = jnp.ones_like(mask)
      weights = mask * objective.slot_weights(one, rows, everywhere)
      value, means = objective.total(one, rows, weights, mask, logits)
      total, terms = total + value, terms | means
    return total, (rows['is_hit'], terms)

  with jax.default_matmul_precision('highest'):
    (value, (is_hit, terms)), grad = jax.jit(
      jax.value_and_grad(loss, has_aux=True)
    )(golden['draft_hidden'])
  np.testing.assert_allclose(value, golden[f'{name}__loss'], atol=1e-4)
  want = golden[f'{name}__grad_draft_hidden']
  np.testing.assert_allclose(grad, want, atol=1e-4)
  assert np.abs(want).max() > 1e-2
  assert set(terms) == set(mix.active)
  np.testing.assert_allclose(
    losses.acceptance(is_hit, mask)['accuracy'],
    golden[f'{name}__acc_per_position'][1:],
  )
  np.testing.assert_allclose(
    jnp.sum(mask, axis=(0, 1)), golden[f'{name}__count_per_position'][1:]
  )
