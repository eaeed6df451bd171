# SPDX-License-Identifier: MIT
"""A run of `jspec train` that ends soon and decodes two prompts twice."""

import json
import pathlib

from tests.cli.bad_input import CONFIG
from tests.train import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]


def words(
  folder: pathlib.Path, target: pathlib.Path, workdir: pathlib.Path
) -> list[str]:
  """The command line of four steps; writes what they read.

  Args:
    folder: for answers, prompts and taps.
    target: of `tiny_model`.
    workdir: of the run.
  """
  tiny.write_answers(folder / 'answers.jsonl')
  # As many as `smoke` takes, and one more.
  prompts = [{'prompt': 'w5 w9 w30'}, {'prompt': 'w8 w9'}, {'prompt': 'w7'}]
  (folder / 'prompts.jsonl').write_text(
    ''.join(json.dumps(prompt) + '\n' for prompt in prompts)
  )
  return [
    'train',
    f'--config={ROOT / CONFIG}:target={target},smoke',
    f'--workdir={workdir}',
    f'--config.data.answers={folder / "answers.jsonl"}',
    f'--config.data.store={folder / "taps"}',
    f'--config.eval.prompts={folder / "prompts.jsonl"}',
    '--config.drafter.options.mask_token_id=3',
    '--config.drafter.options.num_taps=1',
    '--config.data.num_rows=8',
    '--config.optim.warmup_steps=1',
    '--config.num_steps=4',
    '--config.eval.every=2',
  ]
