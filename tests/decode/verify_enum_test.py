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
# One shape for all, so that each rule is compiled once.
ROWS, NODES, VOCAB = 2048, 7, 3


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


def batch(drafts, raw, q):
  """One row a draft: logits, tokens, parents, live nodes, ids and laws."""
  num_rows = len(drafts)
  tokens = np.zeros((num_rows, NODES), np.int32)
  parents = np.zeros((num_rows, NODES), np.int32)  # padding hangs anywhere
  live = np.zeros((num_rows,), np.int32)
  logits = np.full((num_rows, NODES, VOCAB), np.nan, np.float32)
  # The support in reverse order behind a padding entry; garbage at leaves.
  ids = np.zeros((num_rows, NODES, VOCAB + 1), np.int32)
  ids[..., 1:] = np.arange(VOCAB)[::-1]
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
  return logits, tokens, parents, live, ids, probs


def followed(rule, columns, tests, mode, settings):
  """The decisions of all rows, in batches of one size, as numpy arrays."""
  params = sampling.stack([sampling.SamplingParams(**settings)])
  params = jax.tree.map(lambda x: jnp.repeat(x, ROWS), params)
  parts = []
  for first in range(0, len(tests), ROWS):
    # The last batch starts over from its first row to be as long.
    index = first + np.arange(ROWS) % min(ROWS, len(tests) - first)
    logits, tokens, parents, live, ids, probs, u = (
      jnp.asarray(x[index]) for x in (*columns, tests)
    )
    draft = tree.Draft(
      tokens=tokens,
      parents=parents,
      num_nodes=live,
      confidence=jnp.ones(tokens.shape),
      q=tree.SparseLaw(ids, probs, draws=mode),
    )
    parts.append(decide(rule, logits, draft, params, u))
  joined = jax.tree.map(lambda *x: np.concatenate(x)[: len(tests)], *parts)
  return joined


def laws(rule, drafts, raw, q, mode, settings=None):
  """The law of what a round commits, one for each draft."""
  columns = batch(drafts, raw, q)
  tokens, live = columns[1], columns[3]
  ends = list(itertools.product([PASS, FAIL], repeat=max(live) - 1))
  padding = [FAIL] * (NODES - max(live))
  tests = np.array([(FAIL, *end, *padding) for end in ends], np.float32)
  tests = np.tile(tests, (len(drafts), 1))
  decision = followed(
    rule,
    [np.repeat(x, len(ends), axis=0) for x in columns],
    tests,
    mode,
    {'temperature': 1.0, **(settings or {})},
  )
  chances = decision.chances.astype(np.float64)
  factors = np.where(tests == PASS, chances, 1 - chances)
  factors = np.where(chances < 0, 0.5, factors)[:, 1 : max(live)]
  outcome = np.prod(factors, axis=1)
  last = decision.weights.astype(np.float64)
  last /= last.sum(axis=1, keepdims=True)
  found = []
  for row in range(len(drafts)):
    law = {}
    for i in range(row * len(ends), (row + 1) * len(ends)):
      path = decision.path[i, 1 : decision.num_accepted[i] + 1]
      exact.add(law, tuple(tokens[row, path].tolist()), last[i], outcome[i])
    found.append(law)
  return found


def overall(
  rule,
  p,
  q,
  shape,
  mode,
  *,
  verified_as=None,
  raw=None,
  drawn=None,
  cut=lambda draft: draft,
  **settings,
):
  """The law of a round over all drafts, and the largest error of one.

  Args:
    rule: a name of `RULES`.
    p: the target.
    q: the drafter, as it says.
    shape: of the drafts.
    mode: how siblings are drawn.
    verified_as: how the drafter says they are; None is the truth.
    raw: the target before the filters of `settings`.
    drawn: what drafts are drawn from; None is q, as it should be.
    cut: what is verified of a draft.
    **settings: filters.
  """
  pairs = list(exact.drafts(drawn or q, shape, mode))
  drafts, weights = [cut(draft) for draft, _ in pairs], [w for _, w in pairs]
  compiled, twin = RULES[rule]
  mode = verified_as or mode
  found = laws(compiled.decide, drafts, raw or p, q, mode, settings)
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


@pytest.mark.few(2)
@pytest.mark.parametrize('seed, zeros', [(0, 0.0), (1, 0.3), (2, 0.3)])
@pytest.mark.parametrize('rule', RULES)
def test_law_of_a_chain_is_the_targets(rule, seed, zeros):
  p, q = models(seed, CHAIN, zeros)
  law, worst = overall(rule, p, q, CHAIN, exact.INDEPENDENT)
  assert worst < TOLERANCE
  assert exact.distance(p, law, len(CHAIN) + 1) < TOLERANCE


@pytest.mark.few(2)
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
    rule, p, q, CHAIN, exact.INDEPENDENT, raw=raw, **settings
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
  p = exact.constant_model([0.7, 0.3, 0], 4)
  law, _ = overall(rule, p, p, CHAIN, exact.INDEPENDENT)
  assert abs(exact.num_accepted(law) - 3) < 1e-5
  q = exact.constant_model([0, 0, 1.0], 3)
  law, _ = overall(rule, p, q, CHAIN, exact.INDEPENDENT)
  assert exact.num_accepted(law) == 0
  assert exact.distance(p, law, 1) < TOLERANCE


@pytest.mark.parametrize('rule', RULES)
def test_one_draft_is_accepted_as_often_as_laws_overlap(rule):
  """Sum of min(p, q), where an equal draw would reach the sum of p q."""
  p = exact.constant_model([0.5, 0.3, 0.2], 2)
  q = exact.constant_model([0.4, 0.35, 0.25], 1)
  law, _ = overall(rule, p, q, (1,), exact.INDEPENDENT)
  assert abs(exact.num_accepted(law) - 0.9) < TOLERANCE
  law = exact.overall(exact.walk, p, q, (1,), exact.INDEPENDENT)
  assert abs(exact.num_accepted(law) - p[()] @ q[()]) < TOLERANCE


# Negative controls.


RAW = [0.75, 0.15, 0.1]
FILTERED = [5 / 6, 1 / 6, 0.0]  # the two best of RAW
TWICE = [0.9454, 0.0378, 0.0168]  # RAW at temperature 0.5
ONE_HOT = [1.0, 0.0, 0.0]


def bent_by(rule, drawn, claimed):
  """The error where drafts come from another law than they claim."""
  p = exact.constant_model([0.4, 0.3, 0.3], 3)
  drawn = exact.constant_model(drawn, 2)
  claimed = exact.constant_model(claimed, 2)
  law, _ = overall(rule, p, claimed, (1, 1), exact.INDEPENDENT, drawn=drawn)
  return exact.distance(p, law, 3)


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize(
  'drawn, claimed',
  [(FILTERED, RAW), (RAW, TWICE), (ONE_HOT, RAW)],
  ids=['filter_forgotten', 'processed_again', 'softmax_of_greedy'],
)
def test_law_is_bent_when_drafts_come_from_another_law(rule, drawn, claimed):
  assert bent_by(rule, drawn, claimed) > 1e-2
  assert bent_by(rule, drawn, drawn) < TOLERANCE


@pytest.mark.parametrize('rule', RULES)
def test_token_outside_the_claimed_law_is_not_taken_for_a_draw(rule):
  """So a draft filtered once more costs acceptance, but not the law."""
  assert bent_by(rule, RAW, FILTERED) < TOLERANCE


def behind_the_second(draft):
  """Verifies nothing where the token drafted second looks bad: anticipates."""
  ((_, below),) = draft
  return draft if below[0][0] == 0 else []


def behind_the_first(draft):
  """Ends a draft behind its first token, depending on it: allowed."""
  ((first, _),) = draft
  return draft if first == 0 else [(first, [])]


@pytest.mark.parametrize('rule', RULES)
def test_law_is_bent_when_truncation_anticipates(rule):
  p, q = models(0, (1, 1))
  args = rule, p, q, (1, 1), exact.INDEPENDENT
  law, worst = overall(*args, cut=behind_the_second)
  assert worst < TOLERANCE and exact.distance(p, law, 3) > 1e-2
  law, _ = overall(*args, cut=behind_the_first)
  assert exact.distance(p, law, 3) < TOLERANCE


@pytest.mark.parametrize('rule', ['recursive', 'traversal'])
def test_enumeration_fails_when_draws_are_taken_for_independent(rule):
  p, q = models(2, BINARY)
  law, worst = overall(
    rule, p, q, BINARY, exact.WITHOUT, verified_as=exact.INDEPENDENT
  )
  assert worst < TOLERANCE  # the rule is computed right, it is the wrong rule
  assert exact.distance(p, law, 3) > 1e-2


def retraced(module):
  """The rule as another function, so that it is traced again."""
  return lambda *args: module.decide(*args)


def test_enumeration_fails_when_traversal_takes_the_min_update(monkeypatch):
  mode = exact.WITHOUT
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
  pairs = list(exact.drafts(q, BINARY, mode))
  found = laws(retraced(traversal), [draft for draft, _ in pairs], p, q, mode)
  law = {}
  for (_, weight), given in zip(pairs, found, strict=True):
    for s, chance in given.items():
      law[s] = law.get(s, 0.0) + weight * chance
  assert exact.distance(p, law, 3) > 1e-2
