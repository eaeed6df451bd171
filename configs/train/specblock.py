# SPDX-License-Identifier: MIT
r"""SpecBlock: blocks of slots that also say how far to trust them.

  jspec train \
    --config configs/train/specblock.py:target=smollm2_135m,vocab=8192 \
    --workdir runs/specblock --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  return defaults.training(
    arg,
    'jspec.train.build_plain:specblock',
    {
      'num_layers': 2,
      'block_size': 4,
      'num_draft_tokens': 4,
      'loss': {
        'num_anchors': 16 if arg.smoke else 64,
        'num_blocks': 2 if arg.smoke else 3,
      },
    },
  )
