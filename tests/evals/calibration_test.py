# SPDX-License-Identifier: MIT
"""Confidence is judged by what became of the drafts, whatever it says."""

import dataclasses
import json
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.data import sources
from jspec.decode import sampling
from jspec.depth import sts
from jspec.evals import calibration, repetition
from jspec.serve import engine as engine_lib
from tests.evals import drafters, small

K = small.NUM_DRAFT_TOKENS
# Three right drafts and a bonus: five rounds, the last with room for 3 drafts.
PARAMS = sampling.SamplingParams(max_tokens=20)
NUM_ROUNDS = 5
SURE = 0.8


class Sure(drafters.Known):
  """Says that every draft is right with the same chance."""

  def propose(self, *given):
    draft = super().propose(*given)
    confidence = jnp.full_like(draft.confidence, SURE).at[:, 0].set(1.0)
    return dataclasses.replace(draft, confidence=confidence)


def talk(num=12):
  return [
    sources.Prompt(f'p{i}', (f'w{1 + i} w{3 + 2 * i}',)) for i in range(num)
  ]


@pytest.fixture(scope='module')
def sure(loaded):
  return Sure(loaded.model, K)


@pytest.fixture(autouse=True)
def few_engines(compiled, monkeypatch):
  """Every engine is made once; its requests are forgotten when they end."""
  plain_make = engine_lib.Engine

  def make(target, drafter, chosen, *, costs):
    key = (id(target), id(drafter), 'engine')
    if key not in compiled:
      chosen = dataclasses.replace(chosen, chunk_sizes=(16,), page_size=8)
      compiled[key] = plain_make(target, drafter, chosen, costs=costs)
    compiled[key].swap(drafter)  # It says something else than it did.
    return compiled[key]

  monkeypatch.setattr(engine_lib, 'Engine', make)
  monkeypatch.setattr(sts, 'MIN_ROUNDS', 8)


def judge(loaded, drafter, num_right, **given):
  drafter.set(num_right)
  return calibration.run(loaded, drafter, talk(), PARAMS, num_rows=4, **given)


def halves():
  fitted = sum(calibration.is_for_fit(prompt.id) for prompt in talk())
  return fitted, len(talk()) - fitted


@pytest.mark.slow
def test_figures_are_those_of_what_became_of_the_drafts(loaded, sure):
  seen = []
  result = judge(
    loaded, sure, 3, on_progress=lambda done, total: seen.append((done, total))
  )
  fitted, judged = halves()
  assert result['num_prompts_fitted'] == fitted
  assert result['num_rounds_fitted'] == NUM_ROUNDS * fitted
  assert result['num_rounds'] == NUM_ROUNDS * judged
  assert result['repeating'] == []
  assert seen[-1] == (12, 12)
  before = result['before']['confidence']['by_position']
  # The fourth draft does not fit the end of an answer, and is always wrong.
  assert [at['count'] for at in before] == [5 * judged] * 3 + [4 * judged]
  for at, is_right in zip(before, (1, 1, 1, 0), strict=True):
    assert at['accepted'] == is_right
    assert at['confidence'] == pytest.approx(SURE, abs=1e-5)
    assert at['ece'] == pytest.approx(abs(is_right - SURE), abs=1e-5)
    assert at['brier'] == pytest.approx((is_right - SURE) ** 2, abs=1e-5)
    assert at['auroc'] is None  # There is one outcome only.
  whole = result['before']['survival']['by_position']
  for g, at in enumerate(whole):
    assert at['confidence'] == pytest.approx(SURE ** (g + 1), abs=1e-5)
  together = result['before']['confidence']['all']
  assert together['count'] == 19 * judged
  assert together['auroc'] == pytest.approx(0.5)
  assert together['accepted'] == pytest.approx(15 / 19)


@pytest.mark.slow
def test_temperatures_make_survival_right(loaded, sure):
  result = judge(loaded, sure, 3)
  held_out = result['held_out']
  assert held_out['is_taken']
  assert held_out['brier_after'] < held_out['brier_before']
  for g, t in enumerate(result['temperatures']):
    # Surer where all is right; where nothing is, as unsure as may be.
    assert t < 1 if g < 3 else t == pytest.approx(10)
  for name in ('confidence', 'survival'):
    before = result['before'][name]['by_position']
    after = result['after'][name]['by_position']
    # No temperature makes the last a no: it is 1/2 at least, behind three yes.
    num = K if name == 'confidence' else K - 1
    for a, b in list(zip(after, before, strict=True))[:num]:
      assert a['ece'] < b['ece']
      assert a['brier'] < b['brier']


@pytest.mark.slow
def test_drafter_that_is_never_right_is_seen_through(loaded, sure):
  """The same confidences and other outcomes give other figures."""
  result = judge(loaded, sure, 0)
  first, *others = result['before']['confidence']['by_position']
  assert first['accepted'] == 0
  assert first['ece'] == pytest.approx(SURE, abs=1e-5)
  # Behind a rejection nothing was tested; a survival is 0 all the same.
  assert [at['count'] for at in others] == [0] * 3
  assert all(at['ece'] is None for at in others)
  survival = result['before']['survival']['by_position']
  assert all(at['accepted'] == 0 and at['count'] > 0 for at in survival)


@pytest.mark.slow
def test_result_is_json_and_table_is_markdown(loaded, sure):
  result = judge(loaded, sure, 0, drafter_name='sure')
  assert json.loads(json.dumps(result, allow_nan=False)) == result
  text = calibration.table(result)
  rows = [line for line in text.splitlines() if line.startswith('| ')]
  assert len(rows) == 2 * (2 + K)
  assert 'drafter sure' in text and 'n/a -> n/a' in text
  assert '0.800 -> 0.' in text


@pytest.mark.slow
def test_few_rounds_leave_the_temperature_and_are_told(
  loaded, sure, monkeypatch
):
  monkeypatch.setattr(sts, 'MIN_ROUNDS', 1000)
  result = judge(loaded, sure, 3)
  assert result['temperatures'] == [1.0] * K
  assert result['held_out']['is_taken']  # They are no worse than none.
  assert 'fewer than 1000 rounds' in calibration.table(result)


@pytest.mark.slow
def test_repeating_answers_are_left_out(loaded, sure, monkeypatch):
  monkeypatch.setattr(repetition, 'repeats', lambda tokens: True)
  result = judge(loaded, sure, 3)
  assert result['num_rounds'] == result['num_rounds_fitted'] == 0
  assert len(result['repeating']) == 12
  text = calibration.table(result)
  assert '12 answers repeat themselves' in text
  # Nothing was held out, so nothing proves temperatures.
  assert result['held_out']['brier_before'] is None
  assert 'Temperatures stay 1' in text


def rounds(confidence, num_verified, num_accepted):
  return calibration.Rounds(
    np.zeros(len(confidence), int),
    np.array(confidence),
    np.array(num_verified),
    np.array(num_accepted),
  )


def test_confidence_of_what_was_not_verified_is_not_known():
  told = [[0.9, 0.4, 1.0000001], [0.2, 0.7, 0.1], [np.nan] * 3]
  got = calibration.confidences(rounds(told, [3, 1, 0], [0] * 3))
  np.testing.assert_array_equal(
    got, [[0.9, 0.4, 1], [0.2, 0.5, 0.5], [0.5] * 3]
  )


def test_every_other_prompt_judges_what_is_fitted_to_the_rest():
  prompt = np.array([7, 2, 2, 9, 7, 4])
  got = calibration._is_held_out(prompt)
  assert got.tolist() == [False, False, False, True, False, True]
  assert not calibration._is_held_out(np.array([], int)).any()


def simulated(bias, seed=0, num=4000):
  """Drafts that are right with chance p, of which the logit is told wrong."""
  rng = np.random.default_rng(seed)
  logit = rng.normal(0.7, 1.2, (num, 3))
  is_right = rng.random((num, 3)) < 1 / (1 + np.exp(-logit))
  told = 1 / (1 + np.exp(-bias * logit))
  num_accepted = np.cumprod(is_right, axis=1).sum(axis=1)
  return rounds(told, np.full(num, 3), num_accepted)


@pytest.mark.parametrize('bias, is_good', [(1.0, True), (3.0, False)])
def test_honest_confidence_is_told_from_boasting(bias, is_good):
  made = simulated(bias)
  found = calibration.figures(made, calibration.confidences(made))
  for name in ('confidence', 'survival'):
    for at in found[name]['by_position']:
      assert (at['ece'] < 0.04) is is_good
      assert at['auroc'] > 0.65  # Boasting does not change the order.


def test_halves_are_fixed_and_about_equal():
  found = [calibration.is_for_fit(f'prompt {i}') for i in range(1000)]
  assert 430 < sum(found) < 570
  assert [calibration.is_for_fit(name) for name in 'abcdef'] == [
    calibration.is_for_fit(name) for name in 'abcdef'
  ]
  assert min(halves()) >= 3


def test_prompts_of_one_half_only_are_refused(loaded, sure):
  with pytest.raises(errors.UserError, match='give more prompts'):
    calibration.run(loaded, sure, talk(1), PARAMS)


def test_no_drafter_and_trees_are_refused(loaded):
  with pytest.raises(errors.UserError, match='name a drafter'):
    calibration.run(loaded, None, talk(), PARAMS)
  tree = types.SimpleNamespace(config=types.SimpleNamespace(tree_size=7))
  with pytest.raises(errors.UserError, match='drafts trees.*tree_size=0'):
    calibration.run(loaded, tree, talk(), PARAMS, drafter_name='shipped')


class Fake:
  """An engine that runs one round: drafts at these depths."""

  def __init__(self, num_drafted):
    self.metrics = types.SimpleNamespace(
      num_drafts=3, num_drafted=np.zeros(3, int)
    )
    self.has_work, self.num_drafted = True, num_drafted

  def submit(self, prompt, ask, *, request_id):
    pass

  def step(self):
    decodes = [types.SimpleNamespace(request_id=i) for i in range(2)]
    used = types.SimpleNamespace(
      num_verified=[3, -1],
      confidence=np.ones((2, 3)),
      path=np.array([[1, 3, 0], [1, 1, 1]]),
    )
    sent = types.SimpleNamespace(plan=types.SimpleNamespace(decodes=decodes))
    self.on_launch(sent, used, 3, None)
    self.metrics.num_drafted += self.num_drafted
    self.has_work = False
    return []


@pytest.mark.slow
def test_trees_that_nobody_declares_are_seen_by_their_depths(loaded):
  with pytest.raises(errors.UserError, match='drafts trees'):
    calibration._serve(Fake([2, 1, 0]), loaded, talk(2), PARAMS, 'mine', None)
  found, answers = calibration._serve(
    Fake([1, 1, 1]), loaded, talk(2), PARAMS, 'mine', None
  )
  assert found.prompt.tolist() == [0]  # The other row took no part.
  assert found.num_accepted.tolist() == [2]
  assert answers == [[], []]
