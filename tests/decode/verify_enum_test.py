# SPDX-License-Identifier: MIT
"""Exact laws of the compiled rules, by following both ends of every test.

`decide` says with what chance each node passed its test and what law the last
token has. With uniforms of 0 (passes if it can) and just below 1 (fails if it
can) in all combinations, every branch is followed: an outcome has probability
product of chance or 1 - chance over the tested nodes, and 1/2 for each node
that was not looked at. So the law of the compiled float32 code is added up
without drawing anything, and compared with the rule in float64, draft by draft.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import sampling
from jspec.decode.verify import block, recursive, residual, traversal
from tests.decode import exact

CHAIN, BINARY = (1, 1, 1), (2, 2)
RULES = {
  'block': (block, exact.block),
  'recursive': (recursive, exact.recursive),
  'traversal': (traversal, exact.traversal),
}
TREE_CASES = [
  (rule, mode)
  for rule in ('recursive', 'traversal')
  for mode in (exact.INDEPENDENT, exact.WITHOUT)
]
PASS, FAIL = 0.0, 1 - 2.0**-24  # the ends of what a uniform can be
TOLERANCE = 2e-6


@functools.partial(jax.jit, static_argnums=0)
def decide(rule, logits, draft, params, tests):
  return rule(logits, draft, params, tests)


def flattened(draft):
  """Tokens, parents and contexts of the nodes, level by level."""
  tokens, parents, contexts, level = [0], [-1], [()], [(0, draft)]
  while level:
    below = []
    for parent, children in level:
      for token, inner in children:
        below.append((len(tokens), inner))
        tokens.append(token)
        parents.append(parent)
        contexts.append((*contexts[parent], token))
    level = below
  return tokens, parents, contexts


def batch(drafts, raw, q, num_nodes, mode):
  """One row a draft: the draft and the target's logits."""
  num_rows, vocab = len(drafts), len(raw[()])
  tokens = np.zeros((num_rows, num_nodes), np.int32)
  parents = np.zeros((num_rows, num_nodes), np.int32)  # padding hangs anywhere
  live = np.zeros((num_rows,), np.int32)
  logits = np.full((num_rows, num_nodes, vocab), np.nan, np.float32)
  # The support in reverse order behind a padding entry; garbage at leaves.
  ids = np.zeros((num_rows, num_nodes, vocab + 1), np.int32)
  ids[..., 1:] = np.arange(vocab)[::-1]
  probs = np.full(ids.shape, np.nan, np.float32)
  for row, draft in enumerate(drafts):
    flat = flattened(draft)
    num = live[row] = len(flat[0])
    tokens[row, :num], parents[row, :num] = flat[0], flat[1]
    for node, context in enumerate(flat[2]):
      with np.errstate(divide='ignore'):
        logits[row, node] = np.log(raw[context])
      if node in flat[1]:
        probs[row, node] = [0, *q[context][::-1]]
  return jnp.asarray(logits), tree.Draft(
    tokens=jnp.asarray(tokens),
    parents=jnp.asarray(parents),
    num_nodes=jnp.asarray(live),
    confidence=jnp.ones(tokens.shape),
    q=tree.SparseLaw(jnp.asarray(ids), jnp.asarray(probs), draws=mode),
  )


def laws(rule, drafts, raw, q, shape, mode, settings=None):
  """The law of what a round commits, one for each draft."""
  num_nodes = 1 + sum(np.cumprod(shape))
  ends = list(itertools.product([PASS, FAIL], repeat=num_nodes - 1))
  tests = np.array([(FAIL, *end) for end in ends], np.float32)
  logits, draft = batch(drafts, raw, q, num_nodes, mode)
  each = functools.partial(jnp.repeat, repeats=len(ends), axis=0)
  settings = {'temperature': 1.0, **(settings or {})}
  num_rows = len(drafts) * len(ends)
  params = sampling.stack([sampling.SamplingParams(**settings)])
  params = jax.tree.map(lambda x: jnp.repeat(x, num_rows), params)
  decision = decide(
    rule,
    each(logits),
    jax.tree.map(each, draft),
    params,
    jnp.tile(jnp.asarray(tests), (len(drafts), 1)),
  )
  chances = np.asarray(decision.chances, np.float64)
  is_pass = np.tile(tests == PASS, (len(drafts), 1))
  factors = np.where(is_pass, chances, 1 - chances)
  factors = np.where(chances < 0, 0.5, factors)[:, 1:]
  outcome = np.prod(factors, axis=1)
  last = np.asarray(decision.weights, np.float64)
  last /= last.sum(axis=1, keepdims=True)
  path, num = np.asarray(decision.path), np.asarray(decision.num_accepted)
  tokens = np.asarray(draft.tokens)
  found = []
  for row in range(len(drafts)):
    law = {}
    for i in range(row * len(ends), (row + 1) * len(ends)):
      kept = tokens[row, path[i, 1 : num[i] + 1]]
      exact.add(law, tuple(kept.tolist()), last[i], outcome[i])
    found.append(law)
  return found


def overall(rule, p, q, shape, mode, verified_as=None, raw=None, **settings):
  """The law of a round over all drafts, and the largest error of one."""
  pairs = list(exact.drafts(q, shape, mode))
  drafts, weights = zip(*pairs, strict=True)
  compiled, twin = RULES[rule]
  mode = verified_as or mode
  found = laws(compiled.decide, drafts, raw or p, q, shape, mode, settings)
  law, worst = {}, 0.0
  for draft, weight, given in zip(drafts, weights, found, strict=True):
    wanted = twin(p, q, draft, mode)
    for s in set(given) | set(wanted):
      worst = max(worst, abs(given.get(s, 0) - wanted.get(s, 0)))
    for s, chance in given.items():
      law[s] = law.get(s, 0.0) + weight * chance
  return law, worst


def models(seed, shape, zeros=0.0):
  rng = np.random.default_rng(seed)
  depth = len(shape)
  p = exact.random_model(rng, depth + 1, zeros=zeros)
  return p, exact.random_model(rng, depth, zeros=zeros)


@pytest.mark.parametrize('seed, zeros', [(0, 0.0), (1, 0.3), (2, 0.3)])
@pytest.mark.parametrize('rule', RULES)
def test_law_of_a_chain_is_the_targets(rule, seed, zeros):
  p, q = models(seed, CHAIN, zeros)
  law, worst = overall(rule, p, q, CHAIN, exact.INDEPENDENT)
  assert worst < TOLERANCE
  assert exact.distance(p, law, len(CHAIN) + 1) < TOLERANCE


@pytest.mark.parametrize('seed, zeros', [(0, 0.0), (1, 0.3), (4, 0.3)])
@pytest.mark.parametrize('rule, mode', TREE_CASES)
def test_law_of_a_tree_is_the_targets(rule, mode, seed, zeros):
  p, q = models(seed, BINARY, zeros)
  law, worst = overall(rule, p, q, BINARY, mode)
  assert worst < TOLERANCE
  assert exact.distance(p, law, 3) < TOLERANCE


@pytest.mark.parametrize('rule, mode', TREE_CASES)
def test_three_siblings_may_use_up_the_support(rule, mode):
  p, q = models(7, (3, 1), 0.3)
  law, worst = overall(rule, p, q, (3, 1), mode)
  assert worst < TOLERANCE
  assert exact.distance(p, law, 3) < TOLERANCE


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize(
  'settings', [{'top_k': 2}, {'top_p': 0.8}, {'min_p': 0.3}]
)
def test_law_is_the_filtered_one_when_the_target_is_filtered(rule, settings):
  raw = exact.constant_model([0.66, 0.12, 0.22], 4)
  p = exact.constant_model([0.75, 0.0, 0.25], 4)
  q = exact.constant_model([0.5, 0.25, 0.25], 3)
  law, worst = overall(
    rule, p, q, CHAIN, exact.INDEPENDENT, None, raw, **settings
  )
  assert worst < TOLERANCE
  assert exact.distance(p, law, 4) < TOLERANCE


@pytest.mark.parametrize(
  'rule, value',
  [('recursive', 10 / 9), ('block', 11 / 9), ('traversal', 11 / 9)],
)
def test_expected_accepted_on_the_toy(rule, value):
  p = exact.constant_model([1 / 3, 2 / 3, 0], 3)
  q = exact.constant_model([2 / 3, 1 / 3, 0], 2)
  law, _ = overall(rule, p, q, (1, 1), exact.INDEPENDENT)
  assert abs(exact.num_accepted(law) - value) < TOLERANCE


@pytest.mark.parametrize('rule', RULES)
def test_equal_laws_accept_all_and_disjoint_ones_nothing(rule):
  p = exact.constant_model([0.5, 0.3, 0.2, 0, 0], 4)
  law, _ = overall(rule, p, p, CHAIN, exact.INDEPENDENT)
  assert abs(exact.num_accepted(law) - 3) < 1e-5
  q = exact.constant_model([0, 0, 0, 0.4, 0.6], 3)
  law, _ = overall(rule, p, q, CHAIN, exact.INDEPENDENT)
  assert exact.num_accepted(law) == 0
  assert exact.distance(p, law, 1) < TOLERANCE


# Negative controls.


@pytest.mark.parametrize('rule', ['recursive', 'traversal'])
def test_enumeration_fails_when_draws_are_taken_for_independent(rule):
  p, q = models(2, BINARY)
  law, worst = overall(rule, p, q, BINARY, exact.WITHOUT, exact.INDEPENDENT)
  assert worst < TOLERANCE  # the rule is computed right, it is the wrong rule
  assert exact.distance(p, law, 3) > 1e-2


def retraced(module):
  """The rule as another function, so that it is traced again."""
  return lambda *args: module.decide(*args)


@pytest.mark.parametrize('mode', [exact.INDEPENDENT, exact.WITHOUT])
def test_enumeration_fails_when_traversal_takes_the_min_update(
  mode, monkeypatch
):
  turn_down = residual.turn_down

  def wrong(r, token, alpha, draws):
    new, after = turn_down(r, token, alpha, draws)
    is_token = r.is_inside & (r.ids == token[:, None])
    taken = jnp.sum(jnp.where(is_token, r.q, 0.0), axis=1)
    total = residual.left_mass(r, alpha)
    wrong_after = jnp.minimum(1.0, total / jnp.maximum(1 - taken, 1e-9))
    return new, jnp.where(taken > 0, wrong_after, after)

  p, q = models(0, BINARY)
  monkeypatch.setattr(residual, 'turn_down', wrong)
  monkeypatch.setitem(RULES, 'wrong', (None, exact.traversal))
  pairs = list(exact.drafts(q, BINARY, mode))
  found = laws(
    retraced(traversal), [draft for draft, _ in pairs], p, q, BINARY, mode
  )
  law = {}
  for (_, weight), given in zip(pairs, found, strict=True):
    for s, chance in given.items():
      law[s] = law.get(s, 0.0) + weight * chance
  assert exact.distance(p, law, 3) > 1e-2
