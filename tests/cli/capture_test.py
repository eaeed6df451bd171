# SPDX-License-Identifier: MIT
"""`jspec capture`: what it stores, what it says, and what it refuses."""

import json

import pytest

from jspec.cli import capture, main
from jspec.data import features
from jspec.train import capture as capture_lib
from tests.cli.bad_input import CONFIG
from tests.data import features_test
from tests.train import tiny

ROOT = main.__file__.rsplit('/jspec/', 1)[0]


def words(target, folder, *more, config=f'{ROOT}/{CONFIG}'):
  if not (folder / 'answers.jsonl').exists():
    tiny.write_answers(folder / 'answers.jsonl')
  return [
    'capture',
    '--config',
    f'{config}:target={target},smoke',
    f'--config.data.answers={folder / "answers.jsonl"}',
    f'--config.data.store={folder / "taps"}',
    '--config.data.max_len=64',
    '--config.data.row_len=64',
    '--config.drafter.options.mask_token_id=3',
    '--config.drafter.options.num_taps=1',
    *map(str, more),
  ]


def test_store_and_its_cost_are_reported_and_resumed(target, tmp_path, capsys):
  out = tmp_path / 'cost.json'
  assert main.main(words(target, tmp_path, '--json', out)) == 0
  said = capsys.readouterr().out
  result = json.loads(out.read_text())
  # 24 answers of 12 tokens; one layer of bfloat16.
  assert result['documents'] == 24 and result['tokens'] == 24 * 12
  size = sum(path.stat().st_size for path in (tmp_path / 'taps').glob('taps-*'))
  assert result['bytes'] == size
  assert result['bytes_per_token'] == size / (24 * 12)
  assert result['bytes_per_token'] > 2 * result['width']
  assert result['captured_tokens'] == 24 * 12
  assert 0 < result['tokens_per_s'] < result['target_tokens_per_s']
  assert 'bytes a token' in said and 'online instead' in said
  assert main.main(words(target, tmp_path, '--json', out)) == 0
  assert 'nothing was missing' in capsys.readouterr().out
  # A shard that is gone is captured again, to the same bytes.
  data = tmp_path / 'taps' / 'taps-00000.array_record'
  before = data.read_bytes()
  for path in (tmp_path / 'taps').glob('taps-*'):
    path.unlink()
  assert main.main(words(target, tmp_path, '--json', out)) == 0
  assert json.loads(out.read_text())['captured_tokens'] == 24 * 12
  assert data.read_bytes() == before


def test_report_of_a_resumed_capture_tells_both_apart(tmp_path):
  features_test.fill(tmp_path / 'taps')
  store = features_test.open_store(tmp_path / 'taps')
  cost = capture_lib.Cost(num_tokens=10, seconds=2.0, target_seconds=0.5)
  result = capture.report(store, cost)
  assert (result['tokens'], result['captured_tokens']) == (30, 10)
  assert result['tokens_per_s'] == 5 and result['target_tokens_per_s'] == 20
  assert any('10 tokens, 5 tokens/s' in line for line in capture.lines(result))


@pytest.mark.parametrize(
  'word, said',
  [
    ('--config.data.mode=online', 'nothing is stored'),
    ('--config.data.store=ftp://host/taps', 'there is no ftp://'),
    ('--config.data.store_dtype=int4', 'cannot be stored as int4'),
    ('--config.data.answers=absent.jsonl', 'absent.jsonl'),
    ('--workdir=run', 'unknown argument --workdir'),
  ],
)
def test_refusals_are_one_line(refused, target, tmp_path, word, said):
  tiny.write_answers(tmp_path / 'answers.jsonl')
  assert said in refused(*words(target, tmp_path, word, config=CONFIG))


def test_other_files_in_the_store_are_refused(refused, target, tmp_path):
  (tmp_path / 'taps').mkdir()
  (tmp_path / 'taps' / 'notes.txt').write_text('mine')
  tiny.write_answers(tmp_path / 'answers.jsonl')
  said = refused(*words(target, tmp_path, config=CONFIG))
  assert 'holds no taps' in said
  assert not features.exists(tmp_path / 'taps')
