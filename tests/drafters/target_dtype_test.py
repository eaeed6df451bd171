# SPDX-License-Identifier: MIT
"""Drafters in float32 beside a target in bfloat16, as TPUs serve them.

Traced only: a loop whose state changes its dtype is found there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.cache import paged
from jspec.drafters import base
from jspec.testing import toy
from tests.drafters import every_method

ROWS, PAGES, PAGE = 2, 4, 8


@pytest.fixture(scope='module')
def target():
  return toy.target()


def beside_bfloat16(drafter):
  """What is the target's takes the target's dtype; weights keep theirs."""
  theirs = nnx.state(drafter, nnx.Not(nnx.Param))
  nnx.update(
    drafter,
    jax.tree.map(
      lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, theirs
    ),
  )
  assert drafter_dtypes(drafter, nnx.Param) == {jnp.dtype('float32')}
  assert jnp.dtype('bfloat16') in drafter_dtypes(drafter, nnx.Not(nnx.Param))


def drafter_dtypes(drafter, of):
  return {x.dtype for x in jax.tree.leaves(nnx.state(drafter, of))}


@pytest.mark.few(1)
@pytest.mark.parametrize('name', every_method.NAMES)
def test_the_loss_can_be_differentiated(target, name):
  drafter = every_method.drafter(target, name)
  beside_bfloat16(drafter)
  structure, params, rest = nnx.split(drafter, nnx.Param, ...)
  batch = every_method.batch(target, drafter.taps, np.ones((2, 16), bool))

  def loss(params):
    return nnx.merge(structure, params, rest).loss(batch, jax.random.key(0))[0]

  gradient = jax.eval_shape(jax.grad(loss), params)
  assert {x.dtype for x in jax.tree.leaves(gradient)} == {jnp.dtype('float32')}


@pytest.mark.few(4)
@pytest.mark.parametrize('name', every_method.NAMES)
def test_a_round_keeps_the_dtypes_of_its_state(target, name):
  drafter = every_method.drafter(target, name)
  beside_bfloat16(drafter)
  table = paged.contiguous_table(ROWS, PAGES)
  state = drafter.init_state(table, ROWS * PAGES, PAGE)
  num_nodes = drafter.num_draft_tokens + 1
  rows = base.Committed(
    tokens=jnp.zeros((ROWS, num_nodes), jnp.int32),
    taps=jnp.zeros(
      (ROWS, num_nodes, len(drafter.taps), target.width), jnp.bfloat16
    ),
    num_rows=jnp.ones((ROWS,), jnp.int32),
    next_token=jnp.zeros((ROWS,), jnp.int32),
  )

  def round_(state, anchor, rows):
    draft = drafter.propose(state, table, anchor, None, None)
    after = drafter.commit(state, table, rows)
    return jax.tree.leaves(draft), jax.tree.leaves(after)

  anchor = jnp.zeros((ROWS,), jnp.int32)
  _, after = jax.eval_shape(round_, state, anchor, rows)
  before = jax.tree.leaves(state)
  assert [(x.shape, x.dtype) for x in after] == [
    (x.shape, x.dtype) for x in before
  ]
