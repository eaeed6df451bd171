# SPDX-License-Identifier: MIT
r"""DFly: projection and mix, hidden correction, slots weighed by D-PACE.

  jspec train \
    --config configs/train/dfly.py:target=smollm2_135m \
    --workdir runs/dfly --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    parts={'correction_width': 576},
    loss={'mix': {'ce': 1.0, 'weights': 'dpace'}},
  )
  return defaults.training(arg, 'jspec.train.build:dfly', options)
