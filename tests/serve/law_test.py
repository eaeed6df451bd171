# SPDX-License-Identifier: MIT
"""The law of an engine's answers when drafts are sampled.

Thousands of requests ask for a few tokens behind the same prompt, each with a
seed of its own; the exact law of the first two comes from whole forward passes.
Pearson's chi-square with fixed seeds: a right engine fails with probability
ALPHA, once and for all. What is not allowed must be found out by far: a drafter
that lies about its law, and a policy that looks at the token it judges.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from jspec import errors
from jspec.decode import sampling
from jspec.depth import costs as costs_lib
from jspec.serve import asks
from jspec.serve import engine as engine_lib
from jspec.serve import settings as settings_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimised')]

ALPHA, CAUGHT = 1e-3, 1e-9
NUM_REQUESTS = 4096
NUM_ROWS = 64
PROMPT = 5
PARAMS = sampling.SamplingParams(temperature=1.5, top_k=6, max_tokens=4)
SETTINGS = settings_lib.Settings(
  max_rows=NUM_ROWS,
  max_len=8,
  page_size=8,
  num_rounds=3,
  row_buckets=(NUM_ROWS,),
  num_budgets=4,
  chunk_sizes=(1,),
  max_prefill_tokens=1,
)


class Unsure(drafters.Sampled):
  """Sure of a draft if a token is even: the one before it, or its own.

  Looking at its own is what a depth policy must not do.
  """

  def __init__(self, law, num_draft_tokens=3):
    super().__init__(law, num_draft_tokens)
    self.sees_own = nnx.Variable(jnp.bool_(False))
    self.confidence_depends = 'before'

  def propose(self, state, table, anchor, temperature, keys):
    draft = super().propose(state, table, anchor, temperature, keys)
    tokens = draft.tokens
    before = jnp.concatenate([tokens[:, :1], tokens[:, :-1]], axis=1)
    seen = jnp.where(self.sees_own[...], tokens, before)
    sure = jnp.where(seen % 2 == 0, 0.95, 0.05)
    return dataclasses.replace(draft, confidence=sure.at[:, 0].set(1.0))


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=16)


@pytest.fixture(scope='module')
def law(target):
  """The probabilities [V, V] of the first two tokens."""

  @jax.jit
  def behind(target, tokens):
    at = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = target.encode(tokens, at, jnp.ones_like(tokens), ())
    rows = sampling.stack([PARAMS] * tokens.shape[0])
    return sampling.law(target.logits(hidden[:, -1]), rows)

  size = target.vocab_size
  first = np.asarray(behind(target, np.full((1, 1), PROMPT, np.int32)))[0]
  texts = np.stack([np.full(size, PROMPT), np.arange(size)], axis=1)
  second = np.asarray(behind(target, texts.astype(np.int32)))
  return first[:, None].astype(np.float64) * second


def draft_law(law):
  """Not the target's, but accepted often enough to matter."""
  rough = law.sum(axis=1) + law.sum(axis=0) + 1e-3
  rough *= np.random.default_rng(1).exponential(size=rough.size)
  return rough / rough.sum()


def make(target, drafter, **changes):
  with unchecked.constructors():
    return engine_lib.Engine(
      target, drafter, dataclasses.replace(SETTINGS, **changes)
    )


def draw(engine, seed=0, wave=NUM_REQUESTS):
  """Counts [V, V] of the first two tokens, and of accepted drafts.

  Args:
    engine: has nothing else to do.
    seed: other seeds, other requests.
    wave: requests that are submitted together; the next come when all of these
      are answered.
  """
  before = engine.metrics.num_accepted.sum()
  answers = {}
  for start in range(0, NUM_REQUESTS, wave):
    for i in range(start, start + wave):
      params = dataclasses.replace(PARAMS, seed=seed * NUM_REQUESTS + i)
      request_id = engine.submit([PROMPT], asks.Ask(params=params))
      answers[request_id] = []
    while engine.has_work:
      for event in engine.step():
        answers[event.request_id] += event.tokens
  assert {len(tokens) for tokens in answers.values()} == {PARAMS.max_tokens}
  counts = np.zeros((toy.VOCAB_SIZE,) * 2, np.int64)
  for tokens in answers.values():
    counts[tuple(tokens[:2])] += 1
  return counts, engine.metrics.num_accepted.sum() - before


def p_value(counts, law):
  """Pearson's chi-square; cells that expect little are put together."""
  assert counts[law == 0].sum() == 0, 'a pair of probability 0 was drawn'
  expected = law * counts.sum()
  is_common = expected >= 8
  observed = np.append(counts[is_common], counts[~is_common].sum())
  wanted = np.append(expected[is_common], expected[~is_common].sum())
  assert len(observed) > 15  # There are cells to look at.
  keep = wanted > 0
  wanted = wanted[keep] * observed.sum() / wanted.sum()
  return stats.chisquare(observed[keep], wanted).pvalue


class Costs:
  """The first budgets cost about the same, the others far more."""

  def __init__(self, num_cheap):
    self.num_cheap = num_cheap

  def costs(self, rows, context, budgets):
    del rows, context
    cheap = [1.0 + 1e-4 * i for i in range(self.num_cheap)]
    dear = [10.0 + i for i in range(len(budgets) - self.num_cheap)]
    return costs_lib.make(budgets, cheap + dear, 0.0)


def fix_costs(engine, num_cheap):
  """The policy alone decides, by costs that stay what they are."""
  engine.forms.pinned = 'adaptive'
  engine.forms._table = Costs(num_cheap)
  engine.forms.record = lambda *args, **options: None


@pytest.fixture(scope='module')
def unsure(target, law):
  drafter = Unsure(draft_law(law))
  policies = ('first_drop', 'dcut,mode=stale')
  return make(target, drafter, rule='token', policies=policies), drafter


def test_first_drop_keeps_the_law_with_rejection_sampling(unsure, law):
  """Drafts are cut by the tokens before them, which is allowed."""
  engine, drafter = unsure
  fix_costs(engine, num_cheap=3)
  before = engine.metrics.num_by_depth.copy()
  counts, accepted = draw(engine, wave=NUM_ROWS)
  by_depth = engine.metrics.num_by_depth - before
  assert np.count_nonzero(by_depth > 0.01 * by_depth.sum()) >= 3
  assert accepted > NUM_REQUESTS / 4
  assert p_value(counts, law) > ALPHA


def test_a_policy_that_sees_the_token_it_judges_is_found_out(unsure, law):
  engine, drafter = unsure
  fix_costs(engine, num_cheap=2)
  drafter.sees_own[...] = jnp.bool_(True)
  engine.swap(drafter)
  # All rows are in the first round, which holds drafts of some.
  counts, _ = draw(engine, wave=NUM_ROWS)
  drafter.sees_own[...] = jnp.bool_(False)
  engine.swap(drafter)
  assert p_value(counts, law) < CAUGHT


def test_scores_of_an_earlier_round_keep_the_law_whatever_they_see(unsure, law):
  engine, drafter = unsure
  fix_costs(engine, num_cheap=2)
  engine.policy = 1
  drafter.sees_own[...] = jnp.bool_(True)
  engine.swap(drafter)
  before = engine.metrics.num_by_depth.copy()
  counts, accepted = draw(engine, wave=NUM_ROWS)
  engine.policy = 0
  drafter.sees_own[...] = jnp.bool_(False)
  engine.swap(drafter)
  by_depth = engine.metrics.num_by_depth - before
  assert np.count_nonzero(by_depth > 0.01 * by_depth.sum()) >= 2
  assert accepted > NUM_REQUESTS / 8
  assert p_value(counts, law) > ALPHA


def test_a_drafter_that_lies_about_its_law_is_found_out(unsure, law):
  engine, drafter = unsure
  honest = drafter.claimed[...]
  engine.forms.pinned = 'full'
  drafter.claimed[...] = (honest + 1 / honest.size) / 2
  engine.swap(drafter)
  counts, _ = draw(engine)
  drafter.claimed[...] = honest
  engine.swap(drafter)
  assert p_value(counts, law) < CAUGHT


@pytest.mark.parametrize('rule', ['block', 'recursive', 'traversal'])
def test_every_rule_keeps_the_law_whatever_form_runs(target, law, rule):
  """Plain, adaptive and full rounds take turns, row by row and in a row."""
  if rule == 'block':
    drafter = drafters.Sampled(draft_law(law), 3)
  else:
    drafter = toy.drafter(target, tree_size=7)
  engine = make(target, drafter, rule=rule, policies=('static,depth=2',))
  rng = np.random.default_rng(0)
  step = engine.step

  def stepped():
    forms = ('plain', 'adaptive', 'adaptive', 'full', 'full')
    engine.forms.pinned = forms[rng.integers(5)]
    return step()

  engine.step = stepped
  for seed in (0, 1):
    counts, accepted = draw(engine, seed)
    assert accepted > NUM_REQUESTS / 8
    assert p_value(counts, law) > ALPHA
  assert set(engine.metrics.num_launches) == {'plain', 'adaptive', 'full'}


@pytest.mark.parametrize(
  ('rule', 'policy'),
  [
    ('token', 'dcut'),
    ('block', 'libraspec'),
    ('recursive', 'first_drop'),
    ('traversal', 'dcut'),
  ],
)
def test_a_policy_that_would_bend_the_law_is_refused(target, rule, policy):
  with pytest.raises(errors.UserError, match='is not lossless'):
    make(target, Unsure(np.ones(64) / 64), rule=rule, policies=(policy,))
