# SPDX-License-Identifier: MIT
"""ArrayRecord files and Arrow data sets give what JSON Lines would give."""

import builtins
import json

import pytest

from jspec import errors
from jspec.data import array_records, dropping, sources

ANSWERS = [
  {'id': f'd{n}', 'ids': [1, 5, 6, n, 2], 'prompt_len': 2} for n in range(6)
]


@pytest.fixture
def shards(tmp_path):
  """Two files, and the pattern that names them."""
  array_records.write(tmp_path / 'a-0.array_record', ANSWERS[:4])
  array_records.write(tmp_path / 'a-1.array_record', ANSWERS[4:])
  return str(tmp_path / 'a-*.array_record')


def damage(path, text, byte=0):
  """Flips a byte where `text` begins; with 0 bytes, cuts the file there."""
  content = path.read_bytes()
  at = content.find(text)
  assert at > 0
  flipped = bytes([content[at + byte] ^ 0xFF])
  path.write_bytes(content[: at + byte] + flipped + content[at + byte + 1 :])


def write_plain(path, texts):
  """Records that do not compress, so that a test can find them."""
  writer = array_records.array_record_module.ArrayRecordWriter(
    str(path), 'group_size:1,uncompressed'
  )
  for text in texts:
    writer.write(text.encode())
  writer.close()


def test_shards_are_one_source_in_the_order_of_their_names(shards):
  assert list(sources.records(shards)) == ANSWERS
  entries = list(sources.located(shards))
  assert [entry.record for entry in entries] == ANSWERS
  assert entries[5].place == 'record 6'


def test_damaged_record_is_named_with_its_file(tmp_path):
  path = tmp_path / 'a.array_record'
  write_plain(path, [json.dumps(record) for record in ANSWERS])
  damage(path, b'"d3"', 1)
  said = 'a.array_record record 4 is damaged'
  with pytest.raises(errors.UserError, match=said) as caught:
    list(sources.located(str(path)))
  assert '\n' not in str(caught.value)
  dropped = dropping.Dropped(1)
  found = [entry.number for entry in sources.located(str(path), dropped)]
  assert found == [0, 1, 2, 4, 5] and dropped.num == 1


@pytest.mark.parametrize(
  'text, said',
  [('{"id"', 'record 2 is not JSON'), ('[1]', 'not a JSON object')],
)
def test_record_that_is_no_object_is_named(tmp_path, text, said):
  path = tmp_path / 'a.array_record'
  write_plain(path, [json.dumps(ANSWERS[0]), text])
  with pytest.raises(errors.UserError, match=said):
    list(sources.located(str(path)))


def test_shard_that_is_cut_or_absent_is_refused_whatever_is_allowed(shards):
  path = sources.pathlib.Path(shards.replace('*', '1'))
  content = path.read_bytes()
  for cut in (content[: len(content) // 2], b'', b'x' * len(content)):
    path.write_bytes(cut)
    with pytest.raises(
      errors.UserError, match='cannot read .*a-1.array_record'
    ):
      list(sources.located(shards, dropping.Dropped(9)))
  with pytest.raises(errors.UserError, match='no data file'):
    sources.records(shards.replace('a-', 'b-'))


def test_bad_lines_of_a_text_file_are_dropped_and_counted(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"id": 1}\n\n{"id"\n[2]\n{"id": 3}\n')
  dropped = dropping.Dropped(2)
  found = list(sources.located(str(path), dropped))
  assert [(e.number, e.place) for e in found] == [(0, 'line 1'), (3, 'line 5')]
  assert dropped.num == 2
  with pytest.raises(errors.UserError, match='line 3 is not JSON'):
    list(sources.located(str(path)))


def test_arrow_without_its_package_names_the_extra(tmp_path, monkeypatch):
  real = builtins.__import__

  def without(name, *rest):
    if name == 'datasets':
      raise ImportError(name)
    return real(name, *rest)

  monkeypatch.setattr(builtins, '__import__', without)
  with pytest.raises(errors.UserError, match=r"pip install 'jspec\[arrow\]'"):
    sources.records(f'arrow:{tmp_path}')
  with pytest.raises(errors.UserError, match='there is no'):
    sources.records(f'arrow:{tmp_path}/absent')
