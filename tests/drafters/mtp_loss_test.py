# SPDX-License-Identifier: MIT
"""Which slots MTP's loss counts, by hand, and that no term is ever silent."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.drafters import mtp, mtp_loss
from jspec.testing import toy
from tests.drafters import small_mtp

# Two documents and padding; the first has an answer with a hole.
SEGMENTS = [[1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]]
ANSWER = [[0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0]]
# Row -> tokens that steps 0, 1, 2 predict; a run ends at the hole, at the end
# of the document, and has to begin at the first step.
TABLE = {0: (2, 3), 1: (3,), 3: (5, 6), 4: (6,), 7: (9, 10), 8: (10,)}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _batch(target, answer=ANSWER):
  batch = small_mtp.batch(target, SEGMENTS * 2, length=12)
  return dataclasses.replace(
    batch, is_answer=jnp.asarray(np.array(answer * 2, bool))
  )


@jax.jit
def _loss(drafter, batch):
  return drafter.loss(batch, jax.random.key(0))


@pytest.mark.slow
def test_labels_are_the_ones_of_the_table(target):
  batch = _batch(target)
  labels = mtp_loss.labels(batch, None, 3)
  for row in range(12):
    want = TABLE.get(row, ())
    np.testing.assert_array_equal(
      labels.exists[0, row], [step < len(want) for step in range(3)]
    )
    for step, token in enumerate(want):
      assert labels.columns[0, row, step] == batch.tokens[0, token]


@pytest.mark.slow
def test_loss_is_the_mean_over_the_table_against_the_law_before_each_token(
  target,
):
  """Cross-entropy to the data, KL to the law that the target had there."""
  loss_config = {'on_policy': False, 'ground_truth': True, 'ce': 0.5}
  drafter = small_mtp.drafter(
    target, loss={**loss_config, 'lk': 0.0, 'kl': 2.0, 'step_decay': 0.5}
  )
  batch = _batch(target)
  loss, metrics = _loss(drafter, batch)
  head = np.asarray(drafter.head[...])
  logq = np.asarray(jax.nn.log_softmax(drafter.train_hidden(batch) @ head))
  logp = np.asarray(jax.nn.log_softmax(drafter.first_states(batch.taps) @ head))
  total = weight = 0.0
  for b in range(2):
    for row, tokens in TABLE.items():
      for step, token in enumerate(tokens):
        q, p = logq[b, row, step], logp[b, token - 1]
        ce, kl = -q[batch.tokens[b, token]], np.sum(np.exp(p) * (p - q))
        total += 0.5**step * (0.5 * ce + 2.0 * kl)
        weight += 0.5**step
  np.testing.assert_allclose(loss, total / weight, rtol=1e-4)
  np.testing.assert_allclose(metrics['weight'], weight)
  assert metrics['num_blocks'] == 2 * len(TABLE)


def test_label_outside_the_draft_vocabulary_ends_its_run(target):
  drafter = small_mtp.drafter(target, small_mtp.DRAFT_IDS)
  batch = _batch(target)
  tokens = np.full((2, 12), 3, np.int32)
  tokens[:, 2] = 4  # No column: row 0 has no label, nor what follows.
  batch = dataclasses.replace(batch, tokens=jnp.asarray(tokens))
  _, metrics = _loss(drafter, batch)
  steps = [s for row in TABLE if row for s, _ in enumerate(TABLE[row])]
  np.testing.assert_allclose(
    metrics['weight'], 2 * np.sum(0.8 ** np.array(steps)), rtol=1e-6
  )


@pytest.mark.slow
def test_loss_and_gradients_are_zero_without_an_answer(target):
  loss = {'ttt_length': 2, 'e2e_direct': 1.0, 'e2e_weighted': 1.0}
  drafter = small_mtp.drafter(target, loss=loss, **small_mtp.EXPERTS)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  batch = _batch(target, [[0] * 12])

  @jax.jit
  def grad(params):
    def loss(params):
      return _loss(nnx.merge(graph, params, rest), batch)

    return jax.value_and_grad(loss, has_aux=True)(params)

  (loss, metrics), grads = grad(params)
  assert loss == 0 and metrics['num_blocks'] == 0
  assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_logits_of_all_rows_never_exist(target):
  """Neither for the loss nor for the tokens of on-policy steps."""
  other = toy.target(vocab_size=61)  # 64 columns would be those of qkv.
  drafter = small_mtp.drafter(other, loss={'chunk': 4, 'ce': 1.0})
  batch = small_mtp.batch(target, length=12)
  key = jax.random.key(0)
  text = str(jax.make_jaxpr(lambda: drafter.loss(batch, key))())
  assert 'f32[2,4,61]' in text
  sizes = {
    int(rows) for rows in re.findall(r'f32\[2,(\d+),(?:\d+,)?61\]', text)
  }
  assert sizes == {4}


TERMS = {
  'ce': {},
  'ce_data': {'ground_truth': True},
  'kl': {},
  'kl_top': {'top_k': 8},
  'kl_top_raw': {'top_k': 8, 'renormalise': False},
  'tv': {},
  'tv_top': {'top_k': 8},
  'lk': {},
  'e2e_direct': {},
  'e2e_weighted': {'e2e_term': 'lk'},
}


def test_every_term_alone_is_the_loss_and_trains(target):
  """One program: each term's loss, and its gradient for the states."""
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(2, 4, 3, 32)), jnp.float32)
  states = jnp.asarray(rng.normal(size=(2, 4, 3, 32)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, 64, (2, 4, 3)), jnp.int32)
  counts = jnp.ones((2, 4, 3), bool)
  nothing = dict.fromkeys(mtp_loss.STEP_TERMS + mtp_loss.CHAIN_TERMS, 0.0)
  head = target.head[...]

  @jax.jit
  def grads():
    found = {}
    for name, settings in TERMS.items():
      weight = {name.removesuffix('_data').split('_top')[0]: 3.0}
      config = mtp.LossConfig(**{**nothing, **weight, **settings})
      # What a setting does not need may be missing.
      of_teacher = (states, head) if config.compared else (None, None)

      def loss(hidden, config=config, of_teacher=of_teacher):
        return mtp_loss.compute(
          config, hidden, head, labels, counts, *of_teacher
        )[:2]

      found[name] = jax.value_and_grad(loss, has_aux=True)(hidden)
    return found

  for name, ((loss, metrics), grad) in grads().items():
    term = name.removesuffix('_data').split('_top')[0]
    np.testing.assert_allclose(
      loss,
      3 * np.average(metrics[term], weights=0.8 ** np.arange(3))
      if np.ndim(metrics[term])
      else 3 * metrics[term],
      rtol=1e-5,
    )
    assert np.all(np.abs(grad).max(-1) > 1e-6), name


@pytest.mark.slow
def test_tokens_per_round_is_about_the_text_whatever_the_labels(target):
  """With the target's argmax for labels, agreement has a name of its own."""
  found = {}
  for is_text in (False, True):
    loss = {'ground_truth': is_text, 'ce': 1.0, 'on_policy': False}
    _, found[is_text] = _loss(
      small_mtp.drafter(target, loss=loss), _easy(target)
    )
  name = 'tokens_per_round'
  np.testing.assert_allclose(found[False][name], found[True][name])
  assert f'teacher_{name}' not in found[True]
  # The negative control: the two differ here.
  assert abs(found[False][f'teacher_{name}'] - found[False][name]) > 0.01


def _easy(target):
  """Text of which the drafter has some right."""
  batch = _batch(target)
  drafter = small_mtp.drafter(target, loss={'on_policy': False})
  likely = jnp.argmax(drafter.train_hidden(batch) @ target.head[...], axis=-1)
  tokens = batch.tokens.at[:, 2:6].set(likely[:, :4, 0])
  return dataclasses.replace(batch, tokens=tokens)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'ttt_length': 0}, 'ttt_length=0'),
    ({'chunk': 0}, 'chunk=0'),
    ({'kl': -1.0}, 'kl=-1.0: expected 0 up'),
    ({'step_decay': 0.0}, 'step_decay=0.0'),
    ({'step_decay': 1.5}, 'step_decay=1.5'),
    ({'ce': 0.0, 'lk': 0.0}, 'every weight is 0'),
    ({'e2e_term': 'ce'}, "e2e_term='ce'"),
    ({'renormalise': False, 'lk': 0.0, 'kl': 1.0}, 'with top_k=0'),
    ({'renormalise': False, 'top_k': 8, 'kl': 1.0}, 'with lk'),
    ({'top_k': 8, 'lk': 0.0}, 'top_k=8'),
    ({'ground_truth': True, 'ce': 0.0}, 'ground_truth'),
  ],
)
def test_config_refuses_what_could_not_act(fields, message):
  with pytest.raises(errors.UserError, match=message):
    mtp.LossConfig(**fields)
