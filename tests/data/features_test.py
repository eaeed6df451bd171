# SPDX-License-Identifier: MIT
"""A store gives back what went in, and refuses what does not fit."""

import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jspec import errors
from jspec.data import examples, features, tap_records
from jspec.train import capture
from tests.train import tiny

LENGTHS = (5, 9, 3, 7, 6)


def make(dtype='float32'):
  rng = np.random.default_rng(0)
  documents = [
    examples.Document(
      f'd{i}', rng.integers(0, 64, n).astype(np.int32), rng.random(n) < 0.5
    )
    for i, n in enumerate(LENGTHS)
  ]
  taps = [rng.normal(size=(n, 2, 16)).astype(np.float32) for n in LENGTHS]
  settings = features.Settings(
    target='tiny',
    fingerprint='tiny0',
    taps=(0, 2),
    width=16,
    is_pre_norm=True,
    template='',
    dtype=dtype,
    documents=examples.fingerprint(documents),
    num_documents=len(documents),
    shard_len=2,
  )
  return documents, taps, settings


def fill(folder, dtype='float32', shards=(0, 1, 2)):
  documents, taps, settings = make(dtype)
  write(folder, documents, taps, settings, shards)
  return documents, taps


def refill(folder, *, fingerprint, scale):
  """The same documents from another target."""
  documents, taps, settings = make()
  settings = dataclasses.replace(settings, fingerprint=fingerprint)
  write(folder, documents, [scale * x for x in taps], settings, (0, 1, 2))
  return settings


def write(folder, documents, taps, settings, shards):
  writer = features.Writer(folder, settings)
  for shard in shards:
    span = slice(2 * shard, 2 * shard + 2)
    writer.write_shard(shard, documents[span], taps[span])
  if not writer.missing_shards():
    writer.finish()


def open_store(folder, **changes):
  wanted = dict(target='tiny', fingerprint='tiny0', taps=(0, 2)) | changes
  return features.Store(folder, **wanted)


@pytest.mark.parametrize(
  'dtype, rtol', [('float32', 0), ('bfloat16', 2**-8), ('int8', 2**-6)]
)
def test_round_trip(tmp_path, dtype, rtol):
  documents, taps = fill(tmp_path, dtype)
  store = open_store(tmp_path)
  assert len(store) == len(documents)
  for number in (4, 0, 3, 1, 2):
    record = store[number]
    np.testing.assert_array_equal(record['tokens'], documents[number].tokens)
    np.testing.assert_array_equal(
      record['is_answer'], documents[number].is_answer
    )
    scale = np.abs(taps[number]).max(axis=-1, keepdims=True)
    gap = np.abs(record['taps'].astype(np.float32) - taps[number])
    assert np.all(gap <= rtol * scale)
    wanted = np.float32 if dtype == 'float32' else ml_dtypes.bfloat16
    assert record['taps'].dtype == wanted


def test_layers_are_chosen_by_id(tmp_path):
  _, taps = fill(tmp_path)
  chosen = open_store(tmp_path, taps=(2,))[1]['taps']
  np.testing.assert_array_equal(chosen[:, 0], taps[1][:, 1])


def test_killed_capture_resumes_at_the_missing_shard(tmp_path):
  fill(tmp_path, shards=(0, 2))
  (tmp_path / 'taps-00001.partial').write_bytes(b'cut')
  assert not features.exists(tmp_path)
  with pytest.raises(errors.UserError, match='unfinished'):
    open_store(tmp_path)
  _, _, settings = make()
  assert features.Writer(tmp_path, settings).missing_shards() == [1]
  fill(tmp_path, shards=(1,))
  assert features.exists(tmp_path)
  assert len(open_store(tmp_path)) == len(LENGTHS)


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'target': 'other'}, 'capture them again'),
    ({'fingerprint': 'tiny1'}, 'tiny1'),
    ({'taps': (0, 1)}, r'wants \[1\] too'),
    ({'template': 'abc'}, 'another chat template'),
  ],
)
def test_store_is_refused_when_it_does_not_fit(tmp_path, changes, said):
  fill(tmp_path)
  with pytest.raises(errors.UserError, match=said):
    open_store(tmp_path, **changes)


def test_other_settings_do_not_resume(tmp_path):
  fill(tmp_path)
  _, _, settings = make()
  other = dataclasses.replace(settings, documents='else')
  with pytest.raises(errors.UserError, match='documents'):
    features.Writer(tmp_path, other)


def test_damage_is_found(tmp_path):
  fill(tmp_path)
  path = tmp_path / 'taps-00001.array_record'
  data = path.read_bytes()
  path.write_bytes(data[:-100])
  with pytest.raises(errors.UserError, match='bytes instead of'):
    open_store(tmp_path)
  documents, taps, _ = make()
  record = bytearray(tap_records.encode(documents[0], taps[0], 'float32'))
  tap_records.decode(bytes(record), 'record')
  record[-1] ^= 1
  with pytest.raises(errors.UserError, match='checksum'):
    tap_records.decode(bytes(record), 'record')


def test_damaged_record_is_named_with_its_shard(tmp_path):
  fill(tmp_path)
  path = tmp_path / 'taps-00001.array_record'
  content = bytearray(path.read_bytes())
  content[content.index(b'TAPS') + 60] ^= 1  # In the shard's first record.
  path.write_bytes(content)
  store = open_store(tmp_path)
  number = store.settings.shard_len
  with pytest.raises(
    errors.UserError, match='taps-00001.array_record record 1 is damaged'
  ):
    store[number]
  assert len(store[number - 1]['tokens']) == LENGTHS[number - 1]


@pytest.mark.parametrize('left', [0, 100])
def test_shard_is_missing_again_when_deleted(tmp_path, left):
  fill(tmp_path)
  index = tmp_path / 'taps-00001.npz'
  index.write_bytes(index.read_bytes()[:left])
  with pytest.raises(errors.UserError, match='delete the shard'):
    open_store(tmp_path)
  assert features.exists(tmp_path)
  index.unlink()
  (tmp_path / 'taps-00001.array_record').unlink()
  assert not features.exists(tmp_path)
  assert features.Writer(tmp_path, make()[2]).missing_shards() == [1]


def test_states_that_are_not_finite_are_refused(tmp_path):
  documents, taps, settings = make()
  taps[0][0] = np.nan
  writer = features.Writer(tmp_path, settings)
  with pytest.raises(errors.UserError, match='not finite'):
    writer.write_shard(0, documents[:2], taps[:2])


def test_cost_is_that_of_the_files(tmp_path):
  fill(tmp_path, 'bfloat16')
  store = open_store(tmp_path)
  shards = list(tmp_path.glob('taps-*'))
  assert store.num_tokens == sum(LENGTHS)
  assert store.num_bytes == sum(path.stat().st_size for path in shards)


def test_file_in_place_of_the_store_is_refused(tmp_path):
  path = tmp_path / 'taps'
  path.write_text('')
  with pytest.raises(errors.UserError, match='another data.store'):
    features.exists(path)
  with pytest.raises(errors.UserError, match='another data.store'):
    features.Writer(path, make()[2])


@pytest.mark.parametrize('content', ['', '[]', '"x"', '{"format": 1}', '\xff'])
def test_manifest_of_another_program_is_refused(tmp_path, content):
  (tmp_path / 'manifest.json').write_text(content, encoding='latin-1')
  with pytest.raises(errors.UserError, match='is not a manifest of taps'):
    open_store(tmp_path)


def test_folder_without_taps_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match='holds no taps'):
    open_store(tmp_path / 'nothing')
  (tmp_path / 'x').write_text('')
  with pytest.raises(errors.UserError, match='not empty'):
    features.Writer(tmp_path, make()[2])


@pytest.mark.slow
def test_capture_equals_one_document_alone(tmp_path):
  documents, _, _ = make()
  loaded = tiny.loaded()
  settings = capture.settings_for(
    loaded, documents, taps=(0, 2), dtype='float32', shard_len=3
  )
  lines = []
  capture.capture(
    loaded.model,
    documents,
    tmp_path,
    settings,
    row_len=16,
    num_rows=2,
    on_progress=lines.append,
  )
  assert len(lines) == 2
  store = open_store(tmp_path)
  for number, document in enumerate(documents):
    n = len(document)
    _, taps = loaded.model.encode(
      jnp.asarray(document.tokens[None]),
      jnp.arange(n)[None],
      jnp.ones((1, n), jnp.int32),
      (0, 2),
    )
    np.testing.assert_allclose(store[number]['taps'], taps[0], atol=1e-5)
