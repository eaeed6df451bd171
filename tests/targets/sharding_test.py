# SPDX-License-Identifier: MIT
"""A target on a mesh gives what it gives on one device, from its shards."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jspec import errors
from jspec.nn import moe, rope, stack
from jspec.targets import latent, sharding
from jspec.testing import toy

EVEN = dict(num_heads=16, num_kv_heads=8, ff_width=64, vocab_size=64)
# All that layers of a dense family have and a Llama has not.
RICH = dict(
  qkv_bias=True,
  out_bias=True,
  sinks=True,
  qk_norm=True,
  post_norms=True,
  activation='gelu_tanh',
  attention_scale=0.3,
  embedding_scale=5.0,
  logit_cap=30.0,
  windows=(4, None, 4),
  local_rope=rope.RopeConfig(base=100.0),
)
# A dense layer between two of experts.
SPARSE = dict(
  experts=moe.MoeConfig(
    width=32,
    num_experts=8,
    top_k=3,
    ff_width=12,
    shared_ff_width=16,
    score='sigmoid',
    has_bias=True,
    has_biases=True,
    activation='clamped_swiglu',
  ),
  dense_layers=(1,),
)
LATENT = dict(
  attention_scale=0.3,
  latent=latent.LatentConfig(
    q_rank=12, kv_rank=10, plain_width=6, rotary_width=4, value_width=8
  ),
)
UNEVEN = dict(num_heads=6, num_kv_heads=3, ff_width=64, vocab_size=64)


def mesh_of(num_devices):
  devices = np.array(jax.devices()[:num_devices])
  return sharding.checked(Mesh(devices, (sharding.AXIS,)))


def split(target):
  other = toy.split(target)
  other.add_tiles()
  return other


@jax.jit
def run(target, tokens):
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, taps = target.encode(tokens, positions, jnp.ones_like(tokens), (0, 1))
  return target.logits(hidden), taps


def outputs(target):
  return run(target, jnp.asarray(toy.prompts(2, 9)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'num_devices, sizes, is_split',
  [
    (8, EVEN, False),
    (2, EVEN, True),
    (2, UNEVEN, False),
    (8, EVEN | RICH, False),
    (2, UNEVEN | RICH, True),
    (8, EVEN | SPARSE, False),
    (2, EVEN | SPARSE, True),
    (8, EVEN | SPARSE | LATENT, False),
  ],
)
def test_a_placed_target_gives_the_same(num_devices, sizes, is_split):
  whole = toy.target(**sizes)
  given = split(whole) if is_split else whole
  before = jax.tree.leaves(given)
  placed = sharding.place(given, mesh_of(num_devices))
  assert isinstance(placed.layers, nnx.List) == is_split
  for got, want in zip(outputs(placed), outputs(whole), strict=True):
    np.testing.assert_allclose(got, want, atol=2e-5)
  # The one that was given stays as it was.
  assert given.num_attention_shards == 1
  assert all(map(operator.is_, jax.tree.leaves(given), before))


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'num_devices, sizes, is_split, weights',
  [
    (8, EVEN, False, 'int8'),
    (2, EVEN, True, 'fp8'),
    (8, EVEN | SPARSE, False, 'fp8'),
    (8, EVEN | SPARSE | LATENT, False, 'int8'),
  ],
)
def test_a_placed_target_of_eight_bits_gives_the_same(
  num_devices, sizes, is_split, weights
):
  whole = toy.target(weights=weights, cache_form='int8', **sizes)
  placed = sharding.place(
    split(whole) if is_split else whole, mesh_of(num_devices)
  )
  for got, want in zip(outputs(placed), outputs(whole), strict=True):
    np.testing.assert_allclose(got, want, atol=2e-5)
  for layer in stack.parts(placed.layers):
    # Rows are shared out and their scale is whole; columns go with theirs.
    by_rows = {'down': layer.down}
    if layer.qkv is not None:
      by_rows['out'] = layer.out
      scale = layer.qkv[...].scale
      assert scale.addressable_shards[0].data.size * num_devices == scale.size
    for name, variable in by_rows.items():
      if variable is None:
        continue
      array = variable[...]
      shard = array.values.addressable_shards[0].data
      assert shard.size * num_devices == array.values.size, name
      assert array.scale.sharding.is_fully_replicated, name


@pytest.mark.parametrize('forgotten', ['attention', 'mlp'])
def test_columns_taken_for_those_of_one_device_give_something_else(forgotten):
  whole = toy.target(**EVEN)
  placed = sharding.place(whole, mesh_of(2))
  if forgotten == 'attention':
    placed.num_attention_shards = 1
  else:
    placed.layers.num_mlp_shards = 1
  assert np.abs(outputs(placed)[0] - outputs(whole)[0]).max() > 1e-2


def shares(module):
  """By name, the share of an array that each device holds."""
  found = {}
  for path, variable in nnx.to_flat_state(nnx.state(module)):
    array = variable[...]
    sizes = {shard.data.size for shard in array.addressable_shards}
    assert len(sizes) == 1
    found[path[-1]] = array.size // sizes.pop()
  return found


def test_biases_lie_with_the_columns_they_belong_to():
  whole = toy.target(**EVEN, **RICH)
  placed = sharding.place(whole, mesh_of(2))
  assert shares(placed)['qkv_bias'] == 2
  placed.layers.qkv_bias[...] = jnp.array(whole.layers.qkv_bias[...])
  assert np.abs(outputs(placed)[0] - outputs(whole)[0]).max() > 1e-2


@pytest.mark.parametrize('is_split', [False, True])
def test_every_matrix_is_shared_out(is_split):
  target = toy.target(**EVEN)
  placed = sharding.place(split(target) if is_split else target, mesh_of(8))
  whole = dict(final_norm=1, attn_norm=1, mlp_norm=1)
  matrices = ('embedding', 'head', 'qkv', 'out', 'gate_up', 'down')
  assert shares(placed) == whole | dict.fromkeys(matrices, 8)


def test_experts_are_shared_out_and_routers_are_not():
  placed = sharding.place(toy.target(**EVEN, **SPARSE), mesh_of(8))
  found = shares(placed)
  assert found['experts_gate_up'] == found['experts_down'] == 8
  assert found['shared_gate_up'] == found['shared_down'] == 8
  assert found['experts_gate_up_bias'] == found['experts_down_bias'] == 8
  assert found['router'] == found['expert_bias'] == 1


def test_attention_stays_whole_where_heads_do_not_share_out():
  placed = sharding.place(toy.target(**UNEVEN), mesh_of(2))
  found = shares(placed)
  assert (found['qkv'], found['out'], found['gate_up']) == (1, 1, 2)
  assert sharding.attention_axis(2, mesh_of(8)) is None


@pytest.mark.parametrize(
  'change, message',
  [
    ({'ff_width': 50}, 'feed-forward width of 50 .* 8 devices'),
    ({'vocab_size': 66}, 'vocabulary of 66 .* 8 devices'),
    (
      {'experts': moe.MoeConfig(width=32, num_experts=6, top_k=2, ff_width=8)},
      'number of experts of 6 .* 8 devices',
    ),
  ],
)
def test_sizes_that_do_not_share_out_are_refused(change, message):
  target = toy.target(**{**EVEN, **change})
  with pytest.raises(errors.UserError, match=message):
    sharding.place(target, mesh_of(8))


def test_a_mesh_without_the_axis_and_a_target_without_a_layout_are_refused():
  with pytest.raises(errors.UserError, match="axes .*'data'.* name one"):
    sharding.checked(Mesh(np.array(jax.devices()), ('data',)))
  with pytest.raises(errors.UserError, match='Linear has no layout'):
    sharding.place(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), mesh_of(2))


def test_axes_are_left_to_the_compiler_however_the_mesh_was_made():
  made = sharding.checked(jax.make_mesh((8,), (sharding.AXIS,)))
  assert made == mesh_of(8)
