# SPDX-License-Identifier: MIT
"""A short measurement, and the other reading of a block drafter's slots."""

import dataclasses

import jax.numpy as jnp
import pytest

from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.doctor import examine, measure
from tests.doctor.checkpoints import good
from tests.evals import drafters, small, unchecked

K = 3


@dataclasses.dataclass(frozen=True)
class Config:
  label_shift: int
  block_size: int = K + 1
  num_draft_tokens: int = K


class Slots(drafters.Known):
  """Its drafts are right only where its slots are read as they were trained."""

  def __init__(self, target, trained, config):
    super().__init__(target, K)
    self.trained, self.config = trained, config

  def propose(self, *args):
    draft = super().propose(*args)
    if self.config.label_shift == self.trained:
      return draft
    off = jnp.where(jnp.arange(draft.tokens.shape[1]) > 0, 1, 0)
    return dataclasses.replace(draft, tokens=(draft.tokens + off) % 64)


@pytest.fixture(scope='module', autouse=True)
def compiles():
  with pytest.MonkeyPatch.context() as patch, unchecked.constructors():
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    yield


@pytest.fixture(scope='module')
def loaded():
  return small.loaded()


def run(checkup, loaded):
  prompts = [sources.Prompt(id='a', turns=('w5 w9 w17',))]
  params = sampling.SamplingParams(max_tokens=12)
  return measure.measure(checkup, loaded, prompts, params, 2)


def with_slots(monkeypatch, loaded, tmp_path, trained, said):
  drafter = Slots(loaded.model, trained, Config(said))
  monkeypatch.setattr(measure, '_load', lambda *_: drafter)
  return run(examine.examine(good(tmp_path / 'a', loaded.model)), loaded)


def test_right_slots_are_measured_once(monkeypatch, loaded, tmp_path):
  measured, findings = with_slots(monkeypatch, loaded, tmp_path, 0, 0)
  assert findings == []
  assert [part['label_shift'] for part in measured] == [0]
  assert measured[0]['num_accepted'] > 1
  assert measured[0]['accepted_if_drafted'][0] == 1


def test_slots_read_one_off_are_found(monkeypatch, loaded, tmp_path):
  measured, (finding,) = with_slots(monkeypatch, loaded, tmp_path, 1, 0)
  assert [part['label_shift'] for part in measured] == [0, 1]
  assert measured[0]['num_accepted'] < measure.NEAR_ZERO
  assert finding.level == 'wrong'
  assert 'set label_shift to 1' in finding.what


def test_untrained_checkpoint_is_bad_either_way(loaded, tmp_path):
  path = good(tmp_path / 'a', loaded.model, target_fingerprint='0' * 16)
  measured, (finding,) = run(examine.examine(path), loaded)
  assert [part['label_shift'] for part in measured] == [0, 1]
  assert 'with either label_shift' in finding.what


def test_checkpoint_that_does_not_load_is_a_finding(loaded, tmp_path):
  path = good(tmp_path / 'a', loaded.model)
  other = small.changed(loaded, fingerprint='1' * 16)
  measured, (finding,) = run(examine.examine(path), other)
  assert measured == []
  assert 'cannot be loaded' in finding.what
