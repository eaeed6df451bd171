# SPDX-License-Identifier: MIT
"""Batches with few labels or none: every method's loss stays finite.

And which tokens are trained on at all: each one of an answer, no other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.drafters import (
  anchors,
  eagle3_loss,
  mtp_loss,
  specblock_loss,
)
from jspec.testing import toy
from tests.drafters import every_method

LENGTH = 16
# Answer tokens of both rows; blocks draft at least three tokens.
ANSWERS = {
  'none': ([], []),
  'one': ([6], []),
  'at the very end': ([LENGTH - 1], [LENGTH - 2, LENGTH - 1]),
  'shorter than a block': ([6, 7], [3]),
}


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _answer(*rows):
  is_answer = np.zeros((2, LENGTH), bool)
  for row, tokens in enumerate(rows):
    is_answer[row, list(tokens)] = True
  return is_answer


@pytest.mark.slow
@pytest.mark.parametrize('name', every_method.NAMES)
def test_loss_is_finite_however_few_labels_there_are(target, name):
  drafter = every_method.drafter(target, name)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  @jax.jit
  def grad(params, batch, key):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, key)

    return jax.value_and_grad(loss, has_aux=True)(params)

  num_blocks = {}
  for case, answer in ANSWERS.items():
    batch = every_method.batch(target, drafter.taps, _answer(*answer))
    (loss, metrics), grads = grad(params, batch, jax.random.key(0))
    assert np.isfinite(loss), case
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(grads)), case
    assert all(np.all(np.isfinite(x)) for x in metrics.values()), case
    num_blocks[case] = int(metrics['num_blocks'])
    if case == 'none':
      assert loss == 0 and metrics['tokens_per_round'] == 1
      assert all(not np.any(x) for x in jax.tree.leaves(grads))
      # Both kinds of accuracy go by their names.
      assert {'joint_accuracy', 'conditional_accuracy'} <= metrics.keys()
    elif name != 'd2sd':  # Which measures blocks that were given nothing.
      assert loss > 0
  if name == 'd2sd':
    return
  assert num_blocks == {
    'none': 0,
    'one': 1,
    'at the very end': 3,
    'shorter than a block': 3,
  }


HEADER = 5


def _block(batch, key):
  at = anchors.sample(batch.is_answer, batch.segments, 2, key)
  return anchors.label_run(at, batch.is_answer, batch.segments, 3)


def _eagle3(batch, key):
  config = eagle3_loss.LossConfig(num_anchors=2)
  at = eagle3_loss.anchors(batch, config, key)
  index, _ = anchors.label_run(at, batch.is_answer, batch.segments, 3)
  return index, eagle3_loss.labels(batch, at, 3).exists


def _mtp(batch, key):
  labels = mtp_loss.labels(batch, None, 3)
  rows, found = mtp_loss.sample(labels, 2, key)
  return rows[..., None] + 2 + jnp.arange(3), found.exists


def _specblock(drafter):
  def run(batch, key):
    draws = specblock_loss.draw(drafter, batch, key)
    return specblock_loss.labels(batch, draws.rows, 0, 3)

  return run


@pytest.mark.parametrize('name', ['block', 'eagle3', 'mtp', 'specblock'])
def test_every_answer_token_is_a_label_and_no_row_is_without_one(target, name):
  """An answer of four behind a header, in both rows; one ends the text."""
  drawn = {'block': _block, 'eagle3': _eagle3, 'mtp': _mtp}
  if name == 'specblock':
    drafter = every_method.drafter(target, name, num_anchors=2)
    drawn[name] = _specblock(drafter)
  answers = range(HEADER, HEADER + 4), range(LENGTH - 4, LENGTH)
  batch = every_method.batch(target, (0, 1, 2), _answer(*answers))
  keys = jax.random.split(jax.random.key(0), 1000)
  run = jax.jit(jax.vmap(lambda key: drawn[name](batch, key)))
  index, exists = map(np.asarray, run(keys))
  assert np.all(exists[..., 0]), 'a drawn row has no label'
  assert index.shape == (1000, 2, 2, 3)
  for row, tokens in enumerate(answers):
    count = np.bincount(index[:, row][exists[:, row]], minlength=LENGTH)
    assert set(np.flatnonzero(count)) == set(tokens)
    # The first is the label of one row only: drawn 2 times in 4.
    assert count[tokens[0]] == pytest.approx(500, abs=80)
    assert np.all(np.diff(count[list(tokens)[:3]]) > 0)
