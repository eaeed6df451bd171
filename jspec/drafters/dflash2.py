# SPDX-License-Identifier: MIT
"""DFlash2: DFlash whose slots agree with each other.

Two additions, both without effect at the start: a selector that rescores every
slot's best tokens given the token before (`selector`), and convolutions that
let a slot see the one before it around every attention and MLP (`conv`). The
walk over slots costs K scores each; backbone and LM head run once.
"""

from jspec.drafters import block_method

METHOD = block_method.BlockMethod(
  name='dflash2',
  parts=('selector_rank', 'selector_size', 'conv_group'),
)
