# SPDX-License-Identifier: MIT
"""`block_tree_attention`: a paged prefix and the round's own nodes.

Node t of row b attends to every committed token of its row (no mask: all of
them precede it) and to the nodes of the round whose bit is set in
`ancestors[b, t]`. Chains, bidirectional draft blocks and trees differ in those
bits only. Both parts are merged by log-sum-exp in float32.
"""

import math
from collections.abc import Sequence

from jaxtyping import Array, Float, Int, UInt32

from jspec.kernels.block_tree_attention import ref, xla

IMPLEMENTATIONS = {
  'reference': ref.block_tree_attention,
  'xla': xla.block_tree_attention,
}


def block_tree_attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  k_pages: Float[Array, 'L P K R H'],
  v_pages: Float[Array, 'L P K R H'],
  *,
  layer: Int[Array, ''],
  page_ids: Int[Array, 'B M'],
  lengths: Int[Array, 'B'],
  ancestors: UInt32[Array, 'B T W'],
  scale: float | None = None,
  implementation: str | Sequence[str] | None = None,
) -> Float[Array, 'B T N H']:
  """Attends over committed pages and the ancestors among the nodes.

  Args:
    q: queries of the nodes, rotated.
    k: keys of the nodes, rotated.
    v: values of the nodes.
    k_pages: key pool of all layers.
    v_pages: value pool of all layers.
    layer: which layer of the pools to read.
    page_ids: pages of each row in order of position, -1 where it owns none.
    lengths: committed tokens of each row; what lies behind is never read.
    ancestors: bit j of word w: node 32 * w + j is visible. A node must see
      itself, else its output is NaN.
    scale: factor on the scores; None means H ** -0.5.
    implementation: 'reference', 'xla', a list of them (the first that exists
      wins), or None for the best here. A named one never falls back silently.

  Raises:
    ValueError: no such implementation.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  return _choose(implementation)(
    q,
    k,
    v,
    k_pages,
    v_pages,
    layer=layer,
    page_ids=page_ids,
    lengths=lengths,
    ancestors=ancestors,
    scale=scale,
  )


def _choose(implementation):
  if implementation is None:
    return IMPLEMENTATIONS['xla']
  names = (
    [implementation] if isinstance(implementation, str) else implementation
  )
  for name in names:
    if name in IMPLEMENTATIONS:
      return IMPLEMENTATIONS[name]
  raise ValueError(
    f'implementation={implementation!r}: choose from {sorted(IMPLEMENTATIONS)}'
  )
