# SPDX-License-Identifier: MIT
"""Training that begins with the weights of a drafter there is."""

import types

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import interchange
from jspec.testing import toy
from jspec.train import build, build_plain, initial, settings
from tests.drafters import every_method


@pytest.fixture(scope='module')
def loaded():
  return types.SimpleNamespace(
    name='toy',
    model=toy.target(),
    tokenizer=types.SimpleNamespace(bos_id=None),
    stop_ids=(),
    fingerprint='of the toy',
    opened=None,
  )


def options(name):
  found = every_method.options(name)
  if found.pop('num_taps', None):
    found['taps'] = (0, 2)
  if name in ('eagle3', 'specblock'):
    found['taps'] = (0, 1, 2)
  return found


def config(name, init, **changes):
  drafter = {
    'build': every_method.builder(name),
    'options': options(name),
    'init': str(init),
  }
  return settings.TrainConfig(
    target='toy',
    drafter=settings.DrafterConfig(**{**drafter, **changes}),
    data=settings.DataConfig(answers='none', mode='online'),
  )


def make(loaded, name, seed, ids=None):
  maker = build.resolve(every_method.builder(name))
  return maker(loaded, options(name), ids, jax.random.key(seed))


def calibrate(drafter, loaded, size):
  batch = every_method.batch(loaded.model, drafter.taps, np.ones((2, 16)))
  taps = batch.taps * np.geomspace(1, size, batch.taps.shape[-1])
  drafter.calibrate(batch.__class__(**{**vars(batch), 'taps': taps}))


def save(folder, drafter, loaded):
  interchange.save(
    folder, drafter, target_name='toy', target_fingerprint=loaded.fingerprint
  )
  return folder


@pytest.mark.parametrize('name', every_method.some(every_method.NAMES))
@pytest.mark.parametrize('ids', [None, every_method.DRAFT_IDS])
def test_new_scales_leave_what_it_computes(loaded, tmp_path, name, ids):
  trained = make(loaded, name, 3, ids)
  calibrate(trained, loaded, 100.0)
  folder = save(tmp_path / 'trained', trained, loaded)
  size = None if ids is None else len(ids)
  begun = initial.drafter(
    config(name, folder, draft_vocab_size=size),
    loaded,
    build.resolve(every_method.builder(name)),
  )
  method = interchange.find_method(begun.method, 'test')
  stored = {key: np.asarray(x) for key, x in method.saved(begun).items()}
  rounded = method.saved(trained)
  for key, values in stored.items():
    np.testing.assert_allclose(values, rounded[key], rtol=2**-7, atol=1e-6)
  calibrate(begun, loaded, 1e3)
  initial.take_out_scales(begun)
  for key, values in method.saved(begun).items():
    np.testing.assert_allclose(values, stored[key], rtol=1e-5, err_msg=key)
  is_scaled = any(
    np.abs(leaf[...] - stored[key]).max() > 1e-3
    for key, leaf in method.leaves(begun).items()
  )
  assert is_scaled == (name != 'mtp')  # Both of its inputs are normed.


def test_another_drafter_is_refused(loaded, tmp_path):
  folder = save(tmp_path / 'dflash', make(loaded, 'dflash', 3), loaded)
  deeper = {**options('dflash'), 'num_layers': 2}
  for name, changes, message in (
    ('dflare', {}, 'is a dflash but .* builds a dflare'),
    ('dflash', {'draft_vocab_size': 30}, 'is 30 but .* has None'),
    ('dflash', {'options': deeper}, 'num_hidden_layers is 2 but 1 there'),
  ):
    with pytest.raises(errors.UserError, match=message):
      initial.drafter(
        config(name, folder, **changes),
        loaded,
        build.resolve(every_method.builder(name)),
      )
  with pytest.raises(errors.UserError, match='nowhere'):
    initial.drafter(config('dflash', tmp_path / 'nowhere'), loaded, print)


@pytest.mark.parametrize('is_split', [False, True])
def test_mtp_begins_with_a_layer_of_the_target(loaded, is_split):
  target = toy.split(loaded.model) if is_split else loaded.model
  of = types.SimpleNamespace(**{**vars(loaded), 'model': target})
  chosen = {**options('mtp'), 'init_from_target_layer': 1}
  drafter = build_plain.mtp(of, chosen, None, jax.random.key(0))
  for name, leaf in drafter.layer.leaves().items():
    theirs = getattr(loaded.model.layers, name)[...][1]
    np.testing.assert_array_equal(leaf[...], theirs)
