# SPDX-License-Identifier: MIT
"""States in the middle of an answer, and programs that decode on from them."""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from jspec.cache import paged
from jspec.decode import round as round_lib

PAGE_SIZE = 32
# Steps in one timed program, so that dispatch is not what is measured.
STEPS = 8


def filled_cache(model: Any, rows: int, context: int) -> paged.PagedCache:
  """A cache of `rows` rows with `context` tokens, and room for a few more."""
  pages_per_row = -(-(context + 64) // PAGE_SIZE)
  table = paged.contiguous_table(rows, pages_per_row)
  lengths = jnp.full((rows,), context, jnp.int32)
  pages = paged.init_pages(
    model.num_layers,
    rows * pages_per_row,
    PAGE_SIZE,
    model.num_kv_heads,
    model.head_width,
    model.embedding[...].dtype,
    model.cache_form,
  )
  return paged.PagedCache(pages, dataclasses.replace(table, lengths=lengths))


def decoding_state(model: Any, drafter: Any, context: int) -> round_lib.State:
  """One row in the middle of an answer."""
  state = round_lib.init_state(
    model,
    drafter,
    num_rows=1,
    max_len=min(model.max_len, context + 1024),
    page_size=PAGE_SIZE,
    num_stop_ids=1,
  )
  table = dataclasses.replace(
    state.cache.table, lengths=jnp.full((1,), context, jnp.int32)
  )
  return dataclasses.replace(
    state,
    cache=dataclasses.replace(state.cache, table=table),
    anchor=jnp.ones((1,), jnp.int32),
    remaining=jnp.full((1,), 10**6, jnp.int32),
  )


def rounds_program(model: Any, drafter: Any, context: int) -> tuple[Any, float]:
  """A function that runs `STEPS` rounds, and the seconds to compile it.

  The state is donated and carried on, as in real decoding, so the context grows
  a little from call to call.
  """
  state = decoding_state(model, drafter, context)
  args = (jnp.int32(STEPS), jnp.bool_(False))
  began = time.perf_counter()
  compiled = (
    jax.jit(
      functools.partial(round_lib.run_rounds, rule='walk'),
      donate_argnums=2,
    )
    .lower(model, drafter, state, *args)
    .compile()
  )
  compile_s = time.perf_counter() - began

  def run_steps():
    nonlocal state
    state = compiled(model, drafter, state, *args)
    return state.num_output

  return run_steps, compile_s
