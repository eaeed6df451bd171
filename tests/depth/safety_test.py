# SPDX-License-Identifier: MIT
"""What `safety` allows is exact by enumeration; what it refuses is biased."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.decode.verify import api as verify
from jspec.depth import api, dcut, first_drop, safety
from jspec.depth import costs as costs_lib
from tests.depth import cases, law

# Two anchors and 0 to 4 drafts. With two drafts `libraspec` reads nothing that
# matters: the first is always verified.
TABLE = costs_lib.make([2, 3, 4, 5, 6], [1.0, 1.3, 1.55, 1.7, 1.75], 0.0)
MODELS = [law.random_model(seed) for seed in range(50)]
RULES = {'token': law.token_rule, 'block': law.block_rule}
EXACT, BIASED = 1e-12, 5e-3


def worst(spec, rule, confidence):
  policy = api.make(spec)
  counts = law.kept(policy, MODELS, confidence, TABLE)
  assert len(np.unique(counts)) > 1 or spec.startswith('static')
  return max(
    law.bias(model, plan, RULES[rule])
    for model, plan in zip(MODELS, counts, strict=True)
  )


@pytest.mark.few(5)
@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize(
  'spec, confidence',
  [
    ('static,depth=1', 'token'),
    ('first_drop', 'before'),
    ('dcut,ratios=0.25', 'before'),
    ('dcut,ratios=0.5', 'before'),
    ('dcut,ratios=0.75', 'before'),
    ('dcut,floor=1,ratios=0.75', 'before'),
    ('dcut', 'prefix'),
    ('dinkelbach', 'prefix'),
    ('libraspec', 'prefix'),
    ('caddtree,scope=batch', 'prefix'),
  ],
)
def test_allowed_is_exact(rule, spec, confidence):
  safety.check(api.make(spec), rule, confidence)
  assert worst(spec, rule, confidence) < EXACT


@pytest.mark.few(4)
@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize(
  'spec, confidence',
  [
    ('dcut', 'before'),
    ('dcut,ratios=0.25/0.5/0.75/1', 'before'),
    ('dinkelbach', 'before'),
    ('libraspec_calibrated', 'before'),
    ('caddtree', 'before'),
    ('first_drop', 'token'),
    ('dcut,ratios=0.5', 'token'),
    ('dcut', 'token'),
  ],
)
def test_refused_is_biased_when_forced(rule, spec, confidence):
  with pytest.raises(errors.UserError, match='not lossless'):
    safety.check(api.make(spec), rule, confidence)
  assert worst(spec, rule, confidence) > BIASED


def test_adaptive_budget_has_the_published_size_of_bias():
  assert worst('dcut', 'token', 'before') == pytest.approx(2.3e-2, abs=1e-3)


def published_law(policy):
  """DSpark's counter-example: the law of the first token."""
  p, q = np.array([0.7, 0.3]), np.array([0.5, 0.5])
  # Steps per second of 1, 2 and 3 nodes: 1, .5 and .45.
  table = costs_lib.make([1, 2, 3], [1.0, 2.0, 1 / 0.45], 0.0)
  first = float(np.minimum(p, q).sum())
  out = np.zeros(2)
  for token in (0, 1):
    second = [1.0, 0.0][token]  # It tells which token came first.
    scores = jnp.array([[first, first * second]])
    count = int(cases.plan(policy, scores, cases.full_load(1, 2), table)[0])
    if not count:
      out += q[token] * p
      continue
    accept = min(1.0, p[token] / q[token])
    residual = np.maximum(p - q, 0)
    out[token] += q[token] * accept
    out += q[token] * (1 - accept) * residual / residual.sum()
  return out


def test_published_counter_example():
  np.testing.assert_allclose(
    published_law(first_drop.FirstDrop()), [0.7, 0.3], atol=1e-12
  )
  np.testing.assert_allclose(
    published_law(dcut.DCut()), [0.85, 0.15], atol=1e-12
  )
  with pytest.raises(errors.UserError, match='not lossless'):
    safety.check(dcut.DCut(), 'token', 'before')


@pytest.mark.parametrize('spec', api.POLICIES)
@pytest.mark.parametrize('confidence', ['prefix', 'before', 'token'])
def test_everything_is_allowed_for_drafts_that_are_not_sampled(
  spec, confidence
):
  safety.check(api.make(spec), verify.WALK, confidence)


def test_scores_of_earlier_rounds_and_none_at_all_are_allowed_everywhere():
  for rule in verify.RULES:
    for confidence in ('prefix', 'before', 'token'):
      safety.check(api.make('static,depth=3'), rule, confidence)
      safety.check(api.make('dcut,mode=stale,floor=1'), rule, confidence)


def test_trees_of_sampled_siblings_are_refused_where_nothing_is_proved():
  for rule in ('recursive', 'traversal'):
    safety.check(api.make('first_drop'), rule, 'prefix')
    with pytest.raises(errors.UserError, match=rule):
      safety.check(api.make('first_drop'), rule, 'before')


def test_rules_are_those_of_verification():
  assert set(safety.CHAIN_RULES) == set(verify.CHAIN_RULES)
  for rule in verify.RULES:
    safety.check(api.make('static'), rule, 'prefix')
  with pytest.raises(errors.UserError, match="rule 'auto'"):
    safety.check(api.make('static'), 'auto', 'prefix')
  with pytest.raises(errors.UserError, match="confidence 'max'"):
    safety.check(api.make('static'), 'walk', 'max')


def test_refusal_names_what_is_wrong_and_what_to_do():
  with pytest.raises(errors.UserError) as caught:
    safety.check(dcut.DCut(), 'block', 'before')
  for part in ('DCut', "'block'", "'before'", 'first_drop', 'rule walk'):
    assert part in str(caught.value)
  assert '\n' not in str(caught.value)
