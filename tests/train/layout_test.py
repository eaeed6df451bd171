# SPDX-License-Identifier: MIT
"""Where arrays lie: the table, and how little of a run lies whole."""

import json
import types

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jspec.nn import moe, rope
from jspec.targets import transformer
from jspec.train import build, build_plain, layout, optim, placing, step
from tests.train import spread_steps

PRESETS = {
  'fsdp': dict(preset='fsdp'),
  'fsdp_tp': dict(preset='fsdp_tp'),
  'sp': dict(preset='sp'),
  'ep': dict(preset='ep', expert=4),
}
# What may lie whole: of the rest, at most this share of all numbers.
MOST = 0.02


@pytest.mark.parametrize(
  'preset, name, shape, stored, used',
  [
    ('fsdp', 'q', (2, 32, 64), P(None, None, 'fsdp'), P()),
    ('fsdp', 'down', (2, 64, 32), P(None, 'fsdp'), P()),
    ('fsdp', 'attn_norm', (2, 64), P(), P()),
    ('fsdp', 'bias', (64,), P(), P()),
    ('fsdp', 'mix', (8, 8), P(), P()),
    # What the larger axis does not allow, the other may.
    ('fsdp', 'proj', (32, 36), P('fsdp'), P()),
    ('fsdp', 'proj', (30, 36), P(), P()),
    (
      'fsdp_tp',
      'gate_up',
      (2, 32, 64),
      P(None, 'fsdp', 'model'),
      P(None, None, 'model'),
    ),
    ('fsdp_tp', 'out', (64, 32), P('model', 'fsdp'), P('model')),
    ('fsdp_tp', 'embedding', (64, 32), P('model', 'fsdp'), P('model')),
    ('fsdp_tp', 'fc', (96, 32), P(('fsdp', 'model')), P()),
    # Columns that do not share out by two are whole for every device.
    ('fsdp_tp', 'q', (32, 63), P(('fsdp', 'model')), P()),
    ('sp', 'q', (32, 64), P(None, ('fsdp', 'sequence')), P()),
    (
      'ep',
      'experts_down',
      (3, 8, 16, 32),
      P(None, 'expert', None, 'fsdp'),
      P(None, 'expert'),
    ),
    ('ep', 'experts_down', (8, 16, 32), P('expert', None, 'fsdp'), P('expert')),
    ('ep', 'q', (32, 64), P(None, ('fsdp', 'expert')), P()),
    (
      'fsdp_tp',
      'experts_down',
      (8, 16, 32),
      P('model', None, 'fsdp'),
      P('model'),
    ),
  ],
)
def test_arrays_lie_by_the_table(preset, name, shape, stored, used):
  rules = layout.Rules(spread_steps.mesh_of(**PRESETS[preset]))
  assert rules.stored(name, shape) == stored
  assert rules.used(name, shape) == used


def test_all_is_whole_with_one_device_and_with_dp():
  for devices in (spread_steps.mesh_of(1), spread_steps.mesh_of()):
    assert layout.Rules(devices).stored('gate_up', (2, 32, 64)) == P()


def abstract_run(make, options, experts=None):
  """State, borrowed arrays and target of a run, of usual widths, as shapes."""
  config = transformer.TransformerConfig(
    num_layers=8,
    width=256,
    ff_width=768,
    num_heads=8,
    num_kv_heads=4,
    head_width=32,
    vocab_size=2048,
    max_len=64,
    norm_eps=1e-5,
    rope=rope.RopeConfig(base=1e4, kind='default'),
    tied=False,
    experts=experts,
  )
  key = jax.random.key(0)

  def of(key):
    model = transformer.random(config, key)
    loaded = types.SimpleNamespace(
      model=model, name='tiny', tokenizer=None, stop_ids=(2,)
    )
    return model, make(loaded, options, None, key)

  model, drafter = jax.eval_shape(of, key)
  parts = step.split(drafter)
  optimizer = optim.optimizer(optim.OptimConfig(warmup_steps=1), 10)
  state = jax.eval_shape(
    lambda params, key: step.init(
      step.Parts(params, parts.frozen, parts.merge),
      optimizer,
      key,
      has_average=True,
    ),
    parts.params,
    key,
  )
  return model, state, parts.frozen


RUNS = {
  'dfly': (build.dfly, dict(mask_token_id=3, num_taps=3), None),
  'dspark': (build.dspark, dict(mask_token_id=3, num_taps=3), None),
  'eagle3': (build_plain.eagle3, dict(), None),
  'mtp': (build_plain.mtp, dict(), None),
  'specblock': (build_plain.specblock, dict(), None),
  'mtp_moe': (
    build_plain.mtp,
    dict(num_experts=8, experts_per_token=2, expert_ff_width=96),
    moe.MoeConfig(width=256, num_experts=8, top_k=2, ff_width=96),
  ),
}


@pytest.mark.parametrize('name', RUNS)
@pytest.mark.parametrize('preset', PRESETS)
def test_hardly_anything_lies_whole(name, preset):
  """Of parameters, moments, average, borrowed arrays and target alike."""
  devices = spread_steps.mesh_of(**PRESETS[preset])
  model, state, frozen = abstract_run(*RUNS[name])
  model, _ = placing.arranged(model, devices)
  target = nnx.state(model)
  for tree in (state.params, state.opt_state, state.average, frozen, target):
    assert layout.whole_share(devices, tree) <= MOST
  # What does is vectors and norms, by name.
  found = layout.report(devices, (state, frozen, target))
  matrices = [
    path
    for path, x in found.items()
    if x['share'] == 1 and len(x['shape']) > 1 and np.prod(x['shape']) > 4096
  ]
  assert [p for p in matrices if not layout.WHOLE.search(p)] == []


def test_the_check_can_fail():
  tree = {'fc': np.zeros((30, 30)), 'q': np.zeros((32, 32))}
  devices = spread_steps.mesh_of(preset='fsdp')
  assert layout.whole_share(devices, tree) > 0.4
  assert layout.whole_share(spread_steps.mesh_of(), tree) == 1


def test_shardings_of_a_run_need_no_arrays():
  devices = spread_steps.mesh_of(preset='fsdp')
  model, state, frozen = abstract_run(*RUNS['dfly'])
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), spread_steps.rows()
  )
  found = layout.shardings(devices, state, frozen, nnx.state(model), batch)
  assert jax.tree.structure(found.state) == jax.tree.structure(state)
  assert found.batch['tokens'].spec == P('fsdp')
  path = 'block.layers.gate_up'
  assert found.state.params[path] == found.state.opt_state[1][0].mu[path]
  said = json.loads(layout.dump(devices, state.params))
  assert said[path]['spec'] == [None, None, 'fsdp']
  assert said[path]['share'] == 1 / 8
