# SPDX-License-Identifier: MIT
r"""EAGLE-3: one layer run on its own output, trained by test-time training.

  jspec train \
    --config configs/train/eagle3.py:target=smollm2_135m,vocab=8192 \
    --workdir runs/eagle3 --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  return defaults.training(
    arg,
    'jspec.train.build_plain:eagle3',
    {
      'num_draft_tokens': 5,
      'loss': {
        'ttt_length': 2 if arg.smoke else 5,
        'step_decay': 0.8,
        'num_anchors': 16 if arg.smoke else 128,
      },
    },
  )
