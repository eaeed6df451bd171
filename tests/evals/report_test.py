# SPDX-License-Identifier: MIT
"""Results come back from disk, and are compared only where that is fair."""

import copy
import json

import pytest

from jspec import conversation, errors, provenance
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import acceptance, report, settings
from tests.evals import small


def result(drafter='ngram', num_accepted=2):
  """A result with the shape of a real one, without decoding."""
  params = sampling.SamplingParams(max_tokens=20)
  output = generate.Output([1] * 6, 'length', 4, [4, 4], [num_accepted, 0])
  replies = [conversation.Reply('a', 0, 'w1', '', [1], output)]
  speed = {'seconds': 0.5, 'tokens_per_s': 12.0, 'ms_per_token': 83.3}
  summary = acceptance.summarise(replies, 2)
  return {
    'eval': 'acceptance',
    'settings': settings.describe(
      small.loaded(), [sources.Prompt('a', ('w1',))], params, 4
    ),
    'drafter': drafter,
    'num_draft_tokens': 2,
    'overall': summary,
    'domains': {},
    'repeating': [],
    'overall_with_repeating': summary,
    'speed': speed,
    'plain_speed': speed,
    'speedup': 1.0,
    'num_same_as_plain': 1,
    'provenance': provenance.collect(),
  }


def test_result_comes_back_as_a_table(tmp_path):
  path = tmp_path / 'out.json'
  path.write_text(json.dumps(result()))
  got = report.read(path)
  text = report.table(got)
  assert acceptance.table(got) in text
  assert got['provenance']['command'] in text
  assert got['provenance']['versions']['jax'] in text


def test_drafters_are_compared_side_by_side():
  first, second = result(), result('dflash', 1)
  second['provenance'] |= {'command': 'another', 'time': 'later'}
  lines = report.compare([first, second]).split('\n')
  assert [line.split()[0] for line in lines] == ['drafter', 'ngram', 'dflash']
  assert lines[1].split()[2:] == ['1.50', '0.50', '12.0', '1.00']


@pytest.mark.parametrize(
  'part, key, value',
  [
    ('settings', 'target', 'other'),
    ('settings', 'fingerprint', 'f' * 16),
    ('settings', 'template', 'f' * 16),
    ('settings', 'prompts', 'f' * 16),
    ('settings', 'temperature', 0.7),
    ('settings', 'max_tokens', 64),
    ('settings', 'seed', 1),
    ('settings', 'num_rows', 1),
    ('settings', 'a setting of a later version', 1),
    ('provenance', 'device', 'TPU v5e'),
    ('provenance', 'num_devices', 64),
    ('provenance', 'git', 'abc'),
    ('provenance', 'versions', {'jax': '0.1'}),
  ],
)
def test_runs_with_other_settings_are_not_compared(part, key, value):
  first, second = result(), copy.deepcopy(result('dflash'))
  second[part][key] = value
  with pytest.raises(errors.UserError, match=key) as caught:
    report.compare([first, second])
  assert '\n' not in str(caught.value)


def test_lossless_results_are_not_compared_as_speeds():
  with pytest.raises(errors.UserError, match='lossless'):
    report.compare([result(), result() | {'eval': 'lossless'}])


@pytest.mark.parametrize(
  'text', ['', '{', '[]', '{}', '"a"', '{"eval": "speed"}']
)
def test_other_files_are_refused(tmp_path, text):
  path = tmp_path / 'out.json'
  path.write_text(text)
  with pytest.raises(errors.UserError, match='out.json'):
    report.read(path)
  with pytest.raises(errors.UserError, match='missing.json'):
    report.read(tmp_path / 'missing.json')
