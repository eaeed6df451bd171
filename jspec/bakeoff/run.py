# SPDX-License-Identifier: MIT
"""Trains and measures each entry, skipping what is there.

WORKDIR/taps              states of the target, captured once for all
WORKDIR/NAME              an entry's training run (`jspec.train.loop`)
WORKDIR/NAME.json         its result; deleted, it is measured again

Killed at any moment, the same command goes on: a run from its checkpoint, the
rest from the results that are there.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from jspec import errors, loading
from jspec.bakeoff import entries as entries_lib
from jspec.checkpoints import safetensors
from jspec.data import sources
from jspec.decode import sampling
from jspec.evals import acceptance
from jspec.train import defaults, loop, optim, settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What all entries share.

  Attributes:
    answers: what the target wrote, to train on.
    num_steps: of every training run.
    max_documents: of the answers; 0 for all.
    num_rows: packed rows of 512 tokens in a batch.
    max_tokens: of an answer, when measuring.
  """

  answers: str
  num_steps: int = 400
  max_documents: int = 0
  num_rows: int = 4
  max_tokens: int = 96


def run(
  loaded: Any,
  prompts: Sequence[sources.Prompt],
  workdir: pathlib.Path,
  chosen: Settings,
  *,
  only: Sequence[str] | None = None,
  on_message: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
  """Results of all entries, in the order of the table.

  Args:
    loaded: the target, as `loading.load_target` returns it.
    prompts: what to decode; none of them may have been trained on.
    workdir: see the module docstring.
    chosen: what all entries share.
    only: names of entries; None for all.
    on_message: takes a line about what is going on.

  Raises:
    UserError: an unknown entry, or results of other settings in the folder.
  """
  mask = defaults.MASK_TOKEN_ID.get(loaded.name)
  if mask is None:
    raise errors.UserError(
      f'no mask token is known for {loaded.name}: the bake-off runs on'
      f' {", ".join(defaults.MASK_TOKEN_ID)}'
    )
  everyone = entries_lib.entries(loaded.model.num_layers, mask)
  names = [entry.name for entry in everyone]
  unknown = sorted(set(only or ()) - set(names))
  if unknown:
    raise errors.UserError(f'no entry {unknown[0]!r}; there are {names}')
  workdir.mkdir(parents=True, exist_ok=True)
  shared = json.loads(
    json.dumps(
      {
        'settings': dataclasses.asdict(chosen),
        'prompts': [prompt.id for prompt in prompts],
      }
    )
  )
  results = []
  for entry in everyone:
    if only and entry.name not in only:
      continue
    path = workdir / f'{entry.name}.json'
    if path.exists():
      result = json.loads(path.read_text())
      if {name: result[name] for name in shared} != shared:
        raise errors.UserError(
          f'{path} has other settings or prompts: use another --workdir or'
          ' delete it'
        )
    else:
      on_message(f'{entry.name}: starting')
      result = shared | _one(
        entry, loaded, prompts, workdir, chosen, on_message
      )
      part = path.with_suffix('.json.partial')
      part.write_text(json.dumps(result, indent=2) + '\n')
      os.replace(part, path)
    results.append(result)
  return results


def config(
  entry: entries_lib.Entry,
  loaded: Any,
  workdir: pathlib.Path,
  chosen: Settings,
) -> settings.TrainConfig:
  """The training config of an entry."""
  return settings.TrainConfig(
    target=loaded.name,
    drafter=settings.DrafterConfig(
      build=entry.build,
      draft_vocab_size=entries_lib.VOCAB_SIZE,
      options=entry.options,
    ),
    data=settings.DataConfig(
      answers=chosen.answers,
      store=str(workdir / 'taps'),
      store_taps=entries_lib.store_taps(loaded.model.num_layers),
      domains=entry.domains,
      max_documents=chosen.max_documents,
      num_rows=chosen.num_rows,
    ),
    optim=optim.OptimConfig(
      learning_rate=1e-3, warmup_steps=min(40, chosen.num_steps // 4)
    ),
    eval=settings.EvalConfig(
      every=max(chosen.num_steps // 2, 1), max_batches=4
    ),
    num_steps=chosen.num_steps,
    print_every=50,
  )


def _one(entry, loaded, prompts, workdir, chosen, on_message):
  """Trains, if there is something to train, and decodes."""
  num_params, spec = 0, entry.spec
  if entry.build:
    folder = workdir / entry.name
    loop.run(
      config(entry, loaded, workdir, chosen),
      folder,
      loaded=loaded,
      on_message=lambda line: on_message(f'{entry.name}: {line}'),
    )
    spec = str(folder)
    num_params = _num_params(folder / loading.EXPORT)
  drafter = loading.load_drafter(spec, loaded)
  if entry.decode:
    drafter.set_options(**entry.decode)
  result = acceptance.run(
    loaded,
    drafter,
    prompts,
    sampling.SamplingParams(
      max_tokens=chosen.max_tokens, stop_ids=loaded.stop_ids
    ),
    drafter_name=entry.name,
    against_plain=False,
  )
  return {
    'name': entry.name,
    'note': entry.note,
    'num_params': num_params,
    'overall': result['overall'],
    'domains': result['domains'],
  }


def _num_params(folder):
  """Parameters of an exported drafter."""
  source = safetensors.SafetensorsFolder(folder)
  return sum(
    math.prod(source.shape(name))
    for name in source.names()
    if name != 'draft_token_ids'
  )
