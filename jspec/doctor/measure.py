# SPDX-License-Identifier: MIT
"""A short measurement: how many drafts are accepted, depth by depth.

Where next to none are, and the drafter fills slots, it is measured again with
its slots read as one token off (`label_shift` the other way): published
checkpoints differ in that and do not say so.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jspec import errors, loading
from jspec.data import sources
from jspec.decode import sampling
from jspec.doctor import examine, report
from jspec.drafters import interchange
from jspec.evals import acceptance

# Accepted drafts of a round below which something must be wrong.
NEAR_ZERO = 0.2
_FINGERPRINT = 'target_fingerprint'


def measure(
  checkup: examine.Checkup,
  target: loading.LoadedTarget,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  num_rows: int,
) -> tuple[list[dict[str, Any]], list[report.Finding]]:
  """Measures, and says what is odd about the numbers.

  Args:
    checkup: of the checkpoint.
    target: its target.
    prompts: a few, as it will be used for.
    params: of the answers.
    num_rows: answers decoded at the same time.

  Returns:
    `acceptance.summarise_outputs` with `label_shift`, for each run; findings.
  """
  try:
    drafter = _load(checkup, target)
  except errors.UserError as error:
    return [], [report.wrong(f'it cannot be loaded to measure it: {error}')]

  def run():
    return _run(target, drafter, prompts, params, num_rows)

  first = run()
  if first['num_accepted'] is None:
    return [first], [
      report.doubt('it drafted nothing: it never expected enough of its drafts')
    ]
  if first['num_accepted'] >= NEAR_ZERO:
    return [first], []
  text = f'only {first["num_accepted"]:.2f} drafts of a round are accepted'
  shift = first['label_shift']
  if shift is None:
    return [first], [report.wrong(f'{text} on these prompts')]
  set_shift(drafter, 1 - shift)
  second = run()
  if (second['num_accepted'] or 0) > max(2 * first['num_accepted'], NEAR_ZERO):
    said = (
      f'{text} with label_shift {shift}, {second["num_accepted"]:.2f} with'
      f' {1 - shift}: set label_shift to {1 - shift}'
    )
  else:
    said = (
      f'{text} on these prompts, with either label_shift; it may be untrained,'
      ' for another target, or for other text'
    )
  return [first, second], [report.wrong(said)]


def set_shift(drafter: Any, label_shift: int) -> None:
  """Reads a block drafter's slots as predicting other tokens, in place."""
  for inner in getattr(drafter, 'drafters', ()):
    set_shift(inner, label_shift)
  config = drafter.config
  most = config.block_size - 1 + label_shift
  drafter.config = dataclasses.replace(
    config,
    label_shift=label_shift,
    num_draft_tokens=min(config.num_draft_tokens, most),
  )
  if not getattr(config, 'tree_size', 0):
    drafter.num_draft_tokens = drafter.config.num_draft_tokens


def _load(checkup, target):
  extra = dict(checkup.extra)
  if not checkup.raw.get(_FINGERPRINT):
    extra[_FINGERPRINT] = target.fingerprint
  reserved = {*target.stop_ids, target.tokenizer.bos_id} - {None}
  return interchange.load(
    checkup.place,
    target.model,
    target_fingerprint=target.fingerprint,
    reserved_token_ids=reserved,
    extra=extra,
  )


def _run(target, drafter, prompts, params, num_rows):
  result = acceptance.run(
    target,
    drafter,
    prompts,
    params,
    num_rows=min(num_rows, len(prompts)),
    against_plain=False,
  )
  # Answers that repeat themselves flatter a drafter, but are better than none.
  part = result['overall']
  if not part['num_replies']:
    part = result['overall_with_repeating']
  shift = getattr(drafter.config, 'label_shift', None)
  return {**part, 'label_shift': shift}
