# SPDX-License-Identifier: MIT
r"""D2SD: one model drafts blocks and drafts again behind their likely ends.

  jspec train \
    --config configs/train/d2sd.py:target=smollm2_135m \
    --workdir runs/d2sd --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    parts={'num_cuts': 4, 'shared': True},
    # Of lengths of given prefixes; 0 trains a DFlash.
    prefix_decay=0.85,
    loss={'mix': {'ce': 1.0, 'weights': 'decay', 'decay_gamma': 4.0}},
  )
  return defaults.training(arg, 'jspec.train.build_d2sd:d2sd', options)
