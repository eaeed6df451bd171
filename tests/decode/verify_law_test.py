# SPDX-License-Identifier: MIT
"""The law of the first four tokens over several rounds, on the real sampler.

Pearson's chi-square against the exact law, for every rule at three temperatures
with three filters; seeds are fixed, so a right rule passes for good. Several
rounds matter: a rule that looks at random numbers behind the token where it
stops must not meet them again in the next round.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.decode import keys, sampling
from jspec.decode.verify import api, block, decision
from tests.decode import toy_rounds

pytestmark = pytest.mark.usefixtures('optimised')

SETTINGS = [
  {'temperature': temperature, **filters}
  for temperature in (0.3, 1.0, 1.5)
  for filters in ({'top_p': 0.9}, {'top_k': 3}, {'min_p': 0.1})
]
CASES = {
  'walk': (toy_rounds.TREE, None),
  'token': (toy_rounds.CHAIN, 'independent'),
  'block': (toy_rounds.CHAIN, 'independent'),
  'recursive': (toy_rounds.TREE, 'independent'),
  'recursive_without': (toy_rounds.TREE, 'without_replacement'),
  'traversal': (toy_rounds.TREE, 'independent'),
  'traversal_without': (toy_rounds.TREE, 'without_replacement'),
}
FAST = 'traversal_without'
ALPHA = 1e-4 / len(CASES) / len(SETTINGS)  # Bonferroni
DRAWS, BATCH = 201_600, 12_600
LEAST_EXPECTED = 8


def rows(settings, first_seed):
  """A batch whose rows take the settings in turn."""
  params = sampling.stack([sampling.SamplingParams(**s) for s in settings])
  params = jax.tree.map(lambda x: jnp.tile(x, BATCH // len(settings)), params)
  seeds = first_seed + jnp.arange(BATCH, dtype=jnp.uint32)
  return dataclasses.replace(params, seeds=seeds)


def draw(accept, parents, draws, settings, num_draws, tables=None):
  """Counts of each setting, num_draws in all, and accepted drafts a row."""
  tables = toy_rounds.tables() if tables is None else tables
  target, drafter = (jnp.asarray(x) for x in tables)
  found = np.zeros((len(settings), toy_rounds.VOCAB**toy_rounds.LENGTH), int)
  accepted = 0
  for first in range(0, num_draws, BATCH):
    params = rows(settings, first)
    out, num = toy_rounds.decode(
      accept, parents, draws, target, drafter, params
    )
    accepted += int(num.sum())
    for i in range(len(settings)):
      found[i] += toy_rounds.counts(out[i :: len(settings)])
  return found, accepted / num_draws


def p_value(counts, law):
  assert counts[law == 0].sum() == 0, 'tokens of probability 0 were drawn'
  expected = law * counts.sum()
  is_common = expected >= LEAST_EXPECTED
  observed = np.append(counts[is_common], counts[~is_common].sum())
  wanted = np.append(expected[is_common], expected[~is_common].sum())
  keep = wanted > 0
  return stats.chisquare(observed[keep], wanted[keep]).pvalue


def p_values(case, num_draws):
  parents, draws = CASES[case]
  rule = case.removesuffix('_without')

  def accept(*args):
    return api.accept(*args, rule)

  found, accepted = draw(accept, parents, draws, SETTINGS, num_draws)
  assert accepted > 0.8  # drafts had a part in it, in several rounds
  target, _ = toy_rounds.tables()
  return [
    p_value(counts, toy_rounds.exact_law(target, settings))
    for counts, settings in zip(found, SETTINGS, strict=True)
  ]


@pytest.mark.slow
def test_law_over_rounds_is_the_targets():
  assert min(p_values(FAST, DRAWS)) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_law_over_rounds_is_the_targets_in_many_draws(case):
  assert min(p_values(case, DRAWS * len(SETTINGS))) > ALPHA


def keyed_by_position(logits, draft, params, anchor_positions):
  """Wrong: tests draw from the positions of the tokens, whatever the round."""
  index = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  tests = jax.vmap(
    lambda step: keys.uniforms(
      params.seeds, anchor_positions + step, keys.TEST
    ),
    out_axes=1,
  )(index)
  bonus = keys.uniforms(params.seeds, anchor_positions, keys.BONUS)
  return decision.accept_with(block.decide, logits, draft, params, tests, bonus)


@pytest.mark.slow
def test_law_is_bent_when_tests_are_keyed_by_position_alone():
  settings = {'temperature': 1.0}
  tables = toy_rounds.tables(noise=2.0)  # more is turned down, and seen again
  law = toy_rounds.exact_law(tables[0], settings)

  def p_value_of(accept):
    counts, _ = draw(accept, *CASES['block'], [settings], 2 * BATCH, tables)
    return p_value(counts[0], law)

  assert p_value_of(keyed_by_position) < 1e-12
  assert p_value_of(block.accept) > ALPHA
