# SPDX-License-Identifier: MIT
"""DFly: DFlash's projection, DFlare's mix, and a correction (arXiv 2607.25852).

Context is the projection of all taps plus each layer's own mix of them. Behind
the backbone a small gated MLP corrects every slot by the token before it
(`correction`); it starts as the identity and runs slot by slot when decoding.
"""

from jspec.drafters import block_method

METHOD = block_method.BlockMethod(
  name='dfly',
  parts=('correction_width',),
  fixed={'fusion': 'concat_layer_mix'},
)
