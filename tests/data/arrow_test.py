# SPDX-License-Identifier: MIT
"""Hugging Face data sets on disk, read without a network."""

import socket

import pytest

from jspec import errors
from jspec.data import sources

datasets = pytest.importorskip(
  'datasets', reason="to run these: pip install 'jspec[arrow]'"
)
TALKS = [
  {
    'id': 'a',
    'messages': [
      {'role': 'user', 'content': 'w1'},
      {'role': 'assistant', 'content': 'w3', 'reasoning_content': 'w4'},
    ],
  },
  {'id': 'b', 'domain': 'math', 'messages': [{'role': 'user', 'content': ''}]},
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def refuse(*_):
    raise AssertionError('reading a data set must not use the network')

  monkeypatch.setattr(socket.socket, 'connect', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)


@pytest.fixture
def saved(tmp_path):
  # A table has all fields in every row.
  rows = [{'domain': None} | talk for talk in TALKS]
  datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / 'one'))
  parts = {'train': datasets.Dataset.from_list(TALKS[:1])}
  parts['test'] = datasets.Dataset.from_list(TALKS[1:])
  datasets.DatasetDict(parts).save_to_disk(str(tmp_path / 'parts'))
  return tmp_path


def test_records_are_what_json_lines_would_give(saved):
  assert list(sources.records(f'arrow:{saved}/one')) == TALKS
  assert list(sources.records(f'arrow:{saved}/parts')) == TALKS[:1]
  (record,) = sources.records(f'arrow:{saved}/parts@test')
  assert record['domain'] == 'math'
  numbers = datasets.Dataset.from_list([{'ids': [1, 2], 'prompt_len': 1}])
  numbers.with_format('numpy').save_to_disk(str(saved / 'numpy'))
  (record,) = sources.records(f'arrow:{saved}/numpy')
  assert record == {'ids': [1, 2], 'prompt_len': 1}
  (file,) = (saved / 'one').glob('*.arrow')
  assert list(sources.records(f'arrow:{file}')) == TALKS


def test_splits_and_folders_that_are_not_there(saved):
  with pytest.raises(errors.UserError, match="splits .* but not 'dev'"):
    sources.records(f'arrow:{saved}/parts@dev')
  with pytest.raises(errors.UserError, match='leave @test out'):
    sources.records(f'arrow:{saved}/one@test')
  (saved / 'empty').mkdir()
  with pytest.raises(errors.UserError, match='cannot open'):
    sources.records(f'arrow:{saved}/empty')


def test_damaged_file_is_refused(saved):
  (file,) = (saved / 'one').glob('*.arrow')
  content = file.read_bytes()
  file.write_bytes(b'x' * 16 + content[16 : len(content) // 2])
  with pytest.raises(errors.UserError, match='cannot') as caught:
    list(sources.located(f'arrow:{saved}/one'))
  assert '\n' not in str(caught.value)
