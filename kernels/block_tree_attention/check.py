# SPDX-License-Identifier: MIT
"""What no implementation of block-tree attention takes, by name and limit."""

import jax
import jax.numpy as jnp

MAX_NODES = 1024  # A chunk of prefill; drafts are smaller.
WORD_BITS = 32
MAX_HEAD_WIDTH = 1024  # Latents are wide; the Pallas kernels take 256.
DTYPES = ('float32', 'bfloat16', 'float16')
SCALED = ('int8', 'float8_e4m3fn')  # Pools, with a scale for every row.


def check(q, k, v, k_pages, v_pages, **named):
  """Refuses what cannot be meant, before anything is traced further.

  Arguments as of `api.block_tree_attention`, all given.

  Raises:
    ValueError: says what is wrong, the limit and the mend.
  """
  rows, num_nodes, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  _expect(
    num_nodes <= MAX_NODES,
    f'{num_nodes} nodes in a row; at most {MAX_NODES} can be scored at once:'
    ' give fewer',
  )
  for name, array in dict(q=q, k=k, v=v).items():
    _expect(
      str(array.dtype) in DTYPES,
      f'{name} is {array.dtype}; cast it to one of {", ".join(DTYPES)}',
    )
  pools = dict(k_scale=k_pages, v_scale=v_pages)
  for name, pages in pools.items():
    kind, has_scale = str(pages.dtype), named.get(name) is not None
    _expect(
      kind in DTYPES + SCALED,
      f'{name[0]}_pages is {kind}; it must be one of'
      f' {", ".join(DTYPES + SCALED)}',
    )
    _expect(
      has_scale == (kind in SCALED),
      f'{name[0]}_pages is {kind} and {name} is'
      f' {"given" if has_scale else "None"}: give it with'
      f' {" and ".join(SCALED)}, and with nothing else',
    )
  _expect(
    1 <= width <= MAX_HEAD_WIDTH,
    f'heads are {width} wide; at most {MAX_HEAD_WIDTH} is supported',
  )
  _expect(
    num_heads % num_kv_heads == 0,
    f'{num_heads} query heads do not divide among {num_kv_heads} key-value'
    ' heads',
  )
  num_words = -(-num_nodes // WORD_BITS)
  num_layers, num_pages, _, page_size, _ = k_pages.shape
  pool = (num_layers, num_pages, num_kv_heads, page_size, width)
  expected = dict(
    k=(k, (rows, num_nodes, num_kv_heads, width)),
    v=(v, (rows, num_nodes, num_kv_heads, width)),
    k_pages=(k_pages, pool),
    v_pages=(v_pages, pool),
    page_ids=(named['page_ids'], (rows, named['page_ids'].shape[-1])),
    lengths=(named['lengths'], (rows,)),
    ancestors=(named['ancestors'], (rows, num_nodes, num_words)),
    num_nodes=(named['num_nodes'], (rows,)),
    depths=(named['depths'], (rows, num_nodes)),
    sinks=(named['sinks'], (num_heads,)),
    k_scale=(named.get('k_scale'), pool[:-1]),
    v_scale=(named.get('v_scale'), pool[:-1]),
  )
  for name, (array, shape) in expected.items():
    _expect(
      array is None or array.shape == shape,
      f'{name} has shape {getattr(array, "shape", None)}; it must be {shape}'
      f' to fit q {q.shape}',
    )
  _expect(
    named['ancestors'].dtype == jnp.uint32,
    f'ancestors are {named["ancestors"].dtype}; pack them as uint32 words',
  )
  window = named['window']
  _expect(
    window is None or (not isinstance(window, jax.Array) and window >= 1),
    f'window={window}: give a whole number from 1, or None',
  )
  _expect(
    window is None or named['depths'] is not None,
    'a window needs depths, the distance of each node from the anchor',
  )


def _expect(is_good, message):
  if not is_good:
    raise ValueError(f'block_tree_attention: {message}')
