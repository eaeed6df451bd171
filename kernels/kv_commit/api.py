# SPDX-License-Identifier: MIT
"""`kv_commit`: the only writer of a paged key-value pool.

Rows `path[b, :num_rows[b]]` of the round's nodes go to the positions
`lengths[b], lengths[b] + 1, ...` of row b, across page borders:

  lengths=3, path=[0, 2, 4], num_rows=3:  nodes 0 2 4  ->  positions 3 4 5

Verification never wrote anything, so there is nothing to roll back.
"""

from collections.abc import Sequence

from jaxtyping import Array, Bool, Int, Shaped

from jspec.kernels import choose
from jspec.kernels.kv_commit import ref, xla


def kv_commit(
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  k: Shaped[Array, 'L B T K H'],
  v: Shaped[Array, 'L B T K H'],
  path: Int[Array, 'B G'],
  page_ids: Int[Array, 'B M'],
  lengths: Int[Array, 'B'],
  num_rows: Int[Array, 'B'],
  *,
  implementation: str | Sequence[str] | None = None,
) -> tuple[
  Shaped[Array, 'L P K R H'], Shaped[Array, 'L P K R H'], Bool[Array, '']
]:
  """Writes the rows of the accepted path directly behind the prefix.

  Args:
    k_pages: key pool; donate it, so that the write happens in place.
    v_pages: value pool.
    k: keys of the round's nodes, rotated.
    v: values of the round's nodes.
    path: node indices, anchor first; entries from `num_rows` on are ignored.
    page_ids: pages of each row in order of position, -1 where it owns none. No
      two rows write to the same page.
    lengths: committed tokens of each row before the write.
    num_rows: rows to write.
    implementation: 'reference' (numpy on the host), 'xla', 'tpu', a list of
      names (the first that can wins), or None for the best here
      (`choose.best`). A named one never falls back silently.

  Returns:
    Both pools, and whether any row had no page to go to (nothing is written
    for such a row's missing pages; it must not pass unnoticed).

  Raises:
    ValueError: no such implementation.
    NotImplementedError: the implementation named cannot do this.
  """
  return choose.run(
    IMPLEMENTATIONS,
    implementation,
    k_pages,
    v_pages,
    k,
    v,
    path,
    page_ids,
    lengths,
    num_rows,
  )


IMPLEMENTATIONS = {
  'reference': ref.kv_commit,
  'tpu': choose.late('jspec.kernels.kv_commit.tpu', 'kv_commit'),
  'xla': xla.kv_commit,
}
