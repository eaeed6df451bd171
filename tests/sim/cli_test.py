# SPDX-License-Identifier: MIT
"""`jspec sim`: what it prints and writes, and what it refuses."""

import json
import subprocess
import sys

import pytest

from jspec.cli import main, sim
from jspec.sim import published, traces
from tests import shared_data

QUICK = ('--requests', '8', '--output-tokens', '12', '--concurrency', '4,8')


def test_table_and_json(tmp_path, capsys):
  out = tmp_path / 'out.json'
  words = ['sim', '--costs', 'hy3', '--policy', 'static,dcut,floor=1', *QUICK]
  assert main.main([*words, '--json', str(out)]) == 0
  text = capsys.readouterr().out
  assert '| 4 | static' in text and '| 8 | dcut,floor=1' in text
  result = json.loads(out.read_text())
  assert [each['rows'] for each in result['comparisons']] == [4, 8]
  assert result['costs'] == 'hy3' and 'provenance' in result
  assert result['comparisons'][0]['lines'][1]['policy'] == 'dcut,floor=1'


def test_program_is_a_module_too():
  done = subprocess.run(
    [sys.executable, '-m', 'jspec.sim', '--help'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0 and 'usage: jspec sim' in done.stdout


def test_rows_below_the_first_bucket_are_said(capsys):
  words = ['sim', '--policy', 'static', *QUICK[:4], '--concurrency', '1']
  assert main.main(words) == 0
  assert '1 rows run at the cost of 4' in capsys.readouterr().out


def test_trace_is_served(capsys):
  path = shared_data.path(f'data/{traces.NAMED["azure_code"][0]}')
  words = ['sim', '--policy', 'dcut', '--concurrency', '8', '--requests', '12']
  assert main.main([*words, '--trace', str(path), '--time-scale', '0.5']) == 0
  assert '| 8 | dcut' in capsys.readouterr().out


def test_users_may_come_at_random(capsys):
  words = ['sim', '--policy', 'dcut', *QUICK[:4], '--concurrency', '8']
  assert main.main([*words, '--trace', 'poisson', '--rate', '100']) == 0
  assert 'poisson arrivals' in capsys.readouterr().out


def test_study_prints_both_numbers(capsys, monkeypatch, tmp_path):
  lines = [published.Line('a', 2.0, 2.2, 0.1)]
  monkeypatch.setitem(published.STUDIES, 'hy3', lambda: lines)
  out = tmp_path / 'out.json'
  assert main.main(['sim', '--study', 'hy3', '--json', str(out)]) == 0
  assert '| a | 2.00 | 2.20 |' in capsys.readouterr().out
  assert json.loads(out.read_text())['lines'][0]['error'] == pytest.approx(0.1)


def test_studies_are_those_there_are():
  assert set(sim._STUDIES) == set(published.STUDIES)


@pytest.mark.parametrize(
  'words, match',
  [
    (['--costs', 'h100'], 'qwen3_8b_h20'),
    (['--costs', 'absent.json'], 'absent.json'),
    (['--costs', 'hy3', '--context', '4'], 'leave it out'),
    (['--policy', 'guess'], 'first_drop'),
    (['--profile', 'poems'], 'chat'),
    (['--profile', '99'], 'tokens a round'),
    (['--concurrency', '65'], 'at most 64'),
    (['--concurrency', '8', '--requests', '4'], 'give 8 or more'),
    (['--trace', 'poisson'], '--rate'),
    (['--rate', '2'], '--rate'),
    (['--trace', 'poisson', '--rate', '-2'], 'more than 0'),
    (['--trace', 'azure_conv', '--data', 'absent'], 'download'),
    (['--trace', 'absent.csv'], 'absent.csv'),
    (['--trace', 'absent.csv', '--output-tokens', '9'], '--output-tokens'),
    (['--time-scale', '0.5'], '--time-scale'),
    (['--study', 'hy3', '--seed', '1'], '--seed'),
    (['--study', 'hy3', '--policy', 'dcut'], '--policy'),
    (['--study', 'h100'], 'budget'),
    (['--confidence', '1,0'], 'SLOPE,BIAS,NOISE'),
    (['--confidence', '1,0,-1'], 'SLOPE,BIAS,NOISE'),
    (['--json', 'absent/out.json'], 'cannot write'),
  ],
  ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_bad_input_is_one_line_and_code_2(
  words, match, capsys, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  try:
    code = main.main(['sim', *words])
  except SystemExit as stop:
    code = stop.code
  out, err = capsys.readouterr()
  assert code == 2 and out == ''
  assert err.startswith('error: ') and err.count('\n') == 1
  assert match in err
