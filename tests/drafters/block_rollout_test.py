# SPDX-License-Identifier: MIT
"""On-policy distillation of block drafters: what is judged is what decodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import base, block_loss, dflash, dfly, objective
from jspec.testing import toy
from jspec.train import step
from tests.train import tiny

LOSS = block_loss.LossConfig(
  num_anchors=4,
  mix=objective.Mix(chunk=4),
  on_policy=0.5,
  on_policy_anchors=4,
)


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _batch(target):
  tokens = jnp.asarray(toy.prompts(2, 20))
  ones = jnp.ones(tokens.shape, jnp.int32)
  positions = jnp.broadcast_to(jnp.arange(20), tokens.shape)
  _, taps = target.encode(tokens, positions, ones, (0, 1, 2))
  return base.DraftBatch(tokens, positions, ones, positions > 4, taps)


def _judge(target):
  graph, state = nnx.split(target)
  return step.judge_of(graph), state


@pytest.mark.parametrize(
  'method',
  [dflash.METHOD, pytest.param(dfly.METHOD, marks=pytest.mark.slow)],
)
def test_proposals_are_those_of_decoding(target, method):
  drafter = toy.drafter(target, method=method, loss_config=LOSS)
  batch = _batch(target)
  anchors, tokens = jax.jit(lambda d, b, k: d.rollout(b, k))(
    drafter, batch, jax.random.key(0)
  )

  @jax.jit
  def decode(drafter, index):
    table = paged.contiguous_table(2, 5)
    state = drafter.init_state(table, 10, 4)
    anchor = jnp.take_along_axis(batch.tokens, index[:, None], axis=1)[:, 0]
    rows = base.Committed(batch.tokens, batch.taps, index, anchor)
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, index, jnp.zeros((), bool))
    return drafter.propose(state, table, anchor, None, None).tokens[:, 1:]

  for block in range(4):
    want = decode(drafter, anchors.index[:, block])
    np.testing.assert_array_equal(tokens[:, block], want)


@pytest.mark.slow
def test_the_target_judges_proposals_as_if_it_had_read_them(target):
  drafter = toy.drafter(target, loss_config=LOSS)
  batch = _batch(target)
  judge, state = _judge(target)
  anchors, tokens = drafter.rollout(batch, jax.random.key(0))
  hidden = judge(state, batch, anchors, tokens)
  for row, block in ((0, 0), (1, 3)):
    at = int(anchors.index[row, block])
    text = jnp.concatenate([batch.tokens[row, : at + 1], tokens[row, block]])
    ones = jnp.ones((1, text.size), jnp.int32)
    want, _ = target.encode(text[None], jnp.arange(text.size)[None], ones, ())
    np.testing.assert_allclose(hidden[row, block], want[0, at:], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('method', [dfly.METHOD])
def test_term_is_added_and_reaches_the_drafter(target, method):
  judge, state = _judge(target)
  batch = _batch(target)
  found = {}
  for weight in (0.0, 0.5):
    loss = dataclasses.replace(LOSS, on_policy=weight)
    drafter = toy.drafter(target, method=method, loss_config=loss)
    assert drafter.needs_judge == (weight > 0)
    graph, params, rest = nnx.split(drafter, nnx.Param, ...)
    key = jax.random.key(1)
    seen = batch
    if weight:
      seen = step.judged(judge, drafter, state, batch, key)

    @jax.jit
    def grad(params, seen, graph=graph, rest=rest, key=key):
      def value(params):
        return nnx.merge(graph, params, rest).loss(seen, key)

      return jax.value_and_grad(value, has_aux=True)(params)

    found[weight] = grad(params, seen)
  (plain, _), plain_grads = found[0.0]
  (total, metrics), grads = found[0.5]
  np.testing.assert_allclose(
    total, plain + 0.5 * metrics['on_policy'], rtol=1e-5
  )
  assert metrics['on_policy'] > 0
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), grads, plain_grads)
  assert max(jax.tree.leaves(moved)) > 1e-5


def test_loss_without_a_judge_is_refused(target):
  drafter = toy.drafter(target, loss_config=LOSS)
  with pytest.raises(errors.UserError, match='data.mode=online'):
    drafter.loss(_batch(target), jax.random.key(0))


@pytest.mark.slow
def test_a_row_without_anchors_has_no_term(target):
  drafter = toy.drafter(target, loss_config=LOSS)
  batch = dataclasses.replace(
    _batch(target), is_answer=jnp.zeros((2, 20), bool)
  )
  judge, state = _judge(target)
  seen = step.judged(judge, drafter, state, batch, jax.random.key(0))
  loss, metrics = drafter.loss(seen, jax.random.key(0))
  assert loss == 0 and metrics['on_policy'] == 0
  assert isinstance(seen.judged, base.Judged)
  assert not np.any(
    anchors_lib.Anchors(seen.judged.index, seen.judged.keep).keep
  )


@pytest.mark.slow
def test_trains_online(tmp_path):
  tiny.train(
    tmp_path,
    data__mode='online',
    num_steps=4,
    drafter__options__loss={
      'num_anchors': 8,
      'on_policy': 0.5,
      'on_policy_anchors': 4,
    },
  )
  rows = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert 'on_policy_weight' in rows[-1]
