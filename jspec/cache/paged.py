# SPDX-License-Identifier: MIT
"""The paged key-value cache as a value.

A row's tokens live in pages of R rows each; `page_ids[b, j]` is the page that
holds positions j * R .. j * R + R - 1 of row b (-1: none). Several pools can
share one table: the drafter keeps its context rows under the target's page ids.

Only `commit` writes, after acceptance. Verification reads; nothing wrong is
ever written, so nothing is ever rolled back.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jspec.cache import forms
from jspec.kernels.kv_commit import api as kv_commit
from jspec.kernels.kv_commit import sharded as kv_commit_sharded
from jspec.typing import Array, BFloat16, Bool, Float, Int, Shaped


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pages:
  """A pool of key and value rows.

  A page holds its rows head by head ([K, R, H]): attention batches over heads,
  and the other order costs a transposed copy of every page it reads (6 times
  the attention time at one row on a CPU).

  Attributes:
    k: keys, rotated.
    v: values.
    k_scale: of each key, where keys are of eight bits (`cache.forms`).
    v_scale: of each value, likewise.
    sharding: how the pools lie on a mesh that shares out the heads; attention
      and commit run on every shard's own heads then. None: XLA alone decides.
  """

  k: Shaped[Array, 'L P K R H']
  v: Shaped[Array, 'L P K R H']
  k_scale: BFloat16[Array, 'L P K R'] | None = None
  v_scale: BFloat16[Array, 'L P K R'] | None = None
  sharding: NamedSharding | None = dataclasses.field(
    default=None, metadata={'static': True}
  )

  @property
  def shards(self) -> dict[str, Any]:
    """Mesh and axis of the heads, as the kernels' `sharded` modules name them.

    Empty without a mesh.
    """
    if self.sharding is None:
      return {}
    return dict(mesh=self.sharding.mesh, heads=self.sharding.spec[2])

  @property
  def scales(self) -> dict[str, Any]:
    """The scales, as attention names them; empty where there are none."""
    if self.k_scale is None:
      return {}
    return dict(k_scale=self.k_scale, v_scale=self.v_scale)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PageTable:
  """Which pages a row owns and how many of its tokens are committed.

  Attributes:
    page_ids: pages of each row in order of position; -1 where it owns none.
    lengths: committed tokens of each row.
    dropped: True once any row was committed without a page to hold it. The
      host checks it; the row's later output is not to be trusted.
  """

  page_ids: Int[Array, 'B M']
  lengths: Int[Array, 'B']
  dropped: Bool[Array, '']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedCache:
  """The target's committed keys and values."""

  pages: Pages
  table: PageTable

  def commit(
    self,
    k: Float[Array, 'L B T K H'],
    v: Float[Array, 'L B T K H'],
    path: Int[Array, 'B T2'],
    num_rows: Int[Array, 'B'],
  ) -> 'PagedCache':
    """Appends nodes `path[:num_rows]` of every row behind its prefix."""
    pages, dropped = write(self.pages, self.table, k, v, path, num_rows)
    return PagedCache(pages, advance(self.table, num_rows, dropped))


def write(
  pages: Pages,
  table: PageTable,
  k: Float[Array, 'L B T K H'],
  v: Float[Array, 'L B T K H'],
  path: Int[Array, 'B T2'],
  num_rows: Int[Array, 'B'],
) -> tuple[Pages, Bool[Array, '']]:
  """Writes rows at `table.lengths` onwards; the table itself stays as it is.

  Returns the pages and whether any row had no page to go to.
  """
  commit = kv_commit_sharded if pages.shards else kv_commit

  def to(k_pages, v_pages, k, v, **implementation):
    return commit.kv_commit(
      k_pages,
      v_pages,
      k,
      v,
      path,
      table.page_ids,
      table.lengths,
      num_rows,
      **implementation,
      **pages.shards,
    )

  if pages.k_scale is None:
    k_pages, v_pages, dropped = to(pages.k, pages.v, k, v)
    return dataclasses.replace(pages, k=k_pages, v=v_pages), dropped
  form = forms.of_dtype(pages.k.dtype)
  (k, k_scale), (v, v_scale) = (forms.quantise(x, form) for x in (k, v))
  k_pages, v_pages, dropped = to(pages.k, pages.v, k, v)
  # Scales are rows of one number, in pools that share the table.
  scales = (pages.k_scale, pages.v_scale, k_scale, v_scale)
  k_scale, v_scale, _ = to(
    *(x[..., None] for x in scales), implementation='xla'
  )
  return (
    dataclasses.replace(
      pages,
      k=k_pages,
      v=v_pages,
      k_scale=k_scale[..., 0],
      v_scale=v_scale[..., 0],
    ),
    dropped,
  )


def advance(
  table: PageTable, num_rows: Int[Array, 'B'], dropped: Bool[Array, '']
) -> PageTable:
  """Counts `num_rows` more committed tokens."""
  return PageTable(
    table.page_ids, table.lengths + num_rows, table.dropped | dropped
  )


def init_pages(
  num_layers: int,
  num_pages: int,
  page_size: int,
  num_kv_heads: int,
  head_width: int,
  dtype=jnp.float32,
  form: str | None = None,
) -> Pages:
  """An empty pool.

  Args:
    num_layers: L.
    num_pages: P.
    page_size: R.
    num_kv_heads: K.
    head_width: H.
    dtype: of the rows, where `form` does not say.
    form: of the rows (`cache.forms`).
  """
  shape = (num_layers, num_pages, num_kv_heads, page_size, head_width)
  dtype = dtype if form is None else forms.DTYPES[form]
  pages = Pages(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
  if not forms.has_scales(form):
    return pages
  return dataclasses.replace(
    pages,
    k_scale=jnp.zeros(shape[:-1], jnp.bfloat16),
    v_scale=jnp.zeros(shape[:-1], jnp.bfloat16),
  )


def contiguous_table(num_rows: int, pages_per_row: int) -> PageTable:
  """The table of offline decoding: row b owns pages b * M .. b * M + M - 1."""
  page_ids = jnp.arange(num_rows * pages_per_row, dtype=jnp.int32)
  return PageTable(
    page_ids.reshape(num_rows, pages_per_row),
    jnp.zeros((num_rows,), jnp.int32),
    jnp.zeros((), bool),
  )
