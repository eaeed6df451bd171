# SPDX-License-Identifier: MIT
"""What a checkpoint says of its target, against a loaded one."""

from jspec import errors, loading
from jspec.doctor import examine, report
from jspec.drafters.formats import copies, layouts
from jspec.text import chat


def check(
  checkup: examine.Checkup, target: loading.LoadedTarget
) -> list[report.Finding]:
  """Findings where checkpoint and target differ, with both values."""
  said, config = checkup.said, checkup.config or {}
  findings = [*_belongs(said, target), *_mask(said, target)]
  model = copies.of_model(target.model)
  for key, value in model.facts().items():
    ours = config.get(key, said.get(key))
    if ours not in (None, value) and key not in checkup.assumed:
      findings.append(
        report.wrong(
          f'{key} is {ours}, {target.name} has {value}: it is for another'
          ' target'
        )
      )
  findings += _rope(said, config, target)
  if checkup.layout != examine.NATIVE and config and not findings:
    findings += _copies(checkup, model)
  return findings


def _belongs(said, target):
  mark = said.get('target_fingerprint')
  if mark and mark != target.fingerprint:
    yield report.wrong(
      f'it was made for {said.get("target_name", "a target")} with fingerprint'
      f' {mark}, {target.name} has {target.fingerprint}: other weights give'
      ' other states'
    )
  trained = said.get('target_template')
  own = chat.fingerprint(target.template)
  if trained and trained != own:
    yield report.doubt(
      f'it was trained with chat template {trained}, {target.name} has'
      f' {own or "none"}; serve the template it was trained with'
    )


def _mask(said, target):
  mask = said.get('mask_token_id')
  special = {*target.stop_ids, target.tokenizer.bos_id} - {None}
  if mask in special:
    yield report.wrong(
      f'mask_token_id is {mask}, which begins or ends the texts of'
      f' {target.name}; train with a token no text uses'
    )


def _rope(said, config, target):
  base, rope = config.get('rope_theta'), target.model.config.rope
  if base is None or said.get('rope_theta') is None:
    return
  if base != rope.base:
    yield report.doubt(
      f'rope_theta is {base:g}, {target.name} has {rope.base:g}; right only if'
      ' it was trained so'
    )
  if rope.kind != 'default':
    yield report.doubt(
      f'{target.name} scales its rotary positions ({rope.kind}, factor'
      f' {rope.factor:g}), the drafter does not; right only if it was trained'
      ' so'
    )


def _copies(checkup, model):
  """The copies of embedding and head that some layouts carry."""
  known = {key: checkup.config[key] for key in checkup.assumed}
  try:
    layouts.to_native(
      checkup.raw,
      checkup.stored,
      checkup.extra | known,
      model,
      layout=checkup.layout,
    )
  except errors.UserError as error:
    yield report.wrong(str(error))
