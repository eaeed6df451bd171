# SPDX-License-Identifier: MIT
"""All drafts of a batch in one list, best first.

Scores never rise along a row (`base.clean`), and equal scores go by (depth,
row), so the first n of the list are a prefix of every row, for every n. No
other n drafts are expected to bring more tokens (D-cut, arXiv 2607.14647).

  row 0  .9 .81 .73      order  .9 .81 .73 .5 .45 .41      n = 3: counts 3 0
  row 1  .5 .45 .41      row     0  0   0   1  1   1       n = 4: counts 3 1
"""

from typing import NamedTuple

import jax.numpy as jnp

from jspec.typing import Array, Float, Int


class Ranking(NamedTuple):
  """The list, and what its prefixes are worth.

  Attributes:
    rows: row of each entry, best first; N = B * G.
    gained: `gained[n]` is the sum of the n best scores; N + 1 entries.
    num_positive: entries with a positive score; the rest is no draft.
    num_first: entries that go before all others (`floor` of `rank`).
    num_rows: B.
  """

  rows: Int[Array, 'N']
  gained: Float[Array, 'N1']
  num_positive: Int[Array, '']
  num_first: Int[Array, '']
  num_rows: int


def rank(scores: Float[Array, 'B G'], floor: int = 0) -> Ranking:
  """Ranks clean scores; the first `floor` drafts of a row go before others."""
  num_rows, depth = scores.shape
  is_first = (jnp.arange(depth) < floor) & (scores > 0)
  # Scores are at most 1, so + 1 puts an entry before all that lack it. Depth
  # by depth, so that a stable sort breaks ties by (depth, row).
  by_depth = jnp.where(is_first, scores + 1, scores).T.reshape(-1)
  order = jnp.argsort(-by_depth, stable=True)
  ranked = scores.T.reshape(-1)[order]
  return Ranking(
    rows=(order % num_rows).astype(jnp.int32),
    gained=jnp.concatenate([jnp.zeros((1,)), jnp.cumsum(ranked)]),
    num_positive=jnp.sum(scores > 0, dtype=jnp.int32),
    num_first=jnp.sum(is_first, dtype=jnp.int32),
    num_rows=num_rows,
  )


def counts(ranking: Ranking, num_kept: Int[Array, '']) -> Int[Array, 'B']:
  """How many of the `num_kept` best drafts each row has."""
  is_kept = jnp.arange(ranking.rows.shape[0]) < num_kept
  zeros = jnp.zeros((ranking.num_rows,), jnp.int32)
  return zeros.at[ranking.rows].add(is_kept.astype(jnp.int32))


def fit(
  wanted: Int[Array, 'B'],
  scores: Float[Array, 'B G'],
  num_active: Int[Array, ''],
  most_nodes: Int[Array, ''],
) -> Int[Array, 'B']:
  """Cuts counts that rows chose alone down to the best that fit a budget."""
  is_wanted = jnp.arange(scores.shape[1]) < wanted[:, None]
  ranking = rank(jnp.where(is_wanted, scores, 0.0))
  room = jnp.maximum(most_nodes - num_active, 0)
  return counts(ranking, jnp.minimum(ranking.num_positive, room))
