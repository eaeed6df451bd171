# SPDX-License-Identifier: MIT
"""Looks at a checkpoint's files: what it is, what it wants, what is odd.

A checkpoint that lacks something is looked at further as if it had some value
there, so that one run names everything. What such a value touches is reported
as not said.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec import errors, loading
from jspec.doctor import config_checks, report, tensor_checks
from jspec.drafters import interchange
from jspec.drafters.formats import (
  eagle,
  family,
  family_table,
  folder,
  layouts,
  mtp,
  shapes,
  specblock,
)

NATIVE = 'native'
_FAMILY = (*family.METHODS, 'd2sd')
# The tensors of a native config, by method.
_TABLES = {
  **dict.fromkeys(_FAMILY, family_table.table),
  'eagle3': eagle.table,
  'mtp': mtp.table,
  'specblock': specblock.table,
}
# Keys that are not a method's.
_OURS = ('jspec_format', 'model_type', 'target_name', 'target_fingerprint')
# To look further where a key is absent; what they touch is not reported.
_STAND_INS = {
  'block_size': 8,
  'd2t': 'offset',
  'gate_temperature': 1.0,
  'mask_token_id': 0,
  'moe_router_use_sigmoid': True,
  'mtp_draft_input_postnorm': True,
  'num_draft_tokens': 1,
  'num_experts_per_tok': 1,
  'rms_norm_eps': 1e-6,
  'rope_theta': 10000.0,
  'route_norm': True,
  'router_scaling_factor': 1.0,
  'target_num_hidden_layers': 1000,
}
# How `layouts` asks for a key.
_ASKED = re.compile(r'--set (\w+)=')
_PROJECTIONS = ('fc.weight', 'context_proj.weight')


@dataclasses.dataclass
class Checkup:
  """A checkpoint and what was found so far.

  Attributes:
    place: its folder.
    layout: 'native' or a key of `layouts.LAYOUTS`.
    raw: config.json as it is.
    said: config.json, flat, with what the user added.
    extra: what the user added.
    stored: tensors as they are.
    config: the native config; None where it cannot be made.
    tensors: native tensors, or as stored.
    assumed: keys that were filled in.
    findings: reasons for low acceptance.
  """

  place: pathlib.Path
  layout: str
  raw: dict[str, Any]
  said: dict[str, Any]
  extra: dict[str, Any]
  stored: dict[str, np.ndarray]
  config: dict[str, Any] | None
  tensors: dict[str, np.ndarray]
  assumed: list[str]
  findings: list[report.Finding]

  @property
  def method(self) -> str:
    """How it drafts, or what it calls itself where that is not known."""
    if self.config is not None:
      return self.config['model_type']
    named = self.raw.get('architectures') or [self.raw.get('model_type')]
    return str(named[0])


def examine(
  path: str | pathlib.Path,
  *,
  layout: str | None = None,
  extra: Mapping[str, Any] | None = None,
) -> Checkup:
  """Reads a checkpoint and checks its files alone.

  Args:
    path: a checkpoint folder, or the workdir of a training run.
    layout: a key of `layouts.LAYOUTS`; None detects it.
    extra: keys that config.json lacks.

  Raises:
    UserError: it cannot be read, or its layout is not known.
  """
  place, extra = find(path), dict(extra or {})
  raw, stored = folder.read(place, layouts.drafting)
  if 'jspec_format' in raw:
    kind = NATIVE
  else:
    try:
      kind = layout or layouts.detect(raw, stored)
    except errors.UserError as error:
      raise errors.UserError(f'{place}: {error}') from error
  said = config_checks.flat(raw) | extra
  convert = _read_native if kind == NATIVE else _convert
  config, tensors, assumed, findings = convert(kind, raw, stored, extra)
  known = config or said
  certain = {key: known[key] for key in known.keys() - set(assumed)}
  findings += config_checks.check(said | certain, kind == NATIVE)
  # Whose slots there are; what a layout leaves out, it means.
  shift = known.get('label_shift')
  if shift is not None and said.get('label_shift') is None:
    findings.append(config_checks.unsaid_shift(kind, shift))
  findings += tensor_checks.check(tensors, known, said)
  return Checkup(
    place, kind, raw, said, extra, stored, config, tensors, assumed, findings
  )


def find(path: str | pathlib.Path) -> pathlib.Path:
  """The folder of a checkpoint, or of a training run's best drafter.

  Raises:
    UserError: there is none.
  """
  path = pathlib.Path(path).expanduser()
  for place in (path / loading.EXPORT, path):
    if (place / 'config.json').is_file():
      return place
  raise errors.UserError(
    f'{path} holds no drafter: neither config.json nor'
    f' {loading.EXPORT}/config.json; give a checkpoint folder'
  )


def result(checkup: Checkup) -> dict[str, Any]:
  """The checkup as JSON values."""
  facts = report.facts(
    checkup.config or checkup.said, checkup.said, checkup.assumed
  )
  facts['numbers'] = tensor_checks.dtypes(checkup.tensors)
  return {
    'place': str(checkup.place),
    'layout': checkup.layout,
    'method': checkup.method,
    'facts': facts,
    'findings': [dataclasses.asdict(f) for f in checkup.findings],
  }


def _read_native(kind, raw, stored, extra):
  """Config, tensors, assumed keys and findings of one of our own."""
  config, findings = {**raw, **extra}, []
  name = str(config.get('model_type'))
  try:
    method = interchange.find_method(name, 'config.json')
    left = {key: config[key] for key in config.keys() - set(_OURS)}
    left.pop('target_template', None)
    method.from_json(left, 'config.json')
  except errors.UserError as error:
    return None, stored, [], [report.wrong(str(error))]
  if name in _TABLES:
    whole = family.complete(config) if name in _FAMILY else config
    try:
      shapes.check(_TABLES[name](whole), stored)
    except errors.UserError as error:
      findings.append(report.wrong(str(error)))
  return config, stored, [], findings


def _convert(kind, raw, stored, extra):
  """Config, tensors, assumed keys and findings of a foreign checkpoint."""
  assumed, findings = {}, []
  while True:
    try:
      config, tensors = layouts.to_native(
        raw, stored, extra | assumed, layout=kind
      )
      # The number of drafts follows from the slots, where they are known.
      follows = ['num_draft_tokens'] if 'block_size' in assumed else []
      return config, tensors, [*assumed, *follows], findings
    except errors.UserError as error:
      asked = set(_ASKED.findall(str(error))) - assumed.keys()
      stand_ins = _stand_ins(raw, stored)
      findings += [config_checks.absent(key) for key in sorted(asked)]
      if not asked:
        findings.append(report.wrong(str(error)))
      if not asked or not asked <= stand_ins.keys():
        return None, stored, list(assumed), findings
      assumed |= {key: stand_ins[key] for key in asked}


def _stand_ins(raw, stored):
  """Stand-ins; as many captured layers as the projection has room for."""
  found = dict(_STAND_INS)
  width = raw.get('target_hidden_size') or raw.get('hidden_size')
  for name, values in stored.items():
    if name.endswith(_PROJECTIONS) and isinstance(width, int) and width > 0:
      found['target_layer_ids'] = list(range(values.shape[-1] // width))
  return found
