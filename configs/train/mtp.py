# SPDX-License-Identifier: MIT
r"""MTP: one layer behind the target's last state, trained on its own drafts.

  jspec train \
    --config configs/train/mtp.py:target=smollm2_135m,vocab=8192 \
    --workdir runs/mtp --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  return defaults.training(
    arg,
    'jspec.train.build_plain:mtp',
    {
      'num_draft_tokens': 4,
      'init_from_target_layer': None,
      'loss': {
        'ttt_length': 2 if arg.smoke else 4,
        'num_anchors': 16 if arg.smoke else 128,
        'on_policy': True,
        'ce': 0.1,
        'lk': 1.0,
      },
    },
  )
