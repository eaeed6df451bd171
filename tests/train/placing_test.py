# SPDX-License-Identifier: MIT
"""A target read straight to the mesh of a run is the one placed there later."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from jspec import config as config_lib
from jspec import loading
from jspec.targets import reading
from jspec.train import main, placing, settings
from tests import tiny_model
from tests.train import spread_steps, tiny

MIXTURE = dict(
  model_type='qwen3_moe',
  num_experts=8,
  num_experts_per_tok=2,
  moe_intermediate_size=8,
  norm_topk_prob=True,
  decoder_sparse_step=1,
  mlp_only_layers=[],
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny_model.write(tmp_path_factory.mktemp('models') / 'tiny')


def arrays(target):
  return nnx.to_flat_state(nnx.state(target))


def assert_same(got, want):
  assert nnx.graphdef(got) == nnx.graphdef(want)
  pairs = zip(arrays(got), arrays(want), strict=True)
  for (path, one), (other_path, other) in pairs:
    assert path == other_path
    for x, y in zip(
      jax.tree.leaves(one[...]), jax.tree.leaves(other[...]), strict=True
    ):
      assert (x.dtype, x.sharding) == (y.dtype, y.sharding), path
      np.testing.assert_array_equal(x, y, err_msg=str(path))


@pytest.mark.parametrize(
  'preset, compute_dtype, options',
  [
    ('fsdp', 'float32', ''),
    ('fsdp_tp', 'bfloat16', ''),
    ('fsdp_tp', 'bfloat16', ',weights=int8,cache=int8'),
    ('sp', 'float32', ',dtype=bfloat16'),
  ],
)
def test_it_lies_as_if_placed_later(folder, preset, compute_dtype, options):
  mesh = spread_steps.mesh_of(preset=preset)
  whole = loading.load_target(f'{folder}{options}', progress=False)
  assert_same(
    placing.read(whole.opened, mesh, compute_dtype),
    placing.target(whole.model, mesh, compute_dtype),
  )


def test_an_outline_is_read_when_it_is_placed(folder):
  mesh = spread_steps.mesh_of(preset='fsdp')
  whole = loading.load_target(str(folder), progress=False)
  outline = loading.load_target(str(folder), progress=False, has_layers=False)
  assert reading.is_outline(outline.model)
  assert not reading.is_outline(whole.model)
  assert outline.fingerprint == whole.fingerprint
  np.testing.assert_array_equal(
    outline.model.embedding[...], whole.model.embedding[...]
  )
  assert_same(
    placing.target_of(outline, mesh, 'float32'),
    placing.target_of(whole, mesh, 'float32'),
  )


@pytest.fixture
def largest(monkeypatch):
  """By name of an array, the largest share of it that was read at once."""
  found, read = {}, reading.Reader.read

  def record(self, name, box, out, num_threads=None):
    share = out.size / math.prod(self.shapes[name])
    found[name] = max(found.get(name, 0), share)
    read(self, name, box, out, num_threads)

  monkeypatch.setattr(reading.Reader, 'read', record)
  return found


def test_no_more_is_read_at_once_than_a_device_holds(folder, largest):
  opened = loading.load_target(str(folder), has_layers=False).opened
  largest.clear()
  placing.read(opened, spread_steps.mesh_of(preset='fsdp'))
  assert largest['qkv'] == largest['gate_up'] == 1 / 4 / 8  # Of four layers.
  assert largest['embedding'] == 1 / 8
  # What was done before.
  largest.clear()
  reading.read(opened.reader(), is_split=True)
  assert largest['qkv'] == 1 / 4 and largest['embedding'] == 1


@pytest.mark.parametrize(
  'mode, is_decoded, has_layers',
  [('online', False, False), ('online', True, True), ('store', False, False)],
)
def test_layers_are_read_whole_only_where_they_are_needed(
  folder, tmp_path, mode, is_decoded, has_layers
):
  values = tiny.config(tmp_path, target=str(folder), data__mode=mode)
  config = config_lib.build(settings.TrainConfig, values)
  loaded = main._loaded(config, is_decoded)
  assert reading.is_outline(loaded.model) != has_layers


def mixture():
  """Weights of a mixture in place of the gated MLPs."""
  tensors, rng = tiny_model.tensors(), np.random.default_rng(1)
  sizes = {
    'gate_proj': (8, tiny_model.WIDTH),
    'up_proj': (8, tiny_model.WIDTH),
    'down_proj': (tiny_model.WIDTH, 8),
  }
  for i in range(tiny_model.LAYERS):
    layer = f'model.layers.{i}.'
    shapes = {f'{layer}mlp.gate.weight': (8, tiny_model.WIDTH)}
    for name, shape in sizes.items():
      del tensors[f'{layer}mlp.{name}.weight']
      for expert in range(8):
        shapes[f'{layer}mlp.experts.{expert}.{name}.weight'] = shape
    for name in ('q_norm', 'k_norm'):
      shapes[f'{layer}self_attn.{name}.weight'] = (tiny_model.WIDTH // 2,)
    for name, shape in shapes.items():
      tensors[name] = rng.normal(size=shape).astype(np.float32)
  return tensors


@pytest.mark.parametrize(
  'preset',
  [
    'ep',
    *(pytest.param(x, marks=pytest.mark.slow) for x in ('fsdp', 'fsdp_tp')),
  ],
)
def test_experts_are_read_to_their_devices(tmp_path, preset):
  path = tiny_model.write(
    tmp_path / 'mixture', config=tiny_model.fields(**MIXTURE), weights=mixture()
  )
  mesh = spread_steps.mesh_of(preset=preset)
  whole = loading.load_target(str(path), progress=False)
  assert_same(
    placing.read(whole.opened, mesh), placing.target(whole.model, mesh)
  )
