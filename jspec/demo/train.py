# SPDX-License-Identifier: MIT
"""A few minutes of training, to see the whole path from answers to a drafter.

The answers come with jspec; the prompts the demo decodes are not among them.
What minutes on a laptop give is a weak drafter, and the demo says so: the one
that ships had hours of the same.
"""

import pathlib
from collections.abc import Callable
from typing import Any

from jspec import loading
from jspec.train import loop, optim, settings

ANSWERS = pathlib.Path(__file__).resolve().parents[1] / 'assets/answers.jsonl'
# A row of SmolLM2's vocabulary that text never uses.
MASK_TOKEN_ID = 16


def config(
  loaded: loading.LoadedTarget, workdir: pathlib.Path, seconds: float
) -> settings.TrainConfig:
  """A small DFlash on the shipped answers, ended by the clock."""
  return settings.TrainConfig(
    target=loaded.name,
    drafter=settings.DrafterConfig(
      build='jspec.train.build:dflash',
      draft_vocab_size=4096,
      options=dict(
        num_layers=1,
        mask_token_id=MASK_TOKEN_ID,
        block_size=5,
        label_shift=1,
        loss=dict(num_anchors=64),
      ),
    ),
    data=settings.DataConfig(
      answers=str(ANSWERS),
      store=str(workdir.with_name(workdir.name + '_taps')),
      # What a slow laptop captures in a third of the time.
      max_documents=96,
      num_rows=2,
    ),
    optim=optim.OptimConfig(learning_rate=1.5e-3, warmup_steps=20),
    eval=settings.EvalConfig(held_out=0.06, every=60, max_batches=2),
    num_steps=600,
    time_limit_s=seconds,
  )


def train(
  loaded: loading.LoadedTarget,
  workdir: pathlib.Path,
  seconds: float,
  on_progress: Callable[[str, Any], None],
) -> pathlib.Path:
  """Trains, or takes what an earlier run left; returns the export's folder.

  Args:
    loaded: the target.
    workdir: of the training run; its taps lie beside it.
    seconds: wall clock the training may take, capture included.
    on_progress: called with a line of text.
  """
  export = workdir / loading.EXPORT
  if (export / 'config.json').is_file():
    return export
  return loop.run(
    config(loaded, workdir, seconds),
    workdir,
    loaded=loaded,
    on_progress=lambda step, row: on_progress(
      f'training, step {step}, loss {float(row["loss"]):.2f}'
    ),
    on_message=on_progress,
  )
