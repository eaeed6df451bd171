# SPDX-License-Identifier: MIT
"""The state of an engine before its first request."""

import dataclasses

import jax.numpy as jnp

from jspec.cache import paged
from jspec.decode import asks as asks_lib
from jspec.decode import round as round_lib
from jspec.serve import programs


def init_state(
  target,
  drafter,
  *,
  num_rows: int,
  num_pages: int,
  page_size: int,
  capacity: int,
) -> round_lib.State:
  """Empty rows over a pool of pages that none of them owns yet.

  Args:
    target: the model.
    drafter: who drafts.
    num_rows: requests decoded side by side.
    num_pages: pages of the pool.
    page_size: tokens of a page.
    capacity: most pages of a row.
  """
  table = paged.PageTable(
    jnp.full((num_rows, capacity), -1, jnp.int32),
    jnp.zeros((num_rows,), jnp.int32),
    jnp.zeros((), bool),
  )
  state = round_lib.empty_state(
    target,
    drafter,
    table,
    num_pages=num_pages,
    page_size=page_size,
    output_len=0,
    num_stop_ids=programs.NUM_STOP_IDS,
  )
  return dataclasses.replace(
    state,
    asks=asks_lib.init(num_rows, target.vocab_size),
    scores=jnp.full(state.stats.num_drafted.shape, jnp.nan),
  )
