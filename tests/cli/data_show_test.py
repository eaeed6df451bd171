# SPDX-License-Identifier: MIT
"""`jspec data show`: a config's documents, piped and on a terminal."""

import json

import pytest

from jspec.cli import main
from jspec.text import tokenizer
from tests import tiny_model
from tests.cli.bad_input import CONFIG, write

ROOT = main.__file__.rsplit('/jspec/', 1)[0]


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  return tiny_model.write(tmp_path_factory.mktemp('models') / 'tiny')


def talk(name, *words):
  roles = ('user', 'assistant')
  messages = [
    {'role': roles[i % 2], 'content': word} for i, word in enumerate(words)
  ]
  return {'id': name, 'messages': messages}


@pytest.fixture
def answers(tmp_path):
  records = [
    talk(f't{n}', 'w5 w6', f'w{10 + n}', 'w7', 'w8 w9') for n in range(30)
  ]
  return write(tmp_path / 'answers.jsonl', *records)


@pytest.fixture
def show(target, answers, capsys):
  def run(*words, data=None):
    code = main.main(
      [
        'data',
        'show',
        '--config',
        f'{ROOT}/{CONFIG}:target={target},smoke',
        f'--config.data.answers={answers if data is None else data}',
        '--config.eval.held_out=0.3',
        '--config.drafter.options.mask_token_id=3',
        *words,
      ]
    )
    out, err = capsys.readouterr()
    return code, out, err

  return run


def test_documents_are_printed_with_their_masks(show):
  code, out, _ = show('--num', '2', '--config.data.max_documents=30')
  assert code == 0
  assert out.count('--- t') == 2
  assert ': 14 tokens, 5 trained (35.7 %)' in out
  assert 'w60 w5 w6 w2 w61[[ w1' in out and '[[ w8 w9 w2]]' in out
  assert 'held out' in out


def test_one_document_by_its_id_and_bad_ids(show):
  code, out, _ = show('--id', 't3')
  assert code == 0 and out.count('---') == 1 and 'w61[[ w13 w2]]' in out
  code, _, err = show('--id', 'nobody')
  assert code == 2 and 'nobody' in err


def test_rows_are_those_of_the_training_stream(show):
  code, out, _ = show(
    '--rows', '2', '--config.data.row_len=64', '--config.data.max_len=64'
  )
  assert code == 0
  assert out.count('=== 4 documents, 56 of 64 tokens') == 2
  assert 'segment 2, tokens 14 to 27' in out


def test_colours_on_a_terminal(show, monkeypatch):
  monkeypatch.setattr('sys.stdout.isatty', lambda: True, raising=False)
  _, out, _ = show('--num', '1')
  assert '\x1b[32m' in out and '[[' not in out


def test_mixture_from_the_command_line(show, answers, tmp_path):
  more = write(
    tmp_path / 'more.jsonl', *[talk(f'm{n}', 'w5', 'w20') for n in range(20)]
  )
  words = (
    f'--config.data.sources=chat={answers},math={more}',
    '--config.data.weights=chat=1,math=3',
  )
  code, out, err = show(*words, data='')
  assert code == 0, err
  assert 'math/m' in out or 'chat/t' in out
  assert 'drawn 75.0 % of the time' in out
  code, _, err = show(*words[:1], '--config.data.weights=chat=1', data='')
  assert code == 2 and 'no `math`' in err
  code, out, _ = show(
    *words[:1], '--config.data.weights=chat=0,math=1', '--rows', '1', data=''
  )
  assert code == 0 and 'math/m' in out and 'chat/t' not in out
  code, _, err = show(*words)
  assert code == 2 and 'exactly one' in err
  code, _, err = show('--config.data.sources=math', data='')
  assert code == 2 and 'NAME=VALUE' in err


def test_bad_records_are_named_or_counted(show, tmp_path):
  lines = [json.dumps(talk(f't{n}', 'w5', 'w6')) for n in range(20)]
  bad = tmp_path / 'bad.jsonl'
  bad.write_text('\n'.join([*lines[:3], '{"id"', *lines[3:], '{"x": 1}']))
  code, out, err = show(data=bad)
  assert code == 2 and f'{bad} line 4 is not JSON' in err
  assert len(err.splitlines()) == 1 and out == ''
  code, out, _ = show('--config.data.max_bad_records=2', data=bad)
  assert code == 0
  assert '20 kept, 2 bad' in out and 'the first: ' in out
  code, _, err = show('--config.data.max_bad_records=1', data=bad)
  assert code == 2 and 'line 22' in err and 'allows 1' in err


def test_weights_are_not_read(show, target, monkeypatch):
  def refuse(*_, **__):
    raise AssertionError('the weights were read')

  monkeypatch.setattr('jspec.loading.load_target', refuse)
  assert show('--num', '1')[0] == 0
  assert tokenizer.from_hf_folder(target).eos_ids == (2,)
