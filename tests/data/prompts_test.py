# SPDX-License-Identifier: MIT
"""Prompt files: what is read, and what is refused by line and field."""

import gzip
import json
import sys

import pytest

from jspec import errors
from jspec.data import prompts, sources


def write(tmp_path, *lines, name='p.jsonl'):
  path = tmp_path / name
  texts = [
    line if isinstance(line, str) else json.dumps(line) for line in lines
  ]
  path.write_text('\n'.join(texts) + '\n', encoding='utf-8')
  return path


def test_turns_and_prompt_are_read(tmp_path):
  path = write(
    tmp_path,
    {'id': 'a/1', 'domain': 'math', 'turns': ['One?', 'Two?'], 'other': 1},
    '',
    {'prompt': 'Grüße\n'},
    {'id': 7, 'prompt': 'x'},
  )
  assert prompts.read(path) == [
    sources.Prompt('a/1', ('One?', 'Two?'), 'math'),
    sources.Prompt('line-3', ('Grüße\n',), ''),
    sources.Prompt('7', ('x',), ''),
  ]


def test_gzip_reads_the_same(tmp_path):
  path = write(tmp_path, {'prompt': 'a'}, {'prompt': 'b'})
  packed = tmp_path / 'p.jsonl.gz'
  packed.write_bytes(gzip.compress(path.read_bytes()))
  assert prompts.read(packed) == prompts.read(path)


def test_split_keeps_its_lines(tmp_path):
  path = write(
    tmp_path,
    {'prompt': 'a', 'split': 'demo'},
    {'prompt': 'b', 'split': 'train'},
    {'prompt': 'c'},
  )
  assert [p.turns for p in prompts.read(path, split='demo')] == [('a',)]
  with pytest.raises(errors.UserError, match="no prompts of split 'dev'"):
    prompts.read(path, split='dev')


GOOD = {'id': 'a', 'prompt': 'fine'}


@pytest.mark.parametrize(
  'line, message',
  [
    ('{"prompt": ', 'not JSON'),
    ('["a"]', 'not a JSON object'),
    ({'id': 'b'}, '`turns`.*`prompt`'),
    ({'turns': ['a'], 'prompt': 'a'}, 'either field'),
    ({'prompt': ''}, '`prompt` is not a text'),
    ({'prompt': ' \n'}, '`prompt` is not a text'),
    ({'prompt': 3}, '`prompt` is not a text'),
    ({'prompt': None}, '`prompt` is not a text'),
    ({'prompt': '\ud800'}, '`prompt` is not a text'),
    ({'turns': []}, '`turns` must be a list'),
    ({'turns': 'a'}, '`turns` must be a list'),
    ({'turns': ['a', '']}, '`turns` entry 2'),
    ({'turns': [['a']]}, '`turns` entry 1'),
    ({'id': None, 'prompt': 'a'}, '`id` must be a text'),
    ({'id': '', 'prompt': 'a'}, '`id` must be a text'),
    ({'id': 'b', 'domain': 4, 'prompt': 'a'}, '`domain` must be a text'),
    ({'id': 'a', 'prompt': 'again'}, "`id` repeats 'a' of line 1"),
  ],
)
def test_bad_line_is_named_with_its_field(tmp_path, line, message):
  path = write(tmp_path, GOOD, '', line)
  with pytest.raises(errors.UserError, match=message) as caught:
    prompts.read(path)
  assert f'{path} line 3' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
  with pytest.raises(errors.UserError, match='no data file'):
    prompts.read(tmp_path / 'missing.jsonl')
  with pytest.raises(errors.UserError, match='no data file'):
    prompts.read(tmp_path)
  with pytest.raises(errors.UserError, match='no prompts'):
    prompts.read(write(tmp_path, ''))
  broken = tmp_path / 'broken.jsonl.gz'
  broken.write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 999)[:40])
  with pytest.raises(errors.UserError, match='cannot read'):
    prompts.read(broken)
  latin = tmp_path / 'latin.jsonl'
  latin.write_bytes('{"prompt": "Grüße"}'.encode('latin-1'))
  with pytest.raises(errors.UserError, match='UTF-8'):
    prompts.read(latin)


def test_typed_text_is_a_prompt():
  assert prompts.of_text('Hi', '--prompt') == sources.Prompt('prompt', ('Hi',))
  for bad in ('', ' \n', '\udcff'):
    with pytest.raises(errors.UserError, match='--prompt is not a text'):
      prompts.of_text(bad, '--prompt')


def test_tfds_without_its_package_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
  with pytest.raises(errors.UserError, match=r"pip install 'jspec\[tfds\]'"):
    prompts.read('tfds:anything')
