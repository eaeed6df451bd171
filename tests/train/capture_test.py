# SPDX-License-Identifier: MIT
"""Captured taps belong to their own document, however it was batched."""

import jax
import numpy as np
import pytest

from jspec import config as config_lib
from jspec import errors
from jspec.data import examples, features
from jspec.train import capture, placing, prepare, settings
from tests.train import spread_steps, tiny

PREFIX = 6
# Of six documents, all of which begin alike; two are equal but for the last.
LENGTHS = (8, 12, 9, 12, 7, 10)
TAPS = (0, 3)


def documents():
  rng = np.random.default_rng(0)
  prefix = rng.integers(0, tiny.VOCAB, PREFIX)
  found = []
  for i, length in enumerate(LENGTHS):
    tail = rng.integers(0, tiny.VOCAB, length - PREFIX)
    tokens = np.concatenate([prefix, tail]).astype(np.int32)
    found.append(examples.Document(f'd{i}', tokens, np.arange(length) >= 4))
  last = found[1].tokens.copy()
  last[-1] = (last[-1] + 1) % tiny.VOCAB
  found[3] = examples.Document('d3', last, found[1].is_answer)
  return found


def stored(loaded, folder, found, num_rows, mesh=None):
  settings = capture.settings_for(loaded, found, taps=TAPS, dtype='float32')
  model = loaded.model
  if mesh is not None:
    model = placing.target(model, mesh)
  capture.capture(
    model,
    found,
    folder,
    settings,
    row_len=24,
    num_rows=num_rows,
    mesh=mesh,
    on_progress=tiny.silent,
  )
  store = features.Store(
    folder, target='tiny', fingerprint='tiny0', taps=TAPS, template=''
  )
  for number, document in enumerate(found):
    record = store[number]
    np.testing.assert_array_equal(record['tokens'], document.tokens)
    assert record['taps'].shape == (len(document), len(TAPS), 16)
  return [store[number]['taps'] for number in range(len(found))]


@pytest.mark.parametrize(
  'preset',
  ['fsdp_tp', *(pytest.param(x, marks=pytest.mark.slow) for x in ('dp', 'sp'))],
)
def test_on_several_devices_it_is_the_same(tmp_path, preset):
  loaded, found = tiny.loaded(**spread_steps.EVEN), documents()
  mesh = spread_steps.mesh_of(preset=preset)
  with jax.default_matmul_precision('highest'):
    want = stored(loaded, tmp_path / 'one', found, 2)
    got = stored(loaded, tmp_path / 'several', found, 8, mesh)
  for one, other in zip(want, got, strict=True):
    np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.slow
def test_alone_in_batches_and_again_it_is_the_same(tmp_path):
  loaded, found = tiny.loaded(), documents()
  with jax.default_matmul_precision('highest'):
    alone = [
      stored(loaded, tmp_path / f'alone{i}', [document], 1)[0]
      for i, document in enumerate(found)
    ]
    batch = stored(loaded, tmp_path / 'batch', found, 2)
    again = stored(loaded, tmp_path / 'again', found, 2)
  for one, many, more in zip(alone, batch, again, strict=True):
    np.testing.assert_allclose(many, one, atol=1e-5)
    np.testing.assert_array_equal(more, many)
  # A shared prefix has shared states, and what differs does.
  np.testing.assert_allclose(batch[0][:PREFIX], batch[5][:PREFIX], atol=1e-5)
  np.testing.assert_allclose(batch[1][:-1], batch[3][:-1], atol=1e-5)
  assert np.abs(batch[1][-1] - batch[3][-1]).max() > 1e-3


def test_several_processes_fill_no_store(tmp_path, monkeypatch):
  loaded, found = tiny.loaded(), documents()
  config = config_lib.build(settings.TrainConfig, tiny.config(tmp_path))
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(errors.UserError, match='`jspec capture` with this'):
    prepare.store(config, loaded, found, TAPS, tiny.silent)
  assert not (tmp_path / 'taps').exists()
  monkeypatch.undo()
  prepare.store(config, loaded, found, TAPS, tiny.silent)
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  assert len(prepare.store(config, loaded, found, TAPS, tiny.silent)) == 6


def test_cost_is_of_what_was_missing_alone(tmp_path):
  loaded, found = tiny.loaded(), documents()
  config = config_lib.build(settings.TrainConfig, tiny.config(tmp_path))
  cost = prepare.fill(config, loaded, found, TAPS, tiny.silent)
  assert cost.num_tokens == sum(LENGTHS)
  assert 0 < cost.target_seconds < cost.seconds
  again = prepare.fill(config, loaded, found, TAPS, tiny.silent)
  assert again == capture.Cost()
