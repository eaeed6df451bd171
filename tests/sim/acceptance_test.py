# SPDX-License-Identifier: MIT
"""Acceptance has the means that were asked for, and confidence means it."""

import numpy as np
import pytest

from jspec import errors
from jspec.sim import acceptance, profiles

DOMAIN = acceptance.Domain(mean=0.8, between=6.0, within=1.0)


def rounds(tokens, num_drafts, output_len):
  """Rounds and committed tokens of each request, one draft at a time."""
  number = np.zeros(len(tokens.luck), int)
  for request in range(len(tokens.luck)):
    done = 0
    while done < output_len:
      accepted = 0
      while accepted < num_drafts:
        easiness = tokens.easiness[request, done + accepted]
        easiness = easiness * tokens.decay[request] ** accepted
        if tokens.luck[request, done + accepted] >= easiness:
          break
        accepted += 1
      done += accepted + 1
      number[request] += 1
  return number


@pytest.mark.parametrize('decay', [1.0, 0.9])
def test_tokens_per_round_are_what_rounds_have(decay):
  domain = acceptance.Domain(mean=0.8, between=6.0, within=1.0, decay=decay)
  answer = acceptance.draw((domain,), 800, 130)
  number = rounds(answer, 7, 120)
  expected = domain.tokens_per_round(7)
  assert len(number) * 120 / number.sum() == pytest.approx(expected, rel=0.04)
  # Not the mean over requests, which forgets that hard ones take more rounds.
  assert np.mean(120 / number) > 1.07 * expected


@pytest.mark.parametrize('tokens_per_round', [1.3, 2.5, 4.26, 6.9])
def test_fit_is_the_inverse(tokens_per_round):
  domain = acceptance.fit(
    tokens_per_round, 7, between=20.0, within=0.5, decay=0.99, weight=2.0
  )
  assert domain.tokens_per_round(7) == pytest.approx(tokens_per_round, rel=1e-6)
  assert (domain.weight, domain.decay) == (2.0, 0.99)


def test_requests_that_are_alike_have_the_closed_form():
  domain = acceptance.Domain(mean=0.7, between=1e5, within=1.0)
  expected = (1 - 0.7**8) / (1 - 0.7)
  assert domain.tokens_per_round(7) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
  'tokens_per_round, decay', [(1.0, 1.0), (8.0, 1.0), (0.5, 1.0), (7.0, 0.5)]
)
def test_fit_refuses_what_cannot_be(tokens_per_round, decay):
  with pytest.raises(errors.UserError, match='tokens a round'):
    acceptance.fit(tokens_per_round, 7, between=20.0, within=0.5, decay=decay)


@pytest.mark.parametrize(
  'change', [{'mean': 0.0}, {'mean': 1.0}, {'between': 0.0}, {'decay': 1.1}]
)
def test_bad_domains_are_refused(change):
  with pytest.raises(errors.UserError, match='domain: '):
    acceptance.Domain(**{'mean': 0.5, 'between': 9.0, 'within': 1.0, **change})


def calibration_error(confidence):
  """Largest gap between confidence and acceptance, in ten groups."""
  answer = acceptance.draw((DOMAIN,), 200, 200, confidence=confidence)
  accepted = (answer.luck < answer.easiness).ravel()
  seen = answer.confidence.ravel()
  group = np.minimum((seen * 10).astype(int), 9)
  return max(
    abs(seen[group == g].mean() - accepted[group == g].mean())
    for g in np.unique(group)
    if np.sum(group == g) > 300
  )


def test_confidence_is_calibrated_unless_told_otherwise():
  assert calibration_error(acceptance.Confidence()) < 0.04
  for wrong in ({'bias': 1.0}, {'slope': 3.0}, {'noise': 2.0}):
    assert calibration_error(acceptance.Confidence(**wrong)) > 0.06


def test_requests_do_not_depend_on_how_many_there_are():
  domains = (DOMAIN, acceptance.Domain(mean=0.3, between=6.0, within=1.0))
  few, many = (acceptance.draw(domains, n, 20, seed=3) for n in (4, 9))
  for a, b in zip(few, many, strict=True):
    np.testing.assert_array_equal(a, b[:4])
  other = acceptance.draw(domains, 4, 20, seed=4)
  assert not np.array_equal(few.luck, other.luck)


def test_domains_are_mixed_by_weight():
  easy = acceptance.Domain(mean=0.9, between=1e4, within=1e4, weight=3.0)
  hard = acceptance.Domain(mean=0.1, between=1e4, within=1e4)
  answer = acceptance.draw((easy, hard), 600, 2)
  share = np.mean(answer.easiness[:, 0] > 0.5)
  assert share == pytest.approx(0.75, abs=0.05)


def test_requests_met_in_rounds_are_harder():
  met = DOMAIN.in_flight(np.random.default_rng(0), 20000, 7)
  tokens = 1 + np.cumprod(np.tile(met[:, None], 7), axis=1).sum(axis=1)
  assert tokens.mean() == pytest.approx(DOMAIN.tokens_per_round(7), rel=0.02)
  assert met.mean() < 0.77


def test_sharp_tokens_keep_the_mean_and_tell_more():
  rng = np.random.default_rng(0)
  means = np.full(4000, 0.8)
  best = {}
  for within in (0.2, 50.0):
    easiness = acceptance.tokens_of(means, within, 7, rng)
    survival = np.cumprod(easiness, axis=1)
    assert survival[:, 2].mean() == pytest.approx(0.8**3, rel=0.03)
    best[within] = np.sort(survival.ravel())[::-1][: 4000 * 2].mean()
  assert best[0.2] > best[50.0] + 0.1


def test_profiles_have_the_published_tokens_per_round():
  (code,) = profiles.profile('code', 7)
  assert code.tokens_per_round(15) == pytest.approx(6.52)
  assert len(profiles.profile('mixed', 15)) == 4
  (own,) = profiles.profile('2.5', 7)
  assert own.tokens_per_round(7) == pytest.approx(2.5)
  with pytest.raises(errors.UserError, match='chat, code, math, mixed'):
    profiles.profile('poems', 7)
