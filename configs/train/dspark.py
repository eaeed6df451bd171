# SPDX-License-Identifier: MIT
r"""DSpark: Markov head and confidence head, trained on the target's law.

  jspec train \
    --config configs/train/dspark.py:target=smollm2_135m \
    --workdir runs/dspark --config.data.answers=answers.jsonl.gz

Argument string: see `jspec.train.defaults.parse`.
"""

import ml_collections

from jspec.train import defaults


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Builds the config; see the module docstring for `arg`."""
  arg = defaults.parse(arg)
  options = defaults.block(
    arg,
    label_shift=1,
    block_size=7,
    parts={
      'markov_rank': 256,
      'markov_kind': 'vanilla',
      'has_confidence': True,
      'confidence_sees_token': True,
    },
    loss={
      'mix': {
        'ce': 0.1,
        'l1': 0.9,
        'confidence': 1.0,
        'weights': 'decay',
        'decay_gamma': 4.0,
      }
    },
  )
  return defaults.training(arg, 'jspec.train.build:dspark', options)
