# SPDX-License-Identifier: MIT
"""Where an engine's state lies on a mesh."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jspec import errors
from jspec.serve import empty, placement
from jspec.testing import toy
from tests.evals import unchecked

WHOLE, BY_HEAD = PartitionSpec(), PartitionSpec(None, None, 'model')


def mesh_of(num_devices):
  devices = np.array(jax.devices()[:num_devices])
  return placement.checked(Mesh(devices, ('model',)))


def make_state(num_kv_heads, mesh):
  target = toy.target(num_heads=2 * num_kv_heads, num_kv_heads=num_kv_heads)
  make = functools.partial(
    empty.init_state,
    target,
    toy.drafter(target),
    num_rows=2,
    num_pages=4,
    page_size=8,
    capacity=2,
  )
  with unchecked.constructors():
    return make(), placement.state(make, mesh)


def test_pages_lie_by_heads_and_seen_tokens_by_the_vocabulary():
  alone, state = make_state(4, mesh_of(4))
  pages = state.cache.pages
  assert pages.shards == {'mesh': mesh_of(4), 'heads': 'model'}
  assert {shard.data.shape[2] for shard in pages.k.addressable_shards} == {1}
  counts = state.asks.history.output_counts
  assert counts.sharding.spec == PartitionSpec(None, 'model')
  specs = [leaf.sharding.spec for leaf in jax.tree.leaves(state)]
  assert specs.count(BY_HEAD) == 2  # Not those of the drafter.
  assert specs.count(WHOLE) == len(specs) - 4
  for got, want in zip(*map(jax.tree.leaves, (state, alone)), strict=True):
    np.testing.assert_array_equal(got, want)


def test_scales_of_pages_lie_with_their_heads():
  target = toy.target(num_heads=8, num_kv_heads=4, cache_form='int8')
  make = functools.partial(
    empty.init_state,
    target,
    None,
    num_rows=2,
    num_pages=4,
    page_size=8,
    capacity=2,
  )
  with unchecked.constructors():
    pages = placement.state(make, mesh_of(4)).cache.pages
  for pool in (pages.k, pages.v, pages.k_scale, pages.v_scale):
    assert pool.sharding.spec == BY_HEAD
    assert {shard.data.shape[2] for shard in pool.addressable_shards} == {1}


def test_pages_stay_whole_where_heads_do_not_share_out():
  _, state = make_state(3, mesh_of(2))
  assert state.cache.pages.shards == {'mesh': mesh_of(2), 'heads': None}
  assert state.cache.pages.k.sharding.is_fully_replicated


def test_what_the_host_sends_is_compiled_for_whole():
  mesh = mesh_of(2)
  placed = jax.device_put(np.zeros(2), placement.whole(mesh))
  sent = (placed, np.zeros(3, np.int32), jax.ShapeDtypeStruct((), np.float32))
  kept, *shapes = placement.described(sent, mesh)
  assert kept is placed
  assert [s.sharding for s in shapes] == [placement.whole(mesh)] * 2


def test_a_mesh_of_two_axes_is_refused():
  mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ('data', 'model'))
  with pytest.raises(errors.UserError, match='an engine takes one axis'):
    placement.checked(mesh)
