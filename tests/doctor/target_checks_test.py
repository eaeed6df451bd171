# SPDX-License-Identifier: MIT
"""What a checkpoint says of its target, against a loaded one."""

import dataclasses

import pytest

from jspec.doctor import examine, target_checks
from jspec.nn import rope
from jspec.testing import toy
from jspec.text import chat
from tests.doctor.checkpoints import edit, golden, good
from tests.evals import small


@pytest.fixture(scope='module')
def loaded():
  return small.loaded()


def checkpoint(path, loaded, **fields):
  template = chat.fingerprint(loaded.template)
  return good(path, loaded.model, **({'template': template} | fields))


def whats(path, loaded, **options):
  checkup = examine.examine(path, **options)
  return [finding.what for finding in target_checks.check(checkup, loaded)]


def test_its_own_target_is_as_it_says(tmp_path, loaded):
  assert whats(checkpoint(tmp_path / 'a', loaded), loaded) == []


def test_another_target_differs_in_weights_or_template(tmp_path, loaded):
  path = checkpoint(tmp_path / 'a', loaded)
  other = small.changed(loaded, fingerprint='1' * 16)
  (what,) = whats(path, other)
  assert '0' * 16 in what and '1' * 16 in what
  (what,) = whats(path, small.changed(loaded, template=None))
  assert 'chat template' in what and 'none' in what


def test_shapes_of_another_target_are_named_with_both_numbers(tmp_path, loaded):
  path = checkpoint(tmp_path / 'a', loaded)
  model = toy.target(width=48, vocab_size=80, num_layers=4)
  said = ' '.join(whats(path, small.changed(loaded, model=model)))
  assert 'vocab_size is 64, toy has 80' in said
  assert 'target_hidden_size is 32, toy has 48' in said
  assert 'target_num_hidden_layers is 3, toy has 4' in said


def test_rotary_positions_that_differ(tmp_path, loaded):
  path = checkpoint(tmp_path / 'a', loaded)
  other = toy.target(rope=rope.RopeConfig(base=5e6))
  (what,) = whats(path, small.changed(loaded, model=other))
  assert 'rope_theta is 10000, toy has 5e+06' in what
  other = toy.target(rope=rope.RopeConfig(kind='linear', factor=4.0))
  (what,) = whats(path, small.changed(loaded, model=other))
  assert 'linear, factor 4' in what


def test_mask_token_that_ends_texts(tmp_path, loaded):
  path = checkpoint(tmp_path / 'a', loaded)
  (what,) = whats(path, small.changed(loaded, stop_ids=(2, 63)))
  assert 'mask_token_id is 63' in what


def test_copies_of_another_target_are_seen(tmp_path, loaded):
  path = golden(tmp_path / 'a', 'dflash')
  model = toy.target(
    width=64, vocab_size=256, num_layers=4, rope=rope.RopeConfig(base=1e6)
  )
  target = small.changed(loaded, model=model)
  (what,) = whats(path, target, extra={'block_size': 4})
  assert 'embed_tokens.weight' in what
  # What was assumed to look further is not compared.
  edit(path, lambda config, tensors: config.pop('rope_theta'))
  (what,) = whats(path, target)
  assert 'embed_tokens.weight' in what


def test_findings_are_one_line_each(tmp_path, loaded):
  path = checkpoint(tmp_path / 'a', loaded)
  other = small.changed(loaded, fingerprint='1' * 16, stop_ids=(63,))
  checkup = examine.examine(path)
  found = target_checks.check(checkup, other)
  assert len(found) == 2
  for finding in found:
    assert '\n' not in finding.what
    assert dataclasses.asdict(finding)['level'] == 'wrong'
