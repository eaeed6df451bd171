# SPDX-License-Identifier: MIT
"""An engine learns how far to trust its drafter, and answers as before."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import sampling
from jspec.depth import base as depth_lib
from jspec.depth import costs as costs_lib
from jspec.depth import dcut, sts
from jspec.serve import asks, confidence
from jspec.testing import toy
from tests.evals import drafters
from tests.serve import small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimised')]

BOAST = 4.0  # Its logits are so many times the true ones.
NUM_DRAFTS = 5
NUM_REQUESTS, NUM_TOKENS = 64, 48


class Boaster(drafters.Known):
  """Knows how likely each draft is right, and tells something bolder.

  Whether it is right is a hash of where the row stands.
  """

  def propose(self, state, table, anchor, temperature, keys):
    draft = super().propose(state, table, anchor, temperature, keys)

    def of_row(length, token):
      key = jax.random.fold_in(jax.random.key(0), length * 64 + token)
      chance, luck = jax.random.uniform(key, (2, NUM_DRAFTS))
      return 0.3 + 0.65 * chance, luck

    chance, luck = jax.vmap(of_row)(table.lengths, anchor)
    tokens = draft.tokens.at[:, 1:].add((luck > chance).astype(jnp.int32))
    told = jax.nn.sigmoid(BOAST * (jnp.log(chance) - jnp.log1p(-chance)))
    return dataclasses.replace(
      draft,
      tokens=tokens % toy.VOCAB_SIZE,
      confidence=draft.confidence.at[:, 1:].set(told),
    )


class Costs:
  """Every node costs a third of a round of anchors alone."""

  def costs(self, rows, context, budgets):
    del context
    seconds = [1 + (size - rows) / (3 * rows) for size in budgets]
    return costs_lib.make(budgets, seconds, 0.0)


class Recorder:
  """How far each launch's last plan is from that of true confidences."""

  def __init__(self):
    self.errors = []
    self.plan = jax.jit(dcut.DCut().plan)

  def __call__(self, sent, used, num_tokens, seconds):
    del num_tokens, seconds
    is_active = used.num_verified >= 0
    # Where all rows take part and none is near its end.
    if len(is_active) < small.SETTINGS.max_rows or not is_active.all():
      return
    scale = np.full(used.confidence.shape, BOAST, np.float32)
    true = sts.apply(jnp.asarray(used.confidence), jnp.asarray(scale))
    load = depth_lib.Load(
      is_active=jnp.asarray(is_active),
      limits=jnp.full(is_active.shape, NUM_DRAFTS),
    )
    wanted = self.plan(jnp.cumprod(true, axis=1), load, sent.choice.costs)
    self.errors.append(np.abs(np.asarray(wanted) - used.num_verified).sum())


def answers(engine):
  """All answers, and the errors of the plans in order."""
  engine.on_launch = recorder = Recorder()
  found = {}
  for i in range(NUM_REQUESTS):
    prompt = toy.prompts(1, 5, seed=i)[0].tolist()
    params = sampling.SamplingParams(max_tokens=NUM_TOKENS)
    found[engine.submit(prompt, asks.Ask(params=params))] = []
  while engine.has_work:
    for event in engine.step():
      found[event.request_id] += event.tokens
  return list(found.values()), np.array(recorder.errors)


def test_plans_come_near_those_of_true_confidence_and_tokens_stay():
  target = toy.target(max_len=small.MAX_LEN)
  drafter = Boaster(target, NUM_DRAFTS)
  engine = small.make(target, drafter, num_budgets=6, num_rounds=1)
  engine.forms.pinned = 'adaptive'
  engine.forms._table = Costs()
  engine.forms.record = lambda *args, **options: None
  compiled = len(engine.programs)

  engine._confidence = confidence.Confidence(drafter, is_scaled=False)
  plain, as_told = answers(engine)
  engine._confidence = confidence.Confidence(drafter, is_scaled=True)
  scaled, learning = answers(engine)

  assert plain == scaled
  assert min(len(as_told), len(learning)) > 150
  # The first launches go by what the drafter says, the last know better.
  half = len(learning) // 2
  assert learning[half:].mean() < 0.6 * as_told.mean()
  assert learning[:20].mean() > 0.8 * as_told.mean()
  figures = engine._confidence.figures()['greedy']
  np.testing.assert_allclose(figures.temperatures[:2], BOAST, rtol=0.35)
  assert figures.scaled.ece < 0.5 * figures.raw.ece
  assert len(engine.programs) == compiled
  assert engine.programs.num_missing == 0
