# SPDX-License-Identifier: MIT
r"""DFlare: every draft layer its own mix of many target layers.

  jspec train \
    --config configs/train/dflare.py:target=smollm2_135m \
    --workdir runs/dflare --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    num_layers=1 if arg.smoke else 3,
    num_taps=2 if arg.smoke else 9,
    loss={'mix': {'ce': 1.0, 'weights': 'decay', 'decay_gamma': 4.5}},
  )
  return defaults.training(arg, 'jspec.train.build:dflare', options)
