# SPDX-License-Identifier: MIT
"""`block_tree_attention`: a paged prefix and the round's own nodes.

Node t of row b attends to every committed token of its row (no mask: all of
them precede it) and to the nodes of the round whose bit is set in
`ancestors[b, t]`. Chains, bidirectional draft blocks, trees, and several
branches over one shared prefix (cascade attention) differ in those bits only.
Both parts are merged by log-sum-exp in float32:

  o = (e^lse_s o_s + e^lse_u o_u) / (e^lse_s + e^lse_u + e^sink)

with s the prefix, u the nodes and `sink` the head's optional extra logit. With
a window, a token at position i is visible to a node at position p if
p - i < window.

Pools of eight bits come with a scale for every row, which goes with the row's
score and with its weight:

  score_i = scale_i (q . k_i)      o = sum_i (weight_i scale_i) v_i
"""

import math
from collections.abc import Sequence

from jaxtyping import Array, Float, Int, Shaped, UInt32

from jspec.kernels import choose
from jspec.kernels.block_tree_attention import check, pack, ref, xla

_HERE = 'jspec.kernels.block_tree_attention'
IMPLEMENTATIONS = {
  'gpu': choose.late(f'{_HERE}.gpu', 'block_tree_attention'),
  'reference': ref.block_tree_attention,
  'tpu': choose.late(f'{_HERE}.tpu', 'block_tree_attention'),
  'xla': xla.block_tree_attention,
}


def block_tree_attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  *,
  layer: Int[Array, ''],
  page_ids: Int[Array, 'B M'],
  lengths: Int[Array, 'B'],
  ancestors: UInt32[Array, 'B T W'],
  num_nodes: Int[Array, 'B'] | None = None,
  depths: Int[Array, 'B T'] | None = None,
  window: int | None = None,
  sinks: Float[Array, 'N'] | None = None,
  k_scale: Float[Array, 'L P K R'] | None = None,
  v_scale: Float[Array, 'L P K R'] | None = None,
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
    ancestors: bit j of word w: node 32 * w + j is visible. A live node must see
      itself, else its output means nothing.
    num_nodes: live nodes of each row; from there on the output is 0. None means
      all of them.
    depths: distance of each node from the anchor; a window needs them.
    window: tokens a node sees, itself included; None means all.
    sinks: a logit of each head that takes part in the softmax and has no value
      (GPT-OSS); None means none.
    k_scale: of every key in a pool of int8 or float8_e4m3fn; None for others.
    v_scale: of every value, likewise.
    scale: factor on the scores; None means H ** -0.5.
    implementation: 'reference', 'xla', 'tpu', 'gpu', a list of names (the first
      that can wins), or None for the best here (`choose.best`). A named one
      never falls back silently.

  Raises:
    ValueError: shapes, dtype or head width that no implementation takes, or an
      implementation that does not exist.
    NotImplementedError: the implementation named cannot do this.
  """
  named = dict(
    layer=layer,
    page_ids=page_ids,
    lengths=lengths,
    ancestors=ancestors,
    num_nodes=num_nodes,
    depths=depths,
    window=window,
    sinks=sinks,
    k_scale=k_scale,
    v_scale=v_scale,
    scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
  )
  check.check(q, k, v, k_pages, v_pages, **named)
  return choose.run(
    IMPLEMENTATIONS, implementation, q, k, v, k_pages, v_pages, **named
  )


def packed(
  q: Float[Array, 'Q N H'],
  k: Float[Array, 'Q K H'],
  v: Float[Array, 'Q K H'],
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  *,
  starts: Int[Array, 'B1'],
  max_nodes: int,
  ancestors: UInt32[Array, 'Q W'],
  depths: Int[Array, 'Q'] | None = None,
  **named,
) -> Float[Array, 'Q N H']:
  """The same over rows of unequal depth, packed on one token axis.

  Row b's nodes are tokens `starts[b]` to `starts[b + 1]` (exclusive); tokens
  from `starts[B]` on are padding and come out as 0. `ancestors` count nodes
  within their own row. The other arguments are as above.

  Args:
    q: queries of all nodes, rotated.
    k: keys of all nodes, rotated.
    v: values of all nodes.
    k_pages: key pool of all layers.
    v_pages: value pool of all layers.
    starts: first token of each row, and the end of the last one.
    max_nodes: most nodes of any row; known when compiled.
    ancestors: as above, a word for every 32 of `max_nodes` nodes.
    depths: as above.
    **named: layer, page_ids, lengths, window, sinks, k_scale, v_scale, scale,
      implementation.
  """
  index, num_nodes = pack.index(starts, max_nodes, q.shape[0])
  rows = block_tree_attention(
    *(pack.to_rows(x, index) for x in (q, k, v)),
    k_pages,
    v_pages,
    ancestors=pack.to_rows(ancestors, index),
    depths=None if depths is None else pack.to_rows(depths, index),
    num_nodes=num_nodes,
    **named,
  )
  return pack.to_tokens(rows, starts, q.shape[0])
