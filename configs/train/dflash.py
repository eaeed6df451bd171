# SPDX-License-Identifier: MIT
r"""DFlash on the answers its target wrote.

  jspec train \
    --config configs/train/dflash.py:target=smollm2_135m \
    --workdir runs/dflash --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    loss={'mix': {'ce': 1.0, 'weights': 'decay', 'decay_gamma': 4.0}},
  )
  return defaults.training(arg, 'jspec.train.build:dflash', options)
