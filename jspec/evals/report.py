# SPDX-License-Identifier: MIT
"""Results on disk, back to tables, and side by side.

Acceptance runs are compared only where all that matters but the drafter is the
same: target, prompts, sampling, rows, device and versions. Anything else would
show two causes as one.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jspec import errors
from jspec.evals import acceptance, lossless, table_text

_TABLES = {'acceptance': acceptance.table, 'lossless': lossless.table}
# What of the provenance changes numbers; commands and times may differ.
_RELEVANT = ('git', 'versions', 'device', 'num_devices', 'platform')


def read(path: str | pathlib.Path) -> dict[str, Any]:
  """Reads the JSON of one evaluation.

  Raises:
    errors.UserError: no such file, not JSON, or not of an evaluation.
  """
  path = pathlib.Path(path)
  try:
    result = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read results from {path} ({error}); give a file that'
      ' `jspec evals ... --json` wrote'
    ) from error
  missing = [
    key
    for key in ('eval', 'settings', 'provenance')
    if not isinstance(result, dict) or key not in result
  ]
  if missing or result['eval'] not in _TABLES:
    raise errors.UserError(
      f'{path} is not the result of an evaluation; give a file that'
      ' `jspec evals ... --json` wrote'
    )
  return result


def table(result: Mapping[str, Any]) -> str:
  """The table of a result, and where it came from."""
  where = result['provenance']
  versions = where['versions']
  return (
    f'{_TABLES[result["eval"]](result)}\n\n{where["command"]}\n'
    f'{where["time"]}, jspec {versions["jspec"]} {where["git"]}, jax'
    f' {versions["jax"]}, {where["num_devices"]} x {where["device"]}'
  )


def compare(results: Sequence[Mapping[str, Any]]) -> str:
  """Acceptance runs side by side, one line a drafter.

  Raises:
    errors.UserError: the runs differ in more than the drafter.
  """
  for result in results:
    if result['eval'] != 'acceptance':
      raise errors.UserError(
        f'cannot compare a result of {result["eval"]}: give results of'
        ' `jspec evals acceptance`'
      )
  for other in results[1:]:
    different = differences(results[0], other)
    if different:
      raise errors.UserError(
        'cannot compare runs that differ in '
        + ', '.join(different)
        + '; run them again with the same settings on the same machine'
      )
  shown = table_text.number
  return table_text.aligned(
    [
      'drafter',
      'drafts',
      'tokens/round',
      'accepted/round',
      'tokens/s',
      'ratio',
    ],
    [
      [
        result['drafter'],
        result['num_draft_tokens'],
        shown(result['overall']['tokens_per_round']),
        shown(result['overall']['num_accepted']),
        shown(result['speed']['tokens_per_s'], 1),
        shown(result['speedup']),
      ]
      for result in results
    ],
  )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
  """What two runs differ in besides the drafter: `max_tokens (64, 128)`."""
  found = []
  for part, keys in (
    ('settings', sorted({*a['settings'], *b['settings']})),
    ('provenance', _RELEVANT),
  ):
    for key in keys:
      x, y = a[part].get(key), b[part].get(key)
      if x != y:
        found.append(f'{key} ({_short(x)}, {_short(y)})')
  return found


def _short(value):
  return json.dumps(value)[:60]
