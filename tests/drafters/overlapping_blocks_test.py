# SPDX-License-Identifier: MIT
"""However close rows of training are, none sees features behind its anchor.

EAGLE-3's and MTP's rows have tests of this in `eagle3_steps_test.py` and
`mtp_test.py`; here are the drafters of blocks, whose blocks overlap.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import anchors, d2sd_loss, specblock_loss
from jspec.testing import toy
from tests.drafters import every_method

LENGTH, ANCHOR = 20, 5
BLOCK = {'block_size': 8, 'num_draft_tokens': 7}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _at(*index):
  index = jnp.asarray([index, index], jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


@jax.jit
def _block(drafter, batch, at):
  return drafter.train_hidden(batch, at)


@jax.jit
def _d2sd(drafter, batch, at):
  """Blocks that were given two true tokens."""
  given = jnp.full(at.index.shape, 2, jnp.int32)
  slots = d2sd_loss.slots(drafter.first, batch, at, given)
  return drafter.first.train_hidden(batch, at, slots)


@jax.jit
def _specblock(drafter, batch, at):
  """Both blocks of the rows before the anchors."""
  rows = anchors.Anchors(at.index - 1, at.keep)
  draws = specblock_loss.Draws(rows, jnp.asarray([2], jnp.int32))
  return jnp.concatenate(specblock_loss.states(drafter, batch, draws), axis=2)


@pytest.mark.parametrize(
  'name', every_method.some([*every_method.BLOCK, 'd2sd', 'specblock'])
)
def test_block_sees_no_feature_at_or_behind_its_anchor(target, name):
  """Anchors 1, 3 and 9 apart, blocks of 8; features move one at a time."""
  changes = {} if name == 'specblock' else BLOCK
  drafter = every_method.drafter(target, name, **changes)
  run = {'d2sd': _d2sd, 'specblock': _specblock}.get(name, _block)
  answer = np.ones((2, LENGTH), bool)
  batch = every_method.batch(target, drafter.taps, answer)
  for distance in (1, 3, 9):
    second = ANCHOR + distance
    before = np.asarray(run(drafter, batch, _at(ANCHOR, second)))
    for position in (ANCHOR - 1, ANCHOR, ANCHOR + 1, second - 1, second + 1):
      changed = every_method.with_tap(batch, position)
      after = np.asarray(run(drafter, changed, _at(ANCHOR, second)))
      moved = np.abs(after - before).max(axis=(0, 2, 3)) > 1e-4
      np.testing.assert_array_equal(
        moved, [position < ANCHOR, position < second]
      )
