# SPDX-License-Identifier: MIT
"""DSpark: DFlash with a Markov head and a confidence head (arXiv 2607.05147).

The token before a slot shifts its logits by a low-rank table (`markov`), or by
a gated or recurrent form of it; a second head says how likely a draft is
accepted if those before were (`confidence`), which depth policies can use.
Published ones are trained with `label_shift` 1: the anchor's slot predicts too.
"""

from jspec.drafters import block_method

METHOD = block_method.BlockMethod(
  name='dspark',
  parts=(
    'markov_rank',
    'markov_kind',
    'has_confidence',
    'confidence_sees_token',
  ),
)
