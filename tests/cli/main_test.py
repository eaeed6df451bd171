# SPDX-License-Identifier: MIT
"""The command line: what it accepts, what it refuses, what that costs."""

import json
import subprocess
import sys
import time

import pytest

from jspec import errors
from jspec.cli import main, options


def run(*words):
  return subprocess.run(
    [sys.executable, '-m', *words],
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.parametrize(
  'words',
  [
    ['--help'],
    ['train', '--help'],
    ['generate', '--prompt', 'Hello'],
  ],
  ids=' '.join,
)
def test_parsing_imports_nothing_heavy(words):
  code = (
    'import sys\n'
    'from jspec.cli import main\n'
    'try:\n'
    f'  main.parse({words})\n'
    'except SystemExit as stop:\n'
    '  assert not stop.code\n'
    "heavy = {'jax', 'numpy', 'flax', 'gguf', 'ml_collections'}\n"
    'heavy &= set(sys.modules)\n'
    'sys.exit(str(heavy) if heavy else 0)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], stdout=subprocess.DEVNULL, check=False
  )
  assert done.returncode == 0


def test_help_answers_at_once():
  began = time.perf_counter()
  done = run('jspec.cli.main', '--help')
  assert done.returncode == 0
  assert 'generate' in done.stdout
  # Half a second on an idle machine; the suite may share its cores.
  assert time.perf_counter() - began < 3


@pytest.mark.parametrize(
  'program',
  [
    *('demo', 'generate', 'train', 'evals', 'bench', 'data', 'bakeoff'),
    *('doctor', 'export', 'import', 'profile', 'serve', 'capture'),
  ],
)
def test_program_is_a_module_too(program):
  done = run(f'jspec.{program}', '--help')
  assert done.returncode == 0
  assert f'usage: jspec {program}' in done.stdout


@pytest.mark.parametrize(
  'words',
  [
    ['demo', '--limit', '4', '--max-tokens', '16'],
    ['generate', '--prompt', 'Hi', '--temperature', '0.7', '--top-p', '0.9'],
    ['generate', '--prompts', 'a.jsonl', '--top-k', '5', '--min-p', '0.1'],
    ['train', '--config', 'c.py:smoke', '--workdir', 'w'],
    ['capture', '--config', 'c.py:smoke', '--config.data.store=s'],
    ['eval', 'acceptance', '--drafter', 'ngram', '--json', 'out.json'],
    ['evals', 'lossless', '--seed', '3', '--rows', '2'],
    ['bench', 'step', '--rows', '1,16', '--nodes', '1,8'],
    ['data', 'regen', '--out', 'answers.jsonl'],
  ],
  ids=' '.join,
)
def test_flags_read_the_same_everywhere(words):
  assert callable(main.parse(words).run)


@pytest.mark.parametrize(
  'words',
  [
    [],
    ['nonsense'],
    ['generate'],
    ['generate', '--prompt', 'a', '--prompts', 'b'],
    ['generate', '--prompt', 'a', '--nonsense'],
    ['generate', '--prompt', 'a', '--config.seed=1'],
    ['generate', '--prompt', 'a', '--temp', '1'],
    ['generate', '--prompt', 'a', '--max-tokens', '0'],
    ['train', '--config', 'c.py', '--nonsense=1'],
    ['bench', 'step', '--rows', '1,zero'],
  ],
  ids=' '.join,
)
def test_bad_flags_end_with_code_2(words, capsys):
  with pytest.raises(SystemExit) as stop:
    main.parse(words)
  assert stop.value.code == 2
  assert 'error:' in capsys.readouterr().err


def test_config_overrides_reach_the_trainer():
  args = main.parse(['train', '--config', 'c.py', '--config.optim.rate=3e-4'])
  assert args.overrides == ['--config.optim.rate=3e-4']


def test_user_error_is_one_line_and_code_2(tmp_path, capsys):
  missing = tmp_path / 'missing.jsonl'
  code = main.main(['generate', '--prompts', str(missing)])
  assert code == 2
  out, err = capsys.readouterr()
  assert out == ''
  assert err.startswith('error: ') and err.count('\n') == 1
  assert 'missing.jsonl' in err


def test_bad_sampling_fails_before_a_model_loads(capsys):
  words = ['generate', '--prompt', 'a', '--target', 'nowhere']
  assert main.main([*words, '--top-p', '7']) == 2
  assert 'top_p' in capsys.readouterr().err


def test_unknown_target_is_a_user_error(capsys):
  words = ['generate', '--prompt', 'a', '--target', 'nowhere']
  assert main.main(words) == 2
  assert 'nowhere' in capsys.readouterr().err


def test_other_exceptions_keep_their_traceback(monkeypatch):
  def defect(args):
    raise KeyError('a defect')

  monkeypatch.setattr('jspec.cli.generate.run', defect)
  with pytest.raises(KeyError):
    main.main(['generate', '--prompt', 'a'])


def test_prompts_by_name_are_the_shipped_ones():
  assert len(options.prompts('shipped', None)) == 300
  demo = options.prompts('demo', None)
  assert len(demo) == 24
  assert all(len(prompt.turns) == 1 for prompt in demo)
  assert len(options.prompts('demo', 3)) == 3


def test_prompts_of_an_empty_file_are_a_user_error(tmp_path):
  empty = tmp_path / 'empty.jsonl'
  empty.write_text('')
  with pytest.raises(errors.UserError, match='no prompts'):
    options.prompts(str(empty), None)


def test_json_is_whole_or_as_it_was(tmp_path):
  path = tmp_path / 'out.json'
  options.write_json(path, {'a': 1})
  with pytest.raises(TypeError):
    options.write_json(path, {'a': object()})
  assert json.loads(path.read_text()) == {'a': 1}
  assert [entry.name for entry in tmp_path.iterdir()] == ['out.json']


def test_results_have_a_place_before_the_work_starts(tmp_path):
  options.writable(None)
  options.writable(tmp_path / 'out.json')
  for bad in (tmp_path, tmp_path / 'absent' / 'out.json'):
    with pytest.raises(errors.UserError, match='name a file'):
      options.writable(bad)
