# SPDX-License-Identifier: MIT
"""Drafts go on as in LibraSpec's algorithm 1, row by row."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.depth import base, libraspec
from jspec.drafters import dflash, dspark, extending
from jspec.testing import drafter_suite, toy

ANCHOR = 1000


class Script(nnx.Module):
  """Row r drafts token `n` at depth n, with a confidence from a table."""

  def __init__(self, confidence, block):
    self.taps, self.num_draft_tokens, self.extends = (), block, True
    self.confidence = nnx.Variable(jnp.asarray(confidence, jnp.float32))

  def init_state(self, table, num_pages, page_size):
    return None

  def propose(self, state, table, anchor, temperature, keys):
    return self.extend(state, table, anchor, jnp.zeros_like(anchor))

  def extend(self, state, table, anchor, offset):
    del state, table
    depth = offset[:, None] + jnp.arange(self.num_draft_tokens + 1)
    sure = jnp.take_along_axis(self.confidence[...], depth, axis=1)
    # Of what comes behind it the block knows its anchor alone.
    is_known = anchor == jnp.where(offset > 0, offset, ANCHOR)
    tokens = jnp.where(is_known[:, None], depth, -7)
    return tree.Draft(
      tokens=tokens.at[:, 0].set(anchor),
      parents=tree.chain_parents(*tokens.shape),
      num_nodes=jnp.full_like(anchor, self.num_draft_tokens + 1),
      confidence=sure.at[:, 0].set(1.0),
    )


def extended(drafter, most, **options):
  policy = libraspec.LibraSpec(**options)

  def more(scores):
    rows = scores.shape[0]
    limits = jnp.full((rows,), most, jnp.int32)
    load = base.Load(is_active=jnp.ones((rows,), bool), limits=limits)
    return policy.extension(scores, load)

  return extending.Extending(drafter, more, most)


def algorithm_1(q, block, alpha, most):
  """The paper's listing for one row: drafts asked for, before backing off."""
  d = block
  while True:
    suffix, reach = 0.0, []
    for i in range(d, 0, -1):
      suffix = q[i] * (1 + suffix)
      reach.append(math.floor(alpha * suffix + i))
    e = min(reach)
    if e <= d:
      return d, e
    d = min(e, most)
    if d >= most:
      return most, most


def propose(drafter, num_rows):
  table = paged.contiguous_table(num_rows, 1)
  anchor = jnp.full((num_rows,), ANCHOR, jnp.int32)
  return jax.jit(lambda d: d.propose(None, table, anchor, None, None))(drafter)


@pytest.mark.slow
@pytest.mark.parametrize('block', [1, 3, 10])
@pytest.mark.parametrize('alpha', [2.2, 4.0])
def test_rows_go_as_far_as_the_listing(block, alpha):
  rng = np.random.default_rng(block)
  most, num_rows = 24, 40
  q = rng.beta(4, 0.4, size=(num_rows, most + 2 * block + 1))
  drafter = extended(Script(q, block), most, alpha=alpha)
  draft = propose(drafter, num_rows)
  wanted = [algorithm_1(row, block, alpha, most)[0] for row in q]
  np.testing.assert_array_equal(draft.num_nodes, 1 + np.array(wanted))
  assert len(set(wanted)) >= 3
  for row, num in enumerate(wanted):
    np.testing.assert_array_equal(
      draft.tokens[row, : num + 1], [ANCHOR, *range(1, num + 1)]
    )
    np.testing.assert_allclose(
      draft.confidence[row, 1 : num + 1], q[row, 1 : num + 1], rtol=1e-6
    )
  tree.check(draft)


def test_certain_rows_reach_the_end_and_hopeless_ones_stay():
  q = np.stack([np.ones(40), np.full(40, 0.2), np.full(40, np.nan)])
  draft = propose(extended(Script(q, 5), 20, alpha=2.0), 3)
  assert draft.num_nodes.tolist() == [21, 6, 6]


@pytest.mark.slow
@pytest.mark.parametrize('method', [dflash.METHOD, dspark.METHOD])
def test_extended_block_drafters_conform(method):
  target = toy.target()
  drafter = toy.drafter(target, method=method)
  most = 2 * drafter.num_draft_tokens + 1
  # Nearly always goes on.
  drafter_suite.run(extended(drafter, most, alpha=50.0), target)


def test_what_cannot_go_on_is_refused():
  with pytest.raises(errors.UserError, match='proposes 5 by itself'):
    extended(Script(np.ones((1, 9)), 5), 5)
  fixed = Script(np.ones((1, 9)), 5)
  fixed.extends = False
  with pytest.raises(errors.UserError, match='Script cannot go on'):
    extended(fixed, 9)
