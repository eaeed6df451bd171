# SPDX-License-Identifier: MIT
"""Forms against floats: exact on known logits, and in order on a tiny model."""

import numpy as np
import pytest

from jspec import errors
from jspec.data import sources
from jspec.decode import sampling
from jspec.doctor import accuracy
from tests import tiny_model
from tests.evals import unchecked

PARAMS = sampling.SamplingParams(max_tokens=9)


def test_equal_logits_differ_in_nothing_and_a_tipped_one_by_its_divergence():
  want = np.log(np.array([[0.5, 0.25, 0.25], [0.6, 0.3, 0.1]], np.float32))
  same, kl, logit = accuracy._compared(want, want)
  assert same.all()
  assert np.abs(kl).max() < 1e-7 and logit.max() == 0
  got = np.log(np.array([[0.25, 0.5, 0.25], [0.6, 0.3, 0.1]], np.float32))
  same, kl, logit = accuracy._compared(got, want)
  assert same.tolist() == [False, True]
  np.testing.assert_allclose(kl, [0.25 * np.log(2), 0], atol=1e-6)
  np.testing.assert_allclose(logit, [np.log(2), 0], atol=1e-6)


def test_a_form_that_is_named_is_compared_alone(monkeypatch, tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  floats = []
  zeros = np.zeros((2, tiny_model.VOCAB), np.float32)

  def answered(spec, prompts, params, num_rows):
    floats.append(spec)
    return [([3, 4, 5, 6], 2)], [zeros]

  def logits(model, texts):
    assert model.cache_form == 'fp8' and texts == [([3, 4, 5, 6], 2)]
    return [zeros + 0.5]

  monkeypatch.setattr(accuracy, '_floats', answered)
  monkeypatch.setattr(accuracy, '_logits', logits)
  result = accuracy.measure(f'{path},cache=fp8,dtype=bfloat16', [], PARAMS, 1)
  assert floats == [f'{path},dtype=bfloat16']
  (one,) = result['forms']
  assert (one['weights'], one['cache']) == (None, 'fp8')
  assert one['logit_max'] == 0.5 and result['num_tokens'] == 2
  assert 'cache=fp8' in accuracy.text(result)


@pytest.mark.slow
def test_fewer_bits_are_further_away_and_answers_alone_count(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  prompts = [sources.Prompt('a', ('w5 w6',)), sources.Prompt('b', ('w7',))]
  seen = []
  with unchecked.constructors():
    result = accuracy.measure(
      str(path), prompts, PARAMS, 2, lambda *done: seen.append(done)
    )
  assert seen[-1] == (5, 6)
  assert 2 <= result['num_tokens'] <= 18 and result['num_answers'] == 2
  kl = {(f['weights'], f['cache']): f['kl_mean'] for f in result['forms']}
  assert 0 < kl['int8', None] < kl['fp8', None]
  assert 0 < kl[None, 'bf16'] < kl[None, 'fp8']
  assert all(f['logit_max'] > 0 for f in result['forms'])
  assert len(accuracy.text(result).splitlines()) == 7


def test_an_unknown_form_is_refused(tmp_path):
  path = tiny_model.write(tmp_path / 'tiny')
  with pytest.raises(errors.UserError, match="weights='int2'"):
    accuracy.measure(f'{path},weights=int2', [], PARAMS, 1)
