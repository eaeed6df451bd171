# SPDX-License-Identifier: MIT
"""TFDS data sets on disk give prompts and answers, without a network."""

import socket

import numpy as np
import pytest

from jspec import errors
from jspec.cli import options
from jspec.data import examples, prompts, sources

_HOW = "to run these: pip install 'jspec[tfds]' importlib_resources"
tfds = pytest.importorskip('tensorflow_datasets', reason=_HOW)
# What tensorflow_datasets writes with, and does not always bring along.
pytest.importorskip('importlib_resources', reason=_HOW)

PROMPTS = [
  {'id': 'a', 'domain': 'math', 'turns': ['Grüße', 'two']},
  {'id': 'b', 'domain': '', 'turns': ['three']},
]
ANSWERS = [
  {'id': 'a#1', 'ids': [1, 5, 6, 2], 'prompt_len': 2},
  {'id': 'b#1', 'ids': [1, 7, 2], 'prompt_len': 1},
]
TALKS = [
  {
    'id': 'a',
    'messages': [
      {'role': 'user', 'content': 'w1'},
      {'role': 'assistant', 'content': 'w3'},
    ],
  }
]


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """Writes three data sets the way `tfds build` does."""
  folder = tmp_path_factory.mktemp('tensorflow_datasets')
  kinds = tfds.features
  text, texts = kinds.Text(), kinds.Sequence(kinds.Text())
  sets = {
    'tiny_prompts': (PROMPTS, dict(id=text, domain=text, turns=texts)),
    'tiny_answers': (
      ANSWERS,
      dict(id=text, ids=kinds.Sequence(np.int32), prompt_len=np.int32),
    ),
    'tiny_talks': (
      TALKS,
      dict(id=text, messages=kinds.Sequence(dict(role=text, content=text))),
    ),
  }
  for name, (records, features) in sets.items():
    _builder(name, records, features)(
      data_dir=str(folder), file_format='array_record'
    ).download_and_prepare()
  tfds.core.add_data_dir(str(folder))
  return folder


def _builder(set_name, records, features):
  """A builder class, unknown to TFDS: data is found by its files alone."""

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name = set_name
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(features),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      return {'train': self._generate_examples()}

    def _generate_examples(self):
      yield from enumerate(records)

  return Builder


@pytest.fixture(autouse=True)
def no_network(prepared, monkeypatch):
  del prepared  # Comes first: only reading is watched.

  def refuse(*_):
    raise AssertionError('reading a data set must not use the network')

  monkeypatch.setattr(socket.socket, 'connect', refuse)
  monkeypatch.setattr(socket, 'getaddrinfo', refuse)


def test_records_are_what_json_lines_would_give():
  assert list(sources.records('tfds:tiny_prompts')) == PROMPTS
  assert list(sources.records('tfds:tiny_answers')) == ANSWERS
  assert list(sources.records('tfds:tiny_talks')) == TALKS
  assert len(sources.records('tfds:tiny_prompts:1.0.0@train[:1]')) == 1


def test_prompts_are_read_by_the_reader_of_files():
  found = [
    sources.Prompt('a', ('Grüße', 'two'), 'math'),
    sources.Prompt('b', ('three',), ''),
  ]
  assert prompts.read('tfds:tiny_prompts') == found
  assert prompts.read('tfds:tiny_prompts@train') == found
  assert options.prompts('tfds:tiny_prompts', 1) == found[:1]


def test_answers_become_documents():
  settings = dict(max_len=8, vocab_size=64)
  found = list(
    examples.Examples(sources.located('tfds:tiny_answers'), **settings)
  )
  assert [document.id for document in found] == ['a#1', 'b#1']
  assert found[0].tokens.tolist() == ANSWERS[0]['ids']
  assert found[0].is_answer.tolist() == [False, False, True, True]
  seen = []

  def render(record):
    seen.append(record['messages'])
    return [([1, 3, 2], [False, True, True])]

  talks = sources.located('tfds:tiny_talks')
  (document,) = examples.Examples(talks, render=render, **settings)
  assert document.tokens.tolist() == [1, 3, 2]
  assert seen == [TALKS[0]['messages']]


@pytest.mark.parametrize(
  'spec, said',
  [
    ('tfds:no_such_set', 'no_such_set'),
    ('tfds:tiny_prompts@test', "Unknown split 'test'"),
    ('tfds:tiny_prompts:2.0.0', '2.0.0'),
    ('tfds:', 'cannot open tfds:'),
  ],
)
def test_what_is_not_prepared_is_refused(spec, said):
  with pytest.raises(errors.UserError, match=said) as caught:
    sources.records(spec)
  assert '\n' not in str(caught.value)
  assert 'tfds build' in str(caught.value)


def test_a_bad_record_is_named_with_its_field():
  with pytest.raises(errors.UserError, match='tiny_answers record 1: .*turns'):
    prompts.read('tfds:tiny_answers')
