# SPDX-License-Identifier: MIT
"""`jspec bench throughput`, from flags to files."""

import gzip
import json
import sys

import pytest

from jspec.cli import main, options
from tests import tiny_model
from tests.cli.bad_input import words, write

AZURE = 'TIMESTAMP,ContextTokens,GeneratedTokens\n'


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp('cache')
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder))


def azure(path, number=6):
  lines = [
    f'2023-11-16 18:00:{i:02d}.5000000,{7 + 9 * i},{3 + i}'
    for i in range(number)
  ]
  path.write_text(AZURE + '\n'.join(lines) + '\n')
  return path


def test_policies_with_options_are_told_apart():
  read = options.policies
  assert read('plain,dcut') == ('plain', 'dcut')
  assert read('static,depth=2,dcut,floor=1,mode=live,full') == (
    'static,depth=2',
    'dcut,floor=1,mode=live',
    'full',
  )
  assert read('static, my.rules:Mine,a=1') == ('static', 'my.rules:Mine,a=1')


@pytest.mark.slow
def test_closed_loop_and_trace_write_what_they_measured(
  decodes, target, tmp_path
):
  prompts = write(
    tmp_path / 'p.jsonl', *[{'prompt': words(n)} for n in (5, 12)]
  )
  out, drawn = tmp_path / 'out.json', tmp_path / 'out.svg'
  flags = [
    *('bench', 'throughput', '--target', str(target), '--drafter', 'ngram'),
    *('--prompts', str(prompts), '--max-tokens', '24', '--rounds', '2'),
    *('--policy', 'plain,full,guarded,static,depth=1', '--json', str(out)),
    *('--plot', str(drawn)),
  ]
  assert main.main([*flags, '--concurrency', '2', '--launches', '3']) == 0
  found = json.loads(out.read_text())
  assert found['benchmark'] == 'throughput' and found['drafter'] == 'ngram'
  (at,) = found['concurrencies']
  assert list(at['results']) == found['names']
  assert at['results']['plain']['over_plain'] == 1
  assert all(r['host_share'] > 0 for r in at['results'].values())
  assert set(at['best_fixed']['tokens_per_second']) == {'0', '1', '2', '3'}
  assert at['results']['guarded']['of_best_fixed'] > 0
  start = found['start_up']
  assert start['num_programs'] > 3 and start['compile_s'] > 0
  assert start['has_measured_costs'] and start['warm_up_s'] > 0
  text = drawn.read_text()
  assert text.startswith('<svg') and text.count('<svg') == 3
  assert '2 static,depth=1' in text and 'over plain' in text

  trace = azure(tmp_path / 'trace.csv')
  more = ['--trace', str(trace), '--rows', '2', '--max-len', '96']
  assert main.main([*flags, *more, '--speed-up', '50', '--requests', '5']) == 0
  found = json.loads(out.read_text())
  assert found['benchmark'] == 'trace'
  assert found['trace']['num_requests'] == 5 and found['num_windows'] == 4
  assert found['trace']['speed_up'] == 50
  for line in found['results'].values():
    # Lossless: everybody answers the same.
    assert line['num_tokens'] == found['results']['plain']['num_tokens'] > 0
    assert 0 < line['first_token_s']['p50'] <= line['first_token_s']['p99']
    assert line['goodput'] <= line['tokens_per_second']
  assert found['results']['plain']['over_plain']['tokens_per_second'] == 1
  assert 's to the first token' in drawn.read_text()


@pytest.mark.parametrize(
  'flags, said',
  [
    (['--concurrency', '0'], '--concurrency'),
    (['--concurrency', '1,x'], '--concurrency'),
    (['--launches', '0'], '--launches'),
    (['--rounds', '0'], '--rounds'),
    (['--plot', 'absent/out.svg'], 'absent/out.svg'),
    (['--plot', '.'], 'name a file'),
    (['--json', 'absent/out.json'], 'absent/out.json'),
    (['--plot', 'out.svg', '--policy', 'full,dcut'], 'add plain'),
    (['--policy', 'plain,dcut,plain'], 'twice'),
    (['--policy', 'nonsense'], 'nonsense'),
    (['--temperature', 'nan'], 'temperature'),
    (['--drafter', 'none'], 'name a drafter'),
    (['--trace', 'absent.csv'], 'no such file'),
    (['--trace', '.'], 'no such file'),
    (['--requests', '8'], '--trace'),
    (['--rows', '8'], '--trace'),
    (['--speed-up', '2'], '--trace'),
    (['--load', '0.5'], '--trace'),
    (['--limits', '1,0.1'], '--trace'),
  ],
  ids=' '.join,
)
def test_bad_input_is_refused(refused, target, flags, said):
  base = ['--target', target, '--drafter', 'ngram', '--prompts', 'demo']
  assert said in refused('bench', 'throughput', *base, *flags)


@pytest.mark.parametrize(
  'flags, said',
  [
    (['--concurrency', '4'], '--concurrency belongs to the closed loop'),
    (['--launches', '4'], '--launches'),
    (['--compare'], '--compare'),
    (['--speed-up', '0'], '--speed-up'),
    (['--speed-up', 'nan'], '--speed-up'),
    (['--load', '-1'], '--load'),
    (['--load', '0.5', '--speed-up', '2'], 'not allowed'),
    (['--limits', '1'], '--limits'),
    (['--max-tokens', '128'], 'no room for a prompt'),
    (['--max-len', '16', '--max-tokens', '16'], 'no room for a prompt'),
    (['--rows', '0'], '--rows'),
  ],
  ids=' '.join,
)
def test_bad_input_of_a_trace_is_refused(
  refused, target, tmp_path, flags, said
):
  trace = azure(tmp_path / 'trace.csv')
  base = ['--target', target, '--drafter', 'ngram', '--trace', trace]
  if '--max-tokens' not in flags:
    flags = [*flags, '--max-tokens', '8']
  assert said in refused('bench', 'throughput', *base, *flags)


@pytest.mark.parametrize(
  'name, data, said',
  [
    ('a.csv', b'a,b\n1,2\n', 'line 2'),
    ('a.csv', AZURE.encode(), 'holds no request'),
    ('a.csv', (AZURE + 'yesterday,3,4\n').encode(), 'yesterday'),
    ('a.jsonl', b'{"timestamp": 1}\n', 'input_length'),
    ('a.csv', b'\xff\xfe\x00', 'cannot be read'),
    # Without the time, which would name the test anew in every process.
    ('a.csv.gz', gzip.compress(b'x' * 99, mtime=0)[:-9], 'cannot be read'),
    ('a.csv.gz', b'no gzip', 'cannot be read'),
  ],
)
def test_a_file_that_is_no_trace_is_refused(
  refused, target, tmp_path, name, data, said
):
  path = tmp_path / name
  path.write_bytes(data)
  error = refused('bench', 'throughput', '--target', target, '--trace', path)
  assert said in error and str(path) in error


def test_requests_that_come_all_at_once_have_no_load(refused, target, tmp_path):
  trace = azure(tmp_path / 'trace.csv', number=1)
  said = refused(
    *('bench', 'throughput', '--target', target, '--drafter', 'ngram'),
    *('--trace', trace, '--max-tokens', '8'),
  )
  assert 'all arrive at once' in said


def test_a_prompt_beyond_the_context_is_refused(refused, target, tmp_path):
  path = write(
    tmp_path / 'p.jsonl',
    {'id': 'short', 'prompt': 'w1'},
    {'id': 'long', 'prompt': words(tiny_model.MAX_LEN)},
  )
  said = refused(
    *('bench', 'throughput', '--target', target, '--drafter', 'ngram'),
    *('--prompts', path),
  )
  assert "prompt 'long'" in said and f'is {tiny_model.MAX_LEN}' in said


def test_compare_without_transformers_says_what_to_install(
  refused, target, monkeypatch
):
  monkeypatch.setitem(sys.modules, 'torch', None)
  said = refused('bench', 'throughput', '--target', target, '--compare')
  assert 'pip install' in said
