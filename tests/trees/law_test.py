# SPDX-License-Identifier: MIT
"""Drawn trees, verified: the tokens follow the target's law.

The builders and the rules meet here: a tree grown from a table of draft laws
along its paths is verified against a table of target laws.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.decode import keys, sampling
from jspec.decode.verify import recursive, traversal
from jspec.trees import grow, sequoia
from tests.trees import laws

pytestmark = pytest.mark.usefixtures('optimised')

VOCAB, ROWS = 4, 40_000
TOPOLOGY = sequoia.build([0.4, 0.25, 0.15], 9, 3)
RULES = {'recursive': recursive.accept, 'traversal': traversal.accept}


@functools.cache
def tables():
  rng = np.random.default_rng(0)
  return laws.table(rng, 1, VOCAB, 3), laws.table(rng, 1, VOCAB, 4)


@functools.partial(jax.jit, static_argnames=('rule', 'draws', 'label'))
def decode(temperature, tables, *, rule, draws, label):
  """One round of every row: tokens to commit and drafts accepted."""
  q, p = tables
  q = jnp.broadcast_to(q, (ROWS, *q.shape[1:]))
  step, state = laws.by_slot(q, grow.beam_width(TOPOLOGY), VOCAB)
  zeros, ones = jnp.zeros((ROWS,), jnp.int32), jnp.ones((ROWS,))
  seeds = jnp.arange(ROWS, dtype=jnp.uint32)
  draft, _ = grow.build(
    TOPOLOGY,
    step,
    state,
    laws.root(q, VOCAB),
    zeros,
    ones * temperature,
    keys.row_keys(seeds, zeros + 1, keys.DRAFT),
    draws=draws,
  )
  law = dataclasses.replace(draft.q, draws=label)
  draft = dataclasses.replace(draft, q=law)
  context = [zeros]
  for node in range(1, TOPOLOGY.num_nodes):
    above = context[TOPOLOGY.parents[node]]
    context.append(above * VOCAB + draft.tokens[:, node] + 1)
  logits = p[0][jnp.stack(context, axis=1)]
  params = sampling.Sampling(ones, zeros, ones, 0 * ones, seeds)
  result = RULES[rule](logits, draft, params, zeros)
  return result.tokens, result.num_accepted


def p_value(tokens, num_accepted):
  """Of the first two tokens, the second drawn plainly where none was kept."""
  p = np.exp(tables()[1][0].astype(float))
  p /= p.sum(-1, keepdims=True)
  first, second = np.asarray(tokens[:, 0]), np.array(tokens[:, 1])
  rng = np.random.default_rng(1)
  for row in np.flatnonzero(np.asarray(num_accepted) == 0):
    second[row] = rng.choice(VOCAB, p=p[first[row] + 1])
  found = np.bincount(first * VOCAB + second, minlength=VOCAB**2)
  expected = (p[0][:, None] * p[1 : VOCAB + 1]).ravel() * ROWS
  rare = expected < 5
  found = np.append(found[~rare], found[rare].sum())
  expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
  expected *= found.sum() / expected.sum()
  return stats.chisquare(found, expected).pvalue


@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('draws', ['without_replacement', 'independent'])
@pytest.mark.parametrize('temperature', [1.0, 0.03])
def test_tokens_follow_the_target_when_the_draft_is_drawn(
  rule, draws, temperature
):
  """At 0.03 most children cannot be drawn and repeat their sibling."""
  result = decode(temperature, tables(), rule=rule, draws=draws, label=draws)
  assert p_value(*result) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
def test_wrong_way_of_drawing_is_noticed(rule):
  """Negative control: drawn without replacement, verified as independent."""
  result = decode(
    1.0, tables(), rule=rule, draws='without_replacement', label='independent'
  )
  assert p_value(*result) < 1e-6
