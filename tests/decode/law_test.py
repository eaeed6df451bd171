# SPDX-License-Identifier: MIT
"""The law of the first two tokens, on a real model of 512 tokens.

Every row of a wide batch draws two tokens behind the same start with a seed of
its own; the exact law of the pair comes from whole forward passes. Pearson's
chi-square with fixed seeds: a right sampler fails with probability ALPHA, once
and for all. A drafter that lies about its law must be found out by far.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.decode import round as round_lib
from jspec.decode import sampling
from tests import stories260k
from tests.evals import drafters

pytestmark = pytest.mark.usefixtures('optimised')

ALPHA = 1e-3
NUM_ROWS = 4096
NUM_BATCHES = 5
PARAMS = sampling.SamplingParams(temperature=1.4, top_k=12, top_p=0.95)
START = b' the'  # many pairs may follow; after BOS it is always `Once upon`
LEAST_EXPECTED = 8


@pytest.fixture(scope='module')
def target():
  return stories260k.load()


def start_id():
  return stories260k.vocabulary()[0].index(START)


def exact_law(target):
  """The probabilities [V, V] of the pair of tokens behind START."""
  vocab_size = target.vocab_size

  @jax.jit
  def law(target, tokens):
    positions = jnp.broadcast_to(
      jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape
    )
    hidden, _ = target.encode(tokens, positions, jnp.ones_like(tokens), ())
    rows = sampling.stack([PARAMS] * tokens.shape[0])
    return sampling.law(target.logits(hidden[:, -1]), rows)

  start = np.full((1, 1), start_id(), np.int32)
  first = np.asarray(law(target, start), np.float64)[0]
  pairs = np.stack(
    [np.full(vocab_size, start_id()), np.arange(vocab_size)], axis=1
  )
  second = np.asarray(law(target, pairs.astype(np.int32)), np.float64)
  return first[:, None] * second


@functools.partial(jax.jit, static_argnames='rule')
def pairs(target, drafter, empty, rows, start, *, rule):
  """Two tokens of every row behind `start`, and the accepted drafts."""
  state = dataclasses.replace(
    empty,
    anchor=jnp.full((NUM_ROWS,), start, jnp.int32),
    remaining=jnp.full((NUM_ROWS,), 2, jnp.int32),
    sampling=rows,
  )
  state = round_lib.run_rounds(
    target,
    drafter,
    state,
    jnp.int32(2),
    jnp.bool_(False),
    rule=rule,
  )
  return state.output[:, :2], state.stats.num_accepted


def draw(target, drafter, *, rule, num_batches=NUM_BATCHES):
  """Counts [V, V] of the first two tokens, and of accepted drafts."""
  empty = round_lib.init_state(
    target,
    drafter,
    num_rows=NUM_ROWS,
    max_len=8,
    page_size=8,
    num_stop_ids=1,
  )
  counts = np.zeros((target.vocab_size,) * 2, np.int64)
  accepted = 0
  rows = sampling.stack([PARAMS] * NUM_ROWS)
  for batch in range(num_batches):
    seeds = jnp.arange(NUM_ROWS, dtype=jnp.uint32) + batch * NUM_ROWS
    out, num_accepted = pairs(
      target,
      drafter,
      empty,
      dataclasses.replace(rows, seeds=seeds),
      start_id(),
      rule=rule,
    )
    np.add.at(counts, tuple(np.asarray(out).T), 1)
    accepted += int(num_accepted.sum())
  return counts, accepted


def p_value(counts, law):
  """Pearson's chi-square; cells that expect little are put together."""
  assert counts[law == 0].sum() == 0, 'a pair of probability 0 was drawn'
  expected = law * counts.sum()
  is_common = expected >= LEAST_EXPECTED
  observed = np.append(counts[is_common], counts[~is_common].sum())
  wanted = np.append(expected[is_common], expected[~is_common].sum())
  assert len(observed) > 100  # the test has cells to look at
  keep = wanted > 0
  return stats.chisquare(
    observed[keep], wanted[keep] * observed.sum() / wanted.sum()
  ).pvalue


def draft_law(law):
  """A law that is not the target's, but accepted often enough to matter."""
  first = law.sum(axis=1)
  noise = np.random.default_rng(0).exponential(size=first.size)
  q = np.where(first > 0, first, 1e-4) * noise
  return q / q.sum()


@pytest.mark.slow
def test_plain_decoding_has_the_exact_law(target):
  counts, _ = draw(target, None, rule='walk')
  assert counts.sum() == NUM_ROWS * NUM_BATCHES >= 20000
  assert p_value(counts, exact_law(target)) > ALPHA


@pytest.mark.slow
def test_sampled_drafts_keep_the_law_and_a_lie_does_not(target):
  law = exact_law(target)
  q = draft_law(law)
  counts, accepted = draw(target, drafters.Sampled(q), rule='token')
  assert accepted > NUM_ROWS  # drafts had a part in it
  assert p_value(counts, law) > ALPHA
  flat = (q + 1 / q.size) / 2
  liar = drafters.Sampled(q, claimed=flat)
  counts, _ = draw(target, liar, rule='token', num_batches=1)
  assert p_value(counts, law) < 1e-12


@pytest.mark.slow
def test_deterministic_drafts_keep_the_law(target):
  counts, accepted = draw(target, drafters.Known(target, 2), rule='walk')
  assert accepted > 1000
  assert p_value(counts, exact_law(target)) > ALPHA
