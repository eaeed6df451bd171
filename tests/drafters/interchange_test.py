# SPDX-License-Identifier: MIT
"""Checkpoint folders: nothing lost, nothing guessed."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from jspec import errors
from jspec.drafters import base, interchange
from jspec.testing import toy
from tests.drafters import small_mtp

DRAFT_IDS = np.arange(0, 60, 3)


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def saved(target, tmp_path_factory):
  folder = tmp_path_factory.mktemp('drafter')
  drafter = toy.drafter(target, draft_token_ids=DRAFT_IDS, num_draft_tokens=2)
  interchange.save(folder, drafter, target_name='toy', target_fingerprint='f00')
  return drafter, folder


@pytest.fixture
def folder(saved, tmp_path):
  """A copy to damage."""
  for file in saved[1].iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  return tmp_path


def _load(folder, target, **options):
  options = {'target_fingerprint': 'f00', **options}
  return interchange.load(folder, target, **options)


def _edit(folder, **changes):
  """Sets keys of the config; None drops one."""
  path = folder / 'config.json'
  config = {**json.loads(path.read_text()), **changes}
  for key, value in changes.items():
    if value is None:
      del config[key]
  path.write_text(json.dumps(config))


def _edit_tensors(folder, edit):
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  edit(tensors)
  safetensors.numpy.save_file(tensors, path)


def test_drafter_comes_back_as_it_was_saved(saved, target):
  drafter, folder = saved
  loaded = _load(folder, target)
  assert loaded.config == drafter.config
  want = jax.tree.leaves(nnx.state(drafter))
  got = jax.tree.leaves(nnx.state(loaded))
  for a, b in zip(want, got, strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=2**-8)


def test_scale_of_the_taps_is_folded_into_what_is_saved(target, tmp_path):
  drafter = toy.drafter(target)
  taps = np.random.default_rng(0).normal(size=(2, 5, 3, 32))
  taps = jnp.asarray(taps * np.tile([1, 100], 16), jnp.float32)
  ones = jnp.ones((2, 5), jnp.int32)
  drafter.calibrate(base.DraftBatch(ones, ones, ones, ones > 0, taps))
  assert np.ptp(drafter.fusion.tap_scale[...]) > 0.5
  interchange.save(
    tmp_path, drafter, target_name='toy', target_fingerprint='f00'
  )
  loaded = _load(tmp_path, target)
  np.testing.assert_array_equal(loaded.fusion.tap_scale[...], 1)
  np.testing.assert_allclose(
    loaded.fusion.prepare(taps)[0],
    drafter.fusion.prepare(taps)[0],
    rtol=0.03,
    atol=0.03,
  )


def test_every_tensor_is_stored_once_in_bfloat16_and_nothing_borrowed(saved):
  tensors = safetensors.numpy.load_file(saved[1] / 'model.safetensors')
  ids = tensors.pop('draft_token_ids')
  assert ids.dtype == np.int32
  np.testing.assert_array_equal(ids, DRAFT_IDS)
  assert {t.dtype for t in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
  assert len(tensors) == 3 + 2 * 11
  parameters = nnx.state(saved[0], nnx.Param)
  assert sum(t.size for t in tensors.values()) == sum(
    x.size for x in jax.tree.leaves(parameters)
  )


def test_what_chooses_experts_is_not_rounded(target, tmp_path):
  drafter = small_mtp.drafter(target, **small_mtp.EXPERTS)
  interchange.save(
    tmp_path, drafter, target_name='toy', target_fingerprint='f00'
  )
  loaded = _load(tmp_path, target)
  bias, other = (x.leaves()['expert_bias'][...] for x in (drafter, loaded))
  np.testing.assert_array_equal(other, bias)
  # The control: it has digits to lose, and the rest lost theirs.
  assert np.any(bias.astype(jnp.bfloat16) != bias)
  assert np.any(loaded.eh_proj[...] != drafter.eh_proj[...])


@pytest.mark.parametrize(
  'key',
  [
    *('target_layer_ids', 'label_shift', 'block_size', 'num_draft_tokens'),
    *('mask_token_id', 'target_fingerprint', 'rope_theta', 'draft_vocab_size'),
  ],
)
def test_load_refuses_when_a_field_is_missing(folder, target, key):
  _edit(folder, **{key: None})
  with pytest.raises(errors.UserError, match=key):
    _load(folder, target)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'novelty': 1}, 'unknown keys novelty'),
    ({'rope_scaling': {'rope_type': 'yarn'}}, 'rope_scaling'),
    ({'num_target_layers': 5}, 'num_target_layers'),
    ({'mask_token_id': 64}, 'mask_token_id=64'),
    ({'draft_vocab_size': 7}, 'borrowed head'),
    ({'draft_vocab_size': 64}, 'has the tensor draft_token_ids'),
    ({'vocab_size': 65}, 'borrowed embedding'),
  ],
)
def test_load_refuses_when_a_field_is_wrong(folder, target, changes, message):
  _edit(folder, **changes)
  with pytest.raises(errors.UserError, match=message):
    _load(folder, target)


def test_load_refuses_another_target(folder, target):
  with pytest.raises(errors.UserError, match='f00.*bad'):
    _load(folder, target, target_fingerprint='bad')


def test_load_refuses_a_mask_token_with_a_meaning(folder, target):
  with pytest.raises(errors.UserError, match='mask_token_id 63'):
    _load(folder, target, reserved_token_ids=(0, 63))


def test_load_refuses_without_its_vocabulary_map(folder, target):
  _edit_tensors(folder, lambda tensors: tensors.pop('draft_token_ids'))
  with pytest.raises(errors.UserError, match='lacks the tensor'):
    _load(folder, target)


def test_load_refuses_a_map_out_of_range(folder, target):
  def edit(tensors):
    tensors['draft_token_ids'] = tensors['draft_token_ids'] * 2

  _edit_tensors(folder, edit)
  with pytest.raises(errors.UserError, match='outside the vocabulary'):
    _load(folder, target)


def test_load_refuses_when_a_tensor_is_missing_or_unknown(folder, target):
  def edit(tensors):
    tensors['layers.0.extra.weight'] = tensors.pop('final_norm.weight')

  _edit_tensors(folder, edit)
  with pytest.raises(errors.UserError, match='final_norm.*missing.*extra'):
    _load(folder, target)


def test_extra_fills_what_is_missing_and_may_not_contradict(folder, target):
  with pytest.raises(errors.UserError, match='label_shift'):
    _load(folder, target, extra={'label_shift': 1})
  _edit(folder, label_shift=None)
  drafter = _load(folder, target, extra={'label_shift': 1})
  assert drafter.config.label_shift == 1
