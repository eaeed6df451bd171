# SPDX-License-Identifier: MIT
"""Traces are read as they are, and refused when they are not."""

import gzip

import numpy as np
import pytest

from jspec import errors
from jspec.sim import traces
from tests import shared_data

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.4799600,3180,0
"""
MOONCAKE = """{"timestamp": 2000, "input_length": 30, "output_length": 5}
{"timestamp": 500, "input_length": 10, "output_length": 7, "hash_ids": [0]}
"""


@pytest.mark.parametrize('is_packed', [False, True])
@pytest.mark.parametrize(
  'name, text, arrival_s, prompt_len, output_len',
  [
    ('a.csv', AZURE, [0, 1.5], [4808, 3180], [10, 1]),
    ('m.jsonl', MOONCAKE, [0, 1.5], [10, 30], [7, 5]),
  ],
)
def test_formats_are_read(
  tmp_path, name, text, arrival_s, prompt_len, output_len, is_packed
):
  path = tmp_path / (name + '.gz' * is_packed)
  path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
  for scale in (1.0, 0.5):
    found = traces.read(path, time_scale=scale)
    np.testing.assert_allclose(found.arrival_s, scale * np.array(arrival_s))
    assert found.prompt_len.tolist() == prompt_len
    assert found.output_len.tolist() == output_len
    assert not found.is_closed
  assert len(traces.read(path, limit=1).arrival_s) == 1


@pytest.mark.parametrize(
  'name, text, match',
  [
    ('a.csv', 'time,tokens\n1,2\n', 'line 2'),
    ('a.csv', AZURE + '2023-11-16 18:17:06,many,3\n', 'line 4'),
    ('a.csv', '', 'no request'),
    ('m.jsonl', MOONCAKE + '{"timestamp": 3}\n', 'line 3'),
    ('m.jsonl', MOONCAKE + '[]\n', 'line 3'),
    (
      'm.jsonl',
      '{"timestamp": 1, "input_length": -1, "output_length": 5}\n',
      'line 1',
    ),
    ('a.csv.gz', AZURE, 'cannot be read'),
  ],
)
def test_what_is_no_trace_is_refused(tmp_path, name, text, match):
  path = tmp_path / name
  path.write_text(text)
  with pytest.raises(errors.UserError, match=match) as caught:
    traces.read(path)
  assert str(path) in str(caught.value) and '\n' not in str(caught.value)


def test_missing_traces_say_where_they_come_from(tmp_path):
  with pytest.raises(errors.UserError, match='AzurePublicDataset'):
    traces.find('azure_conv', tmp_path)
  with pytest.raises(
    errors.UserError, match='azure_conv, azure_code, mooncake'
  ):
    traces.find('nothing.csv', tmp_path)


@pytest.mark.parametrize(
  'name, number, arrivals_end_s',
  [
    ('azure_conv', 19366, 3600),
    ('azure_code', 8819, 3600),
    ('mooncake', 12031, 3600),
  ],
)
def test_public_traces_are_whole(name, number, arrivals_end_s):
  path = shared_data.path(f'data/{traces.NAMED[name][0]}')
  found = traces.read(path)
  assert len(found.arrival_s) == number
  assert found.arrival_s[0] == 0
  assert 0.9 * arrivals_end_s < found.arrival_s[-1] < 1.05 * arrivals_end_s
  assert np.all(np.diff(found.arrival_s) >= 0)
  assert found.output_len.min() >= 1


def test_poisson_has_its_rate_and_its_spread():
  found = traces.poisson(4000, 2.5, 10, 20)
  gaps = np.diff(found.arrival_s)
  assert gaps.mean() == pytest.approx(0.4, rel=0.05)
  assert gaps.std() == pytest.approx(0.4, rel=0.08)  # Not a regular clock.
  with pytest.raises(errors.UserError, match='requests a second'):
    traces.poisson(4, 0.0, 10, 20)


@pytest.mark.parametrize('mean', [1, 2, 64])
def test_answers_have_the_mean_length_and_differ(mean):
  found = traces.closed(4000, 7, mean)
  assert found.is_closed and np.all(found.arrival_s == 0)
  assert found.output_len.mean() == pytest.approx(
    mean, rel=0.25 if mean < 9 else 0.02
  )
  assert found.output_len.min() >= 1
  assert (
    len(set(found.output_len.tolist()))
    == 1 + mean // 2 + mean - (mean + 1) // 2
  )


def test_time_scale_is_positive(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text(AZURE)
  for scale in (0.0, -1.0, float('nan'), float('inf')):
    with pytest.raises(errors.UserError, match='time scale'):
      traces.read(path, time_scale=scale)
