# SPDX-License-Identifier: MIT
"""Some rows of a state, as a state of their own, and back.

A program is compiled for a number of rows; which rows they are is an input.
Everything that belongs to a row is copied, which is little; the pools of pages
are shared by all rows and stay where they are.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.cache import paged
from jspec.decode import round as round_lib
from jspec.typing import Array, Int


def take(state: round_lib.State, rows: Int[Array, 'rows']) -> round_lib.State:
  """The state of `rows`; a number past the last row gives some row."""

  def get(leaf):
    if isinstance(leaf, paged.Pages) or not leaf.ndim:
      return leaf
    return leaf.at[rows].get(mode='clip')

  return jax.tree.map(get, state, is_leaf=_is_pool)


def put(
  state: round_lib.State, some: round_lib.State, rows: Int[Array, 'rows']
) -> round_lib.State:
  """`state` with `some` written back; numbers past the last row are dropped."""

  def set_(leaf, new):
    if isinstance(leaf, paged.Pages) or not leaf.ndim:
      return new
    return leaf.at[rows].set(new, mode='drop')

  return jax.tree.map(set_, state, some, is_leaf=_is_pool)


def take_one(state: round_lib.State, row: Int[Array, '']) -> round_lib.State:
  """The state of one row."""
  return take(state, row[None])


def put_one(
  state: round_lib.State, one: round_lib.State, row: Int[Array, '']
) -> round_lib.State:
  """`state` with one row written back."""
  return put(state, one, row[None])


def empty(
  drafter, one: round_lib.State, page_ids: Int[Array, '1 M'] | None = None
) -> round_lib.State:
  """A row that has nothing; the pools keep what they hold."""
  table = one.cache.table
  if page_ids is not None:
    table = dataclasses.replace(table, page_ids=page_ids)
  table = dataclasses.replace(table, lengths=jnp.zeros_like(table.lengths))
  drafter_state = one.drafter
  if drafter is not None:
    pool = one.cache.pages.k
    fresh = drafter.init_state(table, pool.shape[1], pool.shape[3])
    drafter_state = jax.tree.map(
      lambda old, new: old if _is_pool(old) else new,
      one.drafter,
      fresh,
      is_leaf=_is_pool,
    )
  zeros = lambda leaf: jnp.zeros_like(leaf)  # noqa: E731
  return dataclasses.replace(
    one,
    cache=dataclasses.replace(one.cache, table=table),
    drafter=drafter_state,
    remaining=zeros(one.remaining),
    is_stopped=zeros(one.is_stopped),
    num_output=zeros(one.num_output),
    stats=jax.tree.map(zeros, one.stats),
  )


def _is_pool(leaf):
  return isinstance(leaf, paged.Pages)
