# SPDX-License-Identifier: MIT
"""Writes the trained drafter for others: whole, or not at all."""

import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from jspec import provenance
from jspec.text import chat


def save(
  write: Callable[..., None],
  drafter: Any,
  folder: pathlib.Path,
  loaded: Any,
  step: int,
  variables: Mapping[str, Any],
) -> pathlib.Path:
  """Saves the drafter by `write`, replacing an older export.

  Args:
    write: like `jspec.drafters.interchange.save`.
    drafter: the drafter of the best checkpoint.
    folder: the export; appears when it is whole.
    loaded: the target, whose name and fingerprint go with the drafter.
    step: of the checkpoint.
    variables: what the chat template of the training data was rendered with.
  """
  partial = folder.with_name(folder.name + '.partial')
  if partial.exists():
    shutil.rmtree(partial)
  partial.mkdir(parents=True)
  write(
    partial,
    drafter,
    target_name=loaded.name,
    target_fingerprint=loaded.fingerprint,
    template=chat.fingerprint(loaded.template),
  )
  provenance.write(
    partial / 'provenance.json',
    step=step,
    target=loaded.name,
    chat_template_kwargs=dict(variables),
  )
  if folder.exists():
    shutil.rmtree(folder)
  partial.rename(folder)
  return folder
