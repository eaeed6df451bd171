# SPDX-License-Identifier: MIT
"""What is made of a measurement; `tests/cli/doctor_test.py` makes real ones."""

import types

import pytest

from jspec.data import sources
from jspec.decode import sampling
from jspec.doctor import examine, measure
from jspec.testing import toy
from tests.doctor.checkpoints import good
from tests.evals import small


@pytest.fixture(scope='module')
def loaded():
  return small.loaded()


@pytest.fixture
def measured(monkeypatch, loaded, tmp_path):
  """Measures where each label_shift gives a number of accepted drafts."""

  def run(by_shift, **changed):
    runs = []

    def fake(target, drafter, prompts, params, num_rows):
      shift = getattr(drafter.config, 'label_shift', None)
      runs.append(shift)
      return {'num_accepted': by_shift[shift], 'label_shift': shift}

    monkeypatch.setattr(measure, '_run', fake)
    checkup = examine.examine(good(tmp_path / 'a', loaded.model))
    parts, findings = measure.measure(
      checkup,
      small.changed(loaded, **changed),
      [sources.Prompt(id='a', turns=('w5',))],
      sampling.SamplingParams(),
      2,
    )
    assert [part['label_shift'] for part in parts] == runs
    return runs, [finding.what for finding in findings]

  return run


def test_good_acceptance_is_measured_once(measured):
  assert measured({0: 1.5}) == ([0], [])


def test_slots_read_one_off_are_found(measured):
  runs, (what,) = measured({0: 0.05, 1: 1.4})
  assert runs == [0, 1]
  assert '0.05' in what and '1.40' in what
  assert 'set label_shift to 1' in what


def test_bad_either_way_is_not_blamed_on_the_slots(measured):
  runs, (what,) = measured({0: 0.05, 1: 0.12})
  assert runs == [0, 1]
  assert 'with either label_shift' in what


def test_nothing_drafted_is_no_acceptance_of_zero(measured):
  runs, (what,) = measured({0: None})
  assert runs == [0]
  assert 'drafted nothing' in what


def test_checkpoint_that_does_not_load_is_a_finding(measured):
  runs, (what,) = measured({}, fingerprint='1' * 16)
  assert runs == []
  assert 'cannot be loaded' in what


def test_drafter_without_slots_is_not_turned(monkeypatch, measured):
  drafter = types.SimpleNamespace(config=object())
  monkeypatch.setattr(measure, '_load', lambda *_: drafter)
  runs, (what,) = measured({None: 0.01})
  assert runs == [None]
  assert '0.01' in what


@pytest.mark.parametrize('tree_size', [0, 6])
def test_slots_read_the_other_way_keep_within_their_block(tree_size):
  of = toy.target()
  drafter = toy.drafter(
    of, label_shift=1, num_draft_tokens=4, tree_size=tree_size
  )
  measure.set_shift(drafter, 0)
  assert drafter.config.label_shift == 0
  assert drafter.config.num_draft_tokens == 3
  assert drafter.num_draft_tokens == (tree_size or 3)
  measure.set_shift(drafter, 1)
  assert drafter.config.num_draft_tokens == 3
