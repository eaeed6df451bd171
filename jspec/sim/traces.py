# SPDX-License-Identifier: MIT
"""When requests arrive, how long their prompts are and how long their answers.

  closed       `concurrency` users, each sends the next when answered
  poisson      independent users, so many requests a second
  azure_conv, azure_code     Microsoft's services of 2023-11-16 (Splitwise, ISCA
                             2024): TIMESTAMP,ContextTokens,GeneratedTokens
  mooncake     Kimi, an hour (Mooncake, FAST 2025): a JSON object a line with
               timestamp (ms), input_length, output_length

Traces are read from their files, .gz or not; none comes with jspec. Prefix
sharing (hash_ids) is not simulated: every prompt token is paid for.
"""

import csv
import datetime
import gzip
import json
import pathlib
import zlib
from typing import NamedTuple

import numpy as np

from jspec import errors

# Name -> where the file lies in a folder of data, and where it comes from.
NAMED = {
  'azure_conv': (
    'azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz',
    'github.com/Azure/AzurePublicDataset, data/',
  ),
  'azure_code': (
    'azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz',
    'github.com/Azure/AzurePublicDataset, data/',
  ),
  'mooncake': (
    'mooncake_fast25/conversation_trace.jsonl.gz',
    'github.com/kvcache-ai/Mooncake, FAST25-release/traces/',
  ),
}


class Requests(NamedTuple):
  """N requests in the order of their arrival.

  Attributes:
    arrival_s: [N], ascending, from 0.
    prompt_len: [N] tokens.
    output_len: [N] tokens, 1 or more; the first comes from prefill.
    is_closed: there is always a next request: a run ends when there is none,
      so that a batch that drains is not part of it.
  """

  arrival_s: np.ndarray
  prompt_len: np.ndarray
  output_len: np.ndarray
  is_closed: bool = False


def closed(
  num_requests: int, prompt_len: int, output_len: int, seed: int = 0
) -> Requests:
  """Users that wait for their answers, of half to one and a half `output_len`.

  Unequal, because rows that begin together would end together.
  """
  return Requests(
    np.zeros(num_requests),
    np.full(num_requests, prompt_len),
    _lengths(num_requests, output_len, seed),
    is_closed=True,
  )


def poisson(
  num_requests: int,
  per_second: float,
  prompt_len: int,
  output_len: int,
  seed: int = 0,
) -> Requests:
  """Requests that arrive independently, `per_second` of them on average."""
  if not 0 < per_second < np.inf:
    raise errors.UserError(f'{per_second} requests a second: give more than 0')
  gaps = np.random.default_rng([seed, 1]).exponential(
    1 / per_second, num_requests
  )
  return Requests(
    np.cumsum(gaps) - gaps[0],
    np.full(num_requests, prompt_len),
    _lengths(num_requests, output_len, seed),
  )


def find(name: str, folder: pathlib.Path) -> pathlib.Path:
  """The file of a trace: of that name in a folder, or the path itself.

  Raises:
    UserError: it is not there; the message says where it comes from.
  """
  if name not in NAMED:
    path = pathlib.Path(name)
    if not path.is_file():
      raise errors.UserError(
        f'no trace {name!r}; give {", ".join(NAMED)}, poisson or a file'
      )
    return path
  relative, source = NAMED[name]
  path = folder / relative
  if not path.is_file():
    raise errors.UserError(
      f'trace {name} is not at {path}; download it from {source}, or name the'
      ' folder that holds it with --data'
    )
  return path


def read(
  path: pathlib.Path, limit: int | None = None, time_scale: float = 1.0
) -> Requests:
  """The first requests of a file, their arrivals multiplied by `time_scale`.

  Raises:
    UserError: not a trace, or no request in it; names the file and the line.
  """
  if not 0 < time_scale < np.inf:
    raise errors.UserError(f'time scale {time_scale}: give more than 0')
  is_json = '.jsonl' in path.suffixes
  entries = []
  try:
    with _open(path) as lines:
      for entry in map(_mooncake, lines) if is_json else _azure(lines):
        entries.append(entry)
        if len(entries) == limit:
          break
  except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
    raise errors.UserError(f'trace {path} cannot be read: {error}') from error
  except (ValueError, KeyError, TypeError) as error:
    where = len(entries) + (1 if is_json else 2)
    raise errors.UserError(
      f'trace {path}, line {where}: {error!r}; give CSV with TIMESTAMP,'
      'ContextTokens,GeneratedTokens or .jsonl with timestamp, input_length,'
      ' output_length'
    ) from error
  if not entries:
    raise errors.UserError(f'trace {path} holds no request')
  arrival_s, prompt_len, output_len = np.array(entries, float).T
  order = np.argsort(arrival_s, kind='stable')
  return Requests(
    (arrival_s - arrival_s.min())[order] * time_scale,
    prompt_len[order].astype(int),
    # A request that was cancelled before its first token costs its prefill.
    np.maximum(output_len[order].astype(int), 1),
  )


def _open(path):
  if path.suffix == '.gz':
    return gzip.open(path, 'rt', encoding='utf-8')
  return path.open(encoding='utf-8')


def _azure(lines):
  for row in csv.DictReader(lines):
    moment = datetime.datetime.fromisoformat(row['TIMESTAMP'])
    # Naive local times, and a service day has no change of clocks.
    seconds = (moment - datetime.datetime(2023, 1, 1)).total_seconds()
    prompt_len, output_len = row['ContextTokens'], row['GeneratedTokens']
    yield _entry(seconds, int(prompt_len), int(output_len))


def _mooncake(line):
  row = json.loads(line)
  return _entry(
    row['timestamp'] / 1000, row['input_length'], row['output_length']
  )


def _entry(arrival_s, prompt_len, output_len):
  if not np.isfinite(arrival_s) or min(prompt_len, output_len) < 0:
    raise ValueError(
      f'arrival {arrival_s}, {prompt_len} and {output_len} tokens'
    )
  return arrival_s, prompt_len, output_len


def _lengths(number, mean, seed):
  rng = np.random.default_rng([seed, 0])
  return rng.integers((mean + 1) // 2, mean + mean // 2 + 1, number)
