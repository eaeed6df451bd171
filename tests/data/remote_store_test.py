# SPDX-License-Identifier: MIT
"""A store in object storage is the store it would be in a folder."""

import numpy as np
import pytest

from jspec import errors
from jspec.data import features
from tests.data import bucket, features_test

PLACE = 'gs://bucket/taps'


@pytest.fixture(autouse=True)
def remote(tmp_path, monkeypatch):
  monkeypatch.setenv('JSPEC_CACHE', str(tmp_path / 'cache'))
  monkeypatch.chdir(tmp_path)
  with bucket.mounted() as found:
    yield found


def open_store(said=None, **changes):
  said = [] if said is None else said
  return features_test.open_store(PLACE, on_message=said.append, **changes)


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_records_are_those_of_a_folder(tmp_path, dtype):
  features_test.fill(PLACE, dtype)
  features_test.fill(tmp_path / 'taps', dtype)
  assert features.exists(PLACE)
  said = []
  there = open_store(said)
  here = features_test.open_store(tmp_path / 'taps')
  assert len(there) == len(here) and there.num_bytes == here.num_bytes
  for number in range(len(here)):
    np.testing.assert_array_equal(there[number]['taps'], here[number]['taps'])
  assert len(said) == 1 and PLACE in said[0]
  # No local folder of that name was made.
  assert {path.name for path in tmp_path.iterdir()} == {'taps', 'cache'}


def test_killed_capture_resumes_at_the_missing_shard(remote):
  features_test.fill(PLACE, shards=(0, 2))
  # Its records came up, its index did not.
  remote().pipe(f'{PLACE}/taps-00001.array_record', b'cut')
  assert not features.exists(PLACE)
  with pytest.raises(errors.UserError, match='unfinished'):
    open_store()
  settings = features_test.make()[2]
  assert features.Writer(PLACE, settings).missing_shards() == [1]
  features_test.fill(PLACE, shards=(1,))
  assert len(open_store()) == len(features_test.LENGTHS)


def test_damage_is_found(remote):
  features_test.fill(PLACE)
  path = f'{PLACE}/taps-00001.array_record'
  content = remote().cat(path)
  remote().pipe(path, content[:-100])
  with pytest.raises(errors.UserError, match='bytes instead of'):
    open_store()
  at = content.index(b'TAPS') + 60
  flipped = bytes([content[at] ^ 1])
  remote().pipe(path, content[:at] + flipped + content[at + 1 :])
  store = open_store()
  with pytest.raises(errors.UserError, match='record 1 is damaged'):
    store[store.settings.shard_len]


def test_store_captured_anew_is_fetched_anew(remote):
  features_test.fill(PLACE)
  open_store()
  remote().rm(PLACE, recursive=True)
  _, taps, settings = features_test.make()
  other = features_test.refill(PLACE, fingerprint='tiny1', scale=2.0)
  assert other.num_shards == settings.num_shards
  record = open_store(fingerprint='tiny1')[0]
  np.testing.assert_array_equal(record['taps'], 2 * taps[0])


@pytest.mark.parametrize('changes', [{'fingerprint': 'x'}, {'taps': (0, 1)}])
def test_store_is_refused_when_it_does_not_fit(changes):
  features_test.fill(PLACE)
  with pytest.raises(errors.UserError, match='capture them again'):
    open_store(**changes)
