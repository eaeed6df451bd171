# SPDX-License-Identifier: MIT
"""Bad input to training: one clear line, exit code 2, nothing left behind."""

import pytest

from jspec.cli import main
from tests.cli.bad_input import CONFIG, write
from tests.train import tiny


def train(refused, target, tmp_path, *more, arg='smoke'):
  answers = tmp_path / 'answers.jsonl'
  if not answers.exists():
    tiny.write_answers(answers)
  return refused(
    'train',
    '--config',
    f'{CONFIG}:target={target},{arg}',
    '--workdir',
    tmp_path / 'run',
    f'--config.data.answers={answers}',
    f'--config.data.store={tmp_path / "taps"}',
    '--config.drafter.options.mask_token_id=3',
    '--config.data.num_rows=8',
    *more,
  )


@pytest.mark.parametrize(
  'word, said',
  [
    ('--config.optim.learning_rat=1', '`learning_rate`'),
    ('--config.nonsense=1', '`nonsense`'),
    ('--config.optim=1', 'is a section'),
    ('--config.num_steps=few', '`few` is not of type int'),
    ('--config.num_steps=0', 'num_steps is 0'),
    ('--config.num_steps', 'has no value'),
    ('--config.data.mode=stored', 'data.mode'),
    ('--config.data.store=file:///taps', 'there is no file://'),
    ('--config.drafter.build=nowhere:make', 'nowhere:make'),
    ('--config.target=nowhere', 'nowhere'),
    ('--config.data.answers=absent.jsonl', 'absent.jsonl'),
    ('--config.data.max_len=1', 'answers.jsonl'),
  ],
)
def test_config_key_is_refused(refused, target, tmp_path, word, said):
  assert said in train(refused, target, tmp_path, word)


@pytest.mark.parametrize(
  'arg, said',
  [
    ('smok', '`smoke`'),
    ('vocab=many', '`many` is not of type int'),
    ('vocab', 'needs a value'),
    ('smoke,smoke', 'given twice'),
  ],
)
def test_config_argument_is_refused(refused, target, tmp_path, arg, said):
  assert said in train(refused, target, tmp_path, arg=arg)


def test_absent_config_and_workdir(refused):
  assert 'absent.py' in refused('train', '--config', 'absent.py')
  assert '--workdir' in refused('train', '--config', CONFIG)
  said = refused('train', '--config', CONFIG, '--workdir', 'gs://bucket/run')
  assert 'mount the bucket' in said


@pytest.mark.parametrize(
  'record, said',
  [
    ({'id': 'x', 'ids': [1, 2]}, 'prompt_len'),
    ({'id': 'x', 'ids': 'w1', 'prompt_len': 1}, '`ids`'),
    ({'id': 'x', 'ids': [1, 64], 'prompt_len': 1}, 'token 64'),
    ({'id': 'x', 'ids': [1, -1], 'prompt_len': 1}, 'token -1'),
    ({'id': 'x', 'messages': [{'role': 'user'}]}, 'content is None'),
    ({'id': 'x', 'text': 'w1'}, '`messages`'),
  ],
)
def test_answer_is_refused(refused, target, tmp_path, record, said):
  write(tmp_path / 'answers.jsonl', record)
  error = train(refused, target, tmp_path)
  assert said in error and '`x`' in error


def test_workdir_of_another_run(refused, target, tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / 'notes.txt').write_text('mine')
  assert 'another --workdir' in train(refused, target, tmp_path)
  (folder / 'config.json').write_text('[1]')
  assert 'another --workdir' in train(refused, target, tmp_path)
  (folder / 'config.json').write_text('{"config": {"num_steps": 7}}')
  said = train(refused, target, tmp_path)
  assert 'config.num_steps (7 there, 20 here)' in said
  assert 'another --workdir' in said


def test_workdir_that_is_a_file(refused, target, tmp_path):
  (tmp_path / 'run').write_text('mine')
  assert 'is a file' in train(refused, target, tmp_path)


def test_store_of_other_documents(refused, target, tmp_path):
  answers = tiny.write_answers(tmp_path / 'answers.jsonl')
  words = [
    '--config.data.max_len=64',
    '--config.data.row_len=64',
    '--config.drafter.options.num_taps=1',
  ]
  code = main.main(
    [
      'capture',
      '--config',
      f'{main.__file__.rsplit("/jspec/", 1)[0]}/{CONFIG}:target={target},smoke',
      f'--config.data.answers={answers}',
      f'--config.data.store={tmp_path / "taps"}',
      '--config.drafter.options.mask_token_id=3',
      *words,
    ]
  )
  assert code == 0
  tiny.write_answers(answers, count=30)
  said = train(refused, target, tmp_path, *words)
  assert 'other documents' in said and str(tmp_path / 'taps') in said
