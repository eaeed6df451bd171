# SPDX-License-Identifier: MIT
"""What was found, as values and as text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

WRONG, DOUBT = 'wrong', 'doubt'


@dataclasses.dataclass(frozen=True)
class Finding:
  """A reason for low acceptance.

  Attributes:
    level: WRONG where the checkpoint cannot work as it is, DOUBT where it may.
    what: what was seen, why it matters and how to mend it, in a sentence.
  """

  level: str
  what: str


def wrong(what: str) -> Finding:
  """A finding that must be mended."""
  return Finding(WRONG, what)


def doubt(what: str) -> Finding:
  """A finding that may be as intended."""
  return Finding(DOUBT, what)


# Label -> keys of a native config; what a method does not have is left out.
_FACTS = {
  'target width': ('target_hidden_size',),
  'target layers': ('target_num_hidden_layers',),
  'vocabulary': ('vocab_size',),
  'draft vocabulary': ('draft_vocab_size',),
  'taps': ('target_layer_ids',),
  'block_size': ('block_size',),
  'num_draft_tokens': ('num_draft_tokens',),
  'label_shift': ('label_shift',),
  'mask token': ('mask_token_id',),
  'rope base': ('rope_theta',),
  'layers': ('num_hidden_layers', 'hidden_size'),
}


def facts(
  config: Mapping[str, Any],
  said: Mapping[str, Any],
  assumed: Sequence[str],
) -> dict[str, str]:
  """What the checkpoint says it is and wants, by label.

  Args:
    config: native, or what is known of it.
    said: what its config.json says.
    assumed: keys that were filled in to look further: shown as unknown.
  """
  target = said.get('target_name') or 'not said'
  mark = said.get('target_fingerprint') or 'not said'
  found = {'target': f'{target}, fingerprint {mark}'}
  for label, keys in _FACTS.items():
    if all(key in config for key in keys):
      values = [
        'not said' if key in assumed else _shown(key, config[key])
        for key in keys
      ]
      found[label] = ' of width '.join(values)
  found['chat template'] = said.get('target_template') or 'not said'
  return found


def _shown(key, value):
  if key == 'draft_vocab_size' and value is None:
    return 'whole'
  if isinstance(value, (list, tuple)):
    return ', '.join(map(str, value))
  return f'{value:g}' if isinstance(value, float) else str(value)


def text(result: Mapping[str, Any]) -> str:
  """A result of `examine.examine`, with or without measurements, as lines."""
  lines = [f'{result["place"]}: {result["method"]}, {result["layout"]} layout']
  width = max(map(len, result['facts']))
  lines += [f'  {k:{width}}  {v}' for k, v in result['facts'].items()]
  for measured in result.get('measured', ()):
    lines.append('')
    lines += _measured(measured)
  findings = result['findings']
  lines.append('')
  if not findings:
    lines.append('nothing found')
  for finding in sorted(findings, key=lambda f: f['level'] != WRONG):
    lines.append(f'{finding["level"]}: {finding["what"]}')
  return '\n'.join(lines)


def _measured(measured):
  """The acceptance of one run, by depth."""

  def shown(rate):
    return 'n/a' if rate is None else f'{rate:.2f}'

  shift = measured['label_shift']
  where = '' if shift is None else f', label_shift {shift}'
  rates = [
    f'{depth}: {shown(rate)}'
    for depth, rate in enumerate(measured['accepted_if_drafted'], 1)
    if rate is not None
  ]
  return [
    f'measured on {measured["num_replies"]} answers{where}:'
    f' {shown(measured["tokens_per_round"])} tokens a round,'
    f' {shown(measured["num_accepted"])} drafts accepted',
    f'  accepted if drafted, by depth  {", ".join(rates) or "nothing drafted"}',
  ]
