# SPDX-License-Identifier: MIT
"""The rules as mathematics are exact, and the known mistakes are not.

Everything is enumerated in float64: all drafts, all tests. What jspec runs is
compared with these laws in verify_enum_test.
"""

import numpy as np
import pytest

from tests.decode import exact

CHAIN, BINARY = (1, 1, 1), (2, 2)
MODES = [exact.INDEPENDENT, exact.WITHOUT]
SEEDS = range(4)


def models(seed, shape, zeros=0.0):
  rng = np.random.default_rng(seed)
  depth = len(shape)
  p = exact.random_model(rng, depth + 1, zeros=zeros)
  q = exact.random_model(rng, depth, zeros=zeros)
  return p, q


@pytest.mark.parametrize('zeros', [0.0, 0.3])
@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize(
  'rule', [exact.walk, exact.recursive, exact.block, exact.traversal]
)
def test_law_of_a_chain_is_the_targets(rule, seed, zeros):
  p, q = models(seed, CHAIN, zeros)
  law = exact.overall(rule, p, q, CHAIN, exact.INDEPENDENT)
  assert abs(sum(law.values()) - 1) < 1e-9
  assert exact.distance(p, law, len(CHAIN) + 1) < 1e-9


@pytest.mark.parametrize('zeros', [0.0, 0.3])
@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('rule', [exact.recursive, exact.traversal])
def test_law_of_a_tree_is_the_targets(rule, mode, seed, zeros):
  p, q = models(seed, BINARY, zeros)
  law = exact.overall(rule, p, q, BINARY, mode)
  assert exact.distance(p, law, 3) < 1e-9


@pytest.mark.parametrize('seed', SEEDS)
def test_walk_is_exact_whatever_the_tree(seed):
  p, q = models(seed, BINARY)
  for mode in MODES:
    law = exact.overall(exact.walk, p, q, BINARY, mode)
    assert exact.distance(p, law, 3) < 1e-9


@pytest.mark.parametrize('seed', SEEDS)
def test_traversal_of_a_chain_is_block_verification(seed):
  p, q = models(seed, CHAIN)
  for draft, _ in exact.drafts(q, CHAIN, exact.INDEPENDENT):
    laws = [
      rule(p, q, draft, exact.INDEPENDENT)
      for rule in (exact.block, exact.traversal)
    ]
    for s in set(laws[0]) | set(laws[1]):
      assert abs(laws[0].get(s, 0) - laws[1].get(s, 0)) < 1e-12


def accepted(rule, p, q, shape, mode=exact.INDEPENDENT):
  return exact.num_accepted(exact.overall(rule, p, q, shape, mode))


def test_toy_values_are_ten_and_eleven_ninths():
  p = exact.constant_model([1 / 3, 2 / 3], 3)
  q = exact.constant_model([2 / 3, 1 / 3], 2)
  assert abs(accepted(exact.recursive, p, q, (1, 1)) - 10 / 9) < 1e-12
  assert abs(accepted(exact.block, p, q, (1, 1)) - 11 / 9) < 1e-12
  assert abs(accepted(exact.traversal, p, q, (1, 1)) - 11 / 9) < 1e-12


def test_block_keeps_the_mean_of_its_clipped_products():
  p, q = models(5, CHAIN)
  expected = 0.0
  for draft, chance in exact.drafts(q, CHAIN, exact.INDEPENDENT):
    a, context = 1.0, ()
    while draft:
      ((token, draft),) = draft
      a = min(1.0, a * p[context][token] / q[context][token])
      context = (*context, token)
      expected += chance * a
  assert abs(accepted(exact.block, p, q, CHAIN) - expected) < 1e-9


def test_block_never_keeps_less_than_token_verification():
  gains = []
  for seed in range(20):
    p, q = models(seed, CHAIN)
    token = accepted(exact.recursive, p, q, CHAIN)
    gains.append(accepted(exact.block, p, q, CHAIN) - token)
  assert min(gains) > -1e-12 and max(gains) > 1e-2


@pytest.mark.parametrize('mode', MODES)
def test_traversal_keeps_more_than_recursive_on_average(mode):
  gains = []
  for seed in range(8):
    p, q = models(seed, BINARY)
    recursive = accepted(exact.recursive, p, q, BINARY, mode)
    gains.append(accepted(exact.traversal, p, q, BINARY, mode) - recursive)
  assert np.mean(gains) > 1e-3


def test_siblings_without_replacement_keep_more_than_independent_ones():
  gains = []
  for seed in range(20):
    p, q = models(seed, (2,))
    values = [accepted(exact.recursive, p, q, (2,), mode) for mode in MODES]
    gains.append(values[1] - values[0])
  assert np.mean(gains) > 1e-2


# Negative controls: each is a mistake that was made somewhere.


@pytest.mark.parametrize('rule', [exact.recursive, exact.traversal])
def test_draws_without_replacement_are_not_independent_ones(rule):
  found = []
  for seed in range(8):  # a few models do not show it
    p, q = models(seed, BINARY)
    law = exact.overall(
      rule, p, q, BINARY, exact.WITHOUT, verified_as=exact.INDEPENDENT
    )
    found.append(exact.distance(p, law, 3))
  assert np.median(found) > 1e-2


@pytest.mark.parametrize('mode', MODES)
def test_min_update_of_traversal_is_biased(mode):
  found = []
  for seed in range(8):
    p, q = models(seed, BINARY)
    law = exact.overall(
      exact.traversal, p, q, BINARY, mode, update=exact.min_update
    )
    found.append(exact.distance(p, law, 3))
  assert np.median(found) > 1e-2


RULES = [exact.recursive, exact.block, exact.traversal]


@pytest.mark.parametrize('rule', RULES)
def test_softmax_law_of_greedy_drafts_is_biased(rule):
  p = exact.constant_model([0.5, 0.3, 0.2], 2)
  soft = exact.constant_model([0.6, 0.3, 0.1], 1)
  law = rule(p, soft, [(0, [])], exact.INDEPENDENT)
  first = [law.get((token,), 0.0) for token in range(3)]
  first[0] += sum(weight for s, weight in law.items() if len(s) == 2)
  np.testing.assert_allclose(first, [5 / 6, 0, 1 / 6], atol=1e-12)
  one_hot = exact.constant_model([1.0, 0, 0], 1)
  law = rule(p, one_hot, [(0, [])], exact.INDEPENDENT)
  assert exact.distance(p, law, 2) < 1e-12


@pytest.mark.parametrize('rule', RULES)
def test_draft_law_filtered_a_second_time_is_biased(rule):
  p = exact.constant_model([0.3, 0.3, 0.4], 3)
  q = exact.constant_model([0.5, 0.3, 0.2], 2)
  again = exact.constant_model([0.625, 0.375, 0.0], 2)  # top-p 0.8 of q
  law = {}
  for draft, chance in exact.drafts(q, (1, 1), exact.INDEPENDENT):
    for s, weight in rule(p, again, draft, exact.INDEPENDENT).items():
      law[s] = law.get(s, 0.0) + chance * weight
  assert exact.distance(p, law, 3) > 1e-2


def cut_by_second_confidence(draft):
  """Verifies nothing where the token drafted second looks bad: anticipates."""
  ((_, below),) = draft
  ((second, _),) = below
  return draft if second == 0 else []


def cut_by_first_token(draft):
  """Ends the draft behind the first token, depending on it: allowed."""
  ((first, _),) = draft
  return draft if first == 0 else [(first, [])]


@pytest.mark.parametrize('rule', [exact.walk, *RULES])
def test_truncation_that_anticipates_is_biased_unless_drafts_are_walked(rule):
  rng = np.random.default_rng(0)
  p, q = exact.random_model(rng, 3), exact.random_model(rng, 2)
  for cut in (cut_by_second_confidence, cut_by_first_token):
    law = {}
    for draft, chance in exact.drafts(q, (1, 1), exact.INDEPENDENT):
      for s, weight in rule(p, q, cut(draft), exact.INDEPENDENT).items():
        law[s] = law.get(s, 0.0) + chance * weight
    error = exact.distance(p, law, 3)
    if rule is exact.walk or cut is cut_by_first_token:
      assert error < 1e-12
    else:
      assert error > 1e-2


def test_early_stop_on_a_later_confidence_gives_the_published_law():
  """Confidence of the second position depends on the first token drawn."""
  p = exact.constant_model([0.7, 0.3], 2)
  q = exact.constant_model([0.5, 0.5], 1)
  law = {}
  for draft, chance in exact.drafts(q, (1,), exact.INDEPENDENT):
    kept = draft if draft[0][0] == 0 else []
    for s, weight in exact.recursive(p, q, kept, exact.INDEPENDENT).items():
      law[s] = law.get(s, 0.0) + chance * weight
  first = [
    sum(weight for s, weight in law.items() if s[0] == token)
    for token in range(2)
  ]
  np.testing.assert_allclose(first, [0.85, 0.15], atol=1e-12)
