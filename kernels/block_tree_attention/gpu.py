# SPDX-License-Identifier: MIT
"""Pallas GPU (Mosaic GPU, Hopper): prepares the kernel's rows, merges shares.

Heads that share a key-value head are folded into query rows, so each live page
is read once for all of them. Where rows are few their contexts are split into
shares (flash decoding), and XLA merges what `gpu_kernel` returns for each:

  out = sum_i 2^(m_i - M) o_i / (sum_i 2^(m_i - M) z_i + 2^(sink - M))

A window is folded into the ancestor words and into the first position a query
row sees. float32 is refused: WGMMA would round it to ten bits.

What was run, all without a GPU: lowering for CUDA; the kernel's arithmetic,
copies and barriers in the Mosaic GPU interpreter; compilation for an H100 by
XLA, Mosaic and ptxas. It has not run on a GPU: neither its numbers nor its
speed there are known. It needs Hopper (sm_90a): for other generations, which
lack WGMMA, Mosaic fails to compile it.
"""

import math

import jax.numpy as jnp
from jax import lax

from jspec.kernels.block_tree_attention import gpu_kernel

TILE = gpu_kernel.TILE
WORD_BITS = gpu_kernel.WORD_BITS
LOG2_E = math.log2(math.e)
PROGRAMS = 264  # Two for each of Hopper's 132 multiprocessors.
MAX_SHARES = 16
MIN_SHARE = 256  # Cached rows, so that a share is worth its merge.


def block_tree_attention(
  q,
  k,
  v,
  k_pages,
  v_pages,
  *,
  layer,
  page_ids,
  lengths,
  ancestors,
  num_nodes,
  depths,
  window,
  sinks,
  scale,
  k_scale=None,
  v_scale=None,
):
  """Same contract as `api.block_tree_attention`.

  Raises:
    NotImplementedError: a dtype, head width or page size that the kernel does
      not take.
  """
  if k_scale is not None or v_scale is not None:
    raise NotImplementedError(
      f"block_tree_attention 'gpu': pages of {k_pages.dtype} with scales; use"
      " implementation='xla'"
    )
  _refuse(q, k, v, k_pages, v_pages)
  rows, max_nodes, num_heads, _ = q.shape
  _, num_pages, num_kv_heads, page_size, _ = k_pages.shape
  groups = num_heads // num_kv_heads
  num_tiles = -(-groups * max_nodes // TILE)
  num_shares = _num_shares(
    rows * num_kv_heads * num_tiles, page_ids.shape[1] * page_size
  )
  live = jnp.full((rows,), max_nodes) if num_nodes is None else num_nodes
  is_dead = jnp.arange(max_nodes) >= live[:, None]

  first = jnp.zeros((rows, max_nodes), jnp.int32)
  if window is not None:
    first = jnp.maximum(lengths[:, None] + depths - window + 1, 0)
    ancestors &= _near_words(depths, window)
  padding = -max_nodes % TILE // WORD_BITS
  words = lax.bitcast_convert_type(ancestors, jnp.int32)
  words = jnp.pad(words, ((0, 0), (0, 0), (0, padding)))
  by_row = jnp.concatenate([words, first[..., None]], axis=-1)

  piece = min(page_size, TILE)
  o, m, z = gpu_kernel.run(
    _fold(q, num_kv_heads, num_tiles),
    _node_pieces(k, piece),
    _node_pieces(v, piece),
    k_pages.reshape(-1, piece, k.shape[3]),
    v_pages.reshape(-1, piece, k.shape[3]),
    ((layer * num_pages + jnp.maximum(page_ids, 0)) * num_kv_heads).astype(
      jnp.int32
    ),
    lengths.astype(jnp.int32),
    jnp.min(jnp.where(is_dead, lengths[:, None], first), axis=1).astype(
      jnp.int32
    ),
    live.astype(jnp.int32),
    _fold_by_row(by_row, groups, num_tiles),
    page_size=page_size,
    num_shares=num_shares,
    has_window=window is not None,
    scale=scale * LOG2_E,
  )
  out = _merge(o, m, z, sinks, groups, max_nodes).astype(v.dtype)
  return jnp.where(is_dead[:, :, None, None], 0, out)


def _refuse(*arrays):
  """Raises NotImplementedError, with the mend, for what the kernel cannot."""
  q, *_, pool = arrays
  dtypes = sorted({str(x.dtype) for x in arrays})
  width, page_size = q.shape[-1], pool.shape[3]
  reason = None
  if dtypes not in (['bfloat16'], ['float16']):
    reason = (
      f'operands are {" and ".join(dtypes)}; they must all be bfloat16 or all'
      ' float16'
    )
  elif gpu_kernel.swizzle_of(width) is None or width > 256:
    reason = f'heads are {width} wide; it takes multiples of 16 up to 256'
  elif page_size not in (8, 16, 32) and page_size % TILE:
    reason = f'pages have {page_size} rows; it takes 8, 16, 32 or 64 n'
  if reason:
    raise NotImplementedError(
      f"block_tree_attention 'gpu': {reason}; use implementation='xla'"
    )


def _num_shares(num_programs, capacity):
  """As many shares as fill the device, none of them too short."""
  return max(
    1, min(PROGRAMS // num_programs, capacity // MIN_SHARE, MAX_SHARES)
  )


def _fold(q, num_kv_heads, num_tiles):
  """Queries [B T N H] as rows [B K tiles 64 H], all nodes of a head in turn."""
  rows, max_nodes, _, width = q.shape
  q = q.reshape(rows, max_nodes, num_kv_heads, -1, width)
  q = q.transpose(0, 2, 3, 1, 4).reshape(rows, num_kv_heads, -1, width)
  padding = num_tiles * TILE - q.shape[2]
  q = jnp.pad(q, ((0, 0), (0, 0), (0, padding), (0, 0)))
  return q.reshape(rows, num_kv_heads, num_tiles, TILE, width)


def _fold_by_row(x, groups, num_tiles):
  """Numbers of a node [B T X] for the rows that `_fold` makes of it."""
  x = jnp.concatenate([x] * groups, axis=1)
  padding = num_tiles * TILE - x.shape[1]
  x = jnp.pad(x, ((0, 0), (0, padding), (0, 0)))
  return x.reshape(x.shape[0], num_tiles, TILE, -1).swapaxes(2, 3)


def _node_pieces(x, piece):
  """Nodes [B T K H], head by head in whole blocks, as pieces of a page."""
  padding = -x.shape[1] % TILE
  x = jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, padding), (0, 0)))
  return x.reshape(-1, piece, x.shape[-1])


def _near_words(depths, window):
  """Bit u of node t's words: whether t is less than a window below u."""
  is_near = depths[:, :, None] - depths[:, None, :] < window
  padding = -is_near.shape[2] % WORD_BITS
  is_near = jnp.pad(is_near, ((0, 0), (0, 0), (0, padding)))
  is_near = is_near.reshape(*is_near.shape[:2], -1, WORD_BITS)
  bits = is_near.astype(jnp.uint32) << jnp.arange(WORD_BITS, dtype=jnp.uint32)
  return jnp.sum(bits, axis=-1, dtype=jnp.uint32)


def _merge(o, m, z, sinks, groups, max_nodes):
  """Shares [B K tiles shares 64 ...] and sinks; [B T N H] in float32."""
  rows, num_kv_heads, *_, width = o.shape

  def unfold(x):
    x = x.swapaxes(2, 3).reshape(*x.shape[:2], x.shape[3], -1, *x.shape[5:])
    x = x[:, :, :, : groups * max_nodes]
    return x.reshape(*x.shape[:3], groups, max_nodes, *x.shape[4:])

  o, m, z = unfold(o), unfold(m), unfold(z)
  top = jnp.max(m, axis=2)
  if sinks is not None:
    sink = sinks.astype(jnp.float32).reshape(num_kv_heads, groups, 1) * LOG2_E
    top = jnp.maximum(top, sink)
  factor = jnp.exp2(m - top[:, :, None])
  o = jnp.sum(o * factor[..., None], axis=2)
  z = jnp.sum(z * factor, axis=2)
  if sinks is not None:
    z += jnp.exp2(sink - top)
  out = (o / z[..., None]).transpose(0, 3, 1, 2, 4)
  return out.reshape(rows, max_nodes, num_kv_heads * groups, width)
