# SPDX-License-Identifier: MIT
"""Rows of each kind have temperatures of their own."""

import numpy as np

from jspec.decode import sampling
from jspec.drafters import mixed, ngram
from jspec.serve import asks, confidence, device, plan, structured

G, ROWS = 3, 8


def used(rng, scale):
  """A launch whose rows have logits that are `scale` times the true ones."""
  truth = rng.uniform(0.2, 0.95, (len(scale), G))
  odds = (truth / (1 - truth)) ** np.asarray(scale)[:, None]
  num_right = np.cumprod(rng.random(truth.shape) < truth, axis=1).sum(axis=1)
  number = np.arange(1, G + 1)
  return launched(
    (odds / (1 + odds)).astype(np.float32),
    np.broadcast_to(np.arange(G), truth.shape),
    np.full(len(scale), G),
    np.where(number <= num_right[:, None], number, 0),
  )


def launched(confidence_, parents, num_verified, path):
  return device.Used(
    num_rounds=1,
    by_depth=np.zeros(1),
    by_budget=np.zeros(1),
    scores=confidence_,
    confidence=confidence_,
    parents=parents,
    num_verified=num_verified,
    path=path,
  )


def row(temperature=0.0, drafter=None, constraint=None):
  params = sampling.SamplingParams(temperature=temperature)
  return plan.Decode(
    row=0,
    epoch=0,
    request_id=0,
    pages=(),
    max_tokens=1,
    max_rows=1,
    num_tokens=1,
    params=asks.Ask(params=params, drafter=drafter, constraint=constraint),
  )


def of_drafter(is_scaled=True):
  return confidence.Confidence(ngram.NGram(G), is_scaled)


def test_kind_is_who_drafts_and_how_the_row_is_decoded():
  of = of_drafter()
  assert of.kind(row()) == 'greedy'
  assert of.kind(row(0.7)) == 'sampled'
  digits = structured.Constraint('regex', '[0-9]')
  assert of.kind(row(constraint=digits)) == 'greedy, grammar'
  mixture = mixed.Mixed({'ngram': ngram.NGram(), 'long': ngram.NGram(7)})
  of = confidence.Confidence(mixture, True)
  assert of.kind(row()) == 'ngram, greedy'
  assert of.kind(row(0.7, 'long')) == 'long, sampled'
  assert of.kind(row(0.7, 'none')) == 'none, sampled'


def test_each_kind_learns_from_its_own_rows():
  rng = np.random.default_rng(0)
  of = of_drafter()
  rows = [row(), row(0.7)] * (ROWS // 2)
  assert of.temperatures(rows).tolist() == [[1.0] * G] * ROWS
  for _ in range(400):
    of.observe(rows, used(rng, [3.0, 1.0] * (ROWS // 2)))
  digits = structured.Constraint('regex', '[0-9]')
  got = of.temperatures([row(0.2), row(), row(constraint=digits)])
  np.testing.assert_allclose(got[0], 1.0, rtol=0.35)
  np.testing.assert_allclose(got[1], 3.0, rtol=0.35)
  assert got[2].tolist() == [1.0] * G  # Nobody has seen any.
  found = of.figures()
  assert set(found) == {'greedy', 'sampled'}
  assert found['greedy'].raw.ece > 2 * found['greedy'].scaled.ece
  assert found['greedy'].num_rounds == 400 * ROWS // 2
  np.testing.assert_array_equal(found['greedy'].temperatures, got[1])


def test_what_is_not_to_be_scaled_stays():
  rng = np.random.default_rng(1)
  of = of_drafter(is_scaled=False)
  rows = [row()] * ROWS
  for _ in range(50):
    of.observe(rows, used(rng, [3.0] * ROWS))
  assert of.temperatures(rows).tolist() == [[1.0] * G] * ROWS
  assert of.figures() == {}


def test_engine_without_a_drafter_has_nothing_to_scale():
  of = confidence.Confidence(None, True)
  nothing, zeros = np.zeros((2, 0)), np.zeros(2, int)
  of.observe([row()] * 2, launched(nothing, nothing, zeros, nothing))
  assert of.temperatures([row()] * 2).shape == (2, 0)
