# SPDX-License-Identifier: MIT
"""Folders here and in object storage: a file is whole, or not there."""

import importlib.util
import pathlib

import pytest

from jspec import errors
from jspec.data import places
from tests.data import bucket


@pytest.fixture
def remote(tmp_path, monkeypatch):
  monkeypatch.setenv('JSPEC_CACHE', str(tmp_path / 'cache'))
  with bucket.mounted() as found:
    yield found


@pytest.fixture(params=['here', 'gs://bucket/taps'])
def place(request, remote, tmp_path):
  here = request.param == 'here'
  return places.folder(tmp_path / 'taps' if here else request.param)


def test_scheme_that_is_not_known_is_refused_and_makes_nothing(tmp_path):
  with pytest.raises(errors.UserError, match='there is no hdfs://'):
    places.folder('hdfs://host/taps')
  assert isinstance(places.folder(tmp_path), pathlib.Path)
  assert not places.is_remote(places.folder('a/b:c//d'))
  assert places.is_remote(places.folder('gs://bucket/taps'))


def test_files_are_listed_and_read_as_they_were_written(place):
  assert places.names(place) == set()
  places.make(place)
  for content in (b'old', b'newer'):
    with places.writing(place / 'a') as path:
      path.write_bytes(content)
    assert places.read(place / 'a') == content
  assert places.num_bytes(place / 'a') == 5
  assert places.names(place) == {'a'}


def test_what_fails_leaves_the_file_as_it_was(place):
  places.make(place)
  with places.writing(place / 'a') as path:
    path.write_bytes(b'old')
  with pytest.raises(errors.UserError, match='cannot write .*disk is full'):
    with places.writing(place / 'a') as path:
      path.write_bytes(b'half')
      raise OSError('the disk is full')
  assert places.read(place / 'a') == b'old'


def test_local_files_are_read_where_they_are(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'x')
  assert places.local_file(path, 1, 'key') == path


def test_copies_are_kept_by_content_and_size(remote, tmp_path):
  there = places.folder('gs://bucket/taps') / 'a'
  remote().pipe('gs://bucket/taps/a', b'first')
  copy = places.local_file(there, 5, 'one')
  assert copy.read_bytes() == b'first' and tmp_path in copy.parents
  remote().pipe('gs://bucket/taps/a', b'other')
  # Nothing says that the content is another one.
  assert places.local_file(there, 5, 'one').read_bytes() == b'first'
  assert places.local_file(there, 5, 'two').read_bytes() == b'other'
  copy.write_bytes(b'cut')
  assert places.local_file(there, 5, 'one').read_bytes() == b'other'
  assert not list(tmp_path.rglob('*.partial'))


def test_service_that_does_not_answer_is_told_in_one_line(remote):
  there = places.folder('gs://bucket/taps')
  remote.is_down = True
  with pytest.raises(errors.UserError, match=r'\(no credentials\)') as caught:
    places.names(there)
  assert '\n' not in str(caught.value)
  with pytest.raises(errors.UserError, match=r'cannot write .*\(503\)'):
    with places.writing(there / 'a') as path:
      path.write_bytes(b'x')
  with pytest.raises(errors.UserError, match=r'cannot fetch .*\(503\)'):
    places.local_file(there / 'a', 1, 'key')


@pytest.mark.skipif(
  importlib.util.find_spec('s3fs') is not None, reason='s3fs is installed'
)
def test_service_without_its_package_names_it():
  with pytest.raises(errors.UserError, match='pip install s3fs'):
    places.names(places.folder('s3://bucket/taps'))


def test_file_in_place_of_a_folder_is_told(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'')
  with pytest.raises(errors.UserError, match='cannot read'):
    places.names(path)
  with pytest.raises(errors.UserError, match='name another data.store'):
    places.make(path)
