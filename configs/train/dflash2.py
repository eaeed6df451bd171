# SPDX-License-Identifier: MIT
r"""DFlash2: DFlash with a selector and convolutions, slots weighed by D-PACE.

  jspec train \
    --config configs/train/dflash2.py:target=smollm2_135m \
    --workdir runs/dflash2 --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    parts={'selector_rank': 256, 'selector_size': 16, 'conv_group': 16},
    loss={'mix': {'ce': 1.0, 'weights': 'dpace'}, 'selector': 1.0},
  )
  return defaults.training(arg, 'jspec.train.build:dflash2', options)
