# SPDX-License-Identifier: MIT
"""The bake-off's results as a Markdown table, and what they say.

tokens a round counts the target's own token. 'first draft' is the share of
rounds that accept one; 'third draft' is, of the rounds that accept two, the
share that accept a third.
"""

from collections.abc import Sequence
from typing import Any

# Claim -> (better, worse, by at least), on overall tokens a round.
CLAIMS = {
  'DFly is at least as good as DFlash': ('dfly', 'dflash_dpace', 0.0),
  'D-PACE is at least as good as decay': ('dflash_dpace', 'dflash', 0.0),
  'D2SD beats DFlash by 0.2': ('d2sd', 'dflash', 0.2),
}


def markdown(results: Sequence[dict[str, Any]]) -> str:
  """One line a drafter: overall and by domain."""
  domains = sorted({name for result in results for name in result['domains']})
  header = [
    'drafter',
    'M parameters',
    'tokens a round',
    *domains,
    'first draft',
  ]
  lines = [_line([*header, 'third draft']), _line(['---'] * (len(header) + 1))]
  for result in results:
    overall = result['overall']
    cells = [
      result['name'],
      f'{result["num_params"] / 1e6:.1f}',
      _number(overall['tokens_per_round']),
      *(
        _number(result['domains'].get(name, {}).get('tokens_per_round'))
        for name in domains
      ),
      _number(overall['accepted_per_round'][0]),
      _number(_conditional(result, 2)),
    ]
    lines.append(_line(cells))
  return '\n'.join(lines)


def claims(results: Sequence[dict[str, Any]]) -> str:
  """Which published claims hold here, with the numbers."""
  by_name = {result['name']: result for result in results}
  lines = []
  for claim, (better, worse, margin) in CLAIMS.items():
    if {better, worse} <= by_name.keys():
      a, b = (_rate(by_name[name]) for name in (better, worse))
      lines.append(_verdict(claim, a - b >= margin, better, a, worse, b))
  if {'eagle3', 'eagle3_no_ttt'} <= by_name.keys():
    a, b = (_conditional(by_name[n], 2) for n in ('eagle3', 'eagle3_no_ttt'))
    claim = 'test-time training helps the third draft of EAGLE-3'
    lines.append(_verdict(claim, a > b, 'eagle3', a, 'eagle3_no_ttt', b))
  for special, mixed, domains in (
    ('mtp_chat', 'mtp', ('chat',)),
    ('dfly_code_math', 'dfly', ('code', 'math')),
  ):
    if not {special, mixed} <= by_name.keys():
      continue
    for domain in domains:
      a, b = (_rate(by_name[name], domain) for name in (special, mixed))
      claim = f'training on its own domains helps {special} on {domain}'
      lines.append(_verdict(claim, a > b, special, a, mixed, b))
  return '\n'.join(lines)


def _rate(result, domain=None):
  part = result['overall'] if domain is None else result['domains'][domain]
  return part['tokens_per_round']


def _conditional(result, index):
  """Share of rounds that accept draft `index` of those that accept the last."""
  rates = result['overall']['accepted_per_round']
  return rates[index] / rates[index - 1] if rates[index - 1] else 0.0


def _verdict(claim, holds, better, a, worse, b):
  sign = 'yes' if holds else 'NO'
  return f'{sign:>3}  {claim}: {better} {a:.3f}, {worse} {b:.3f}'


def _line(cells):
  return '| ' + ' | '.join(cells) + ' |'


def _number(value):
  return '' if value is None else f'{value:.2f}'
