# SPDX-License-Identifier: MIT
"""Hy3's layout of MTP: one more layer, experts one by one."""

import numpy as np
import pytest

from jspec import errors
from jspec.drafters.formats import folder, layouts
from tests.drafters.formats import tiny


def foreign():
  return layouts.from_native(*tiny.native('mtp_moe'), 'hy3')


def test_experts_are_turned_and_taken_apart():
  _, tensors = tiny.native('mtp_moe')
  _, theirs = foreign()
  at = 'model.layers.6.'
  for e in range(3):
    for part in ('gate', 'up', 'down'):
      np.testing.assert_array_equal(
        theirs[f'{at}mlp.experts.{e}.{part}_proj.weight'],
        tensors[f'midlayer.mlp.experts_{part}_proj'][e].T,
      )
  assert sum('.experts.' in name for name in theirs) == 9
  assert f'{at}enorm.weight' in theirs
  assert f'{at}mlp.router.gate.weight' in theirs
  assert f'{at}mlp.expert_bias' in theirs
  assert f'{at}mlp.shared_mlp.down_proj.weight' in theirs
  assert f'{at}self_attn.q_norm.weight' in theirs


def test_depth_of_the_target_is_the_index_of_the_layer():
  config, theirs = foreign()
  del config['num_hidden_layers']
  found, _ = layouts.to_native(config, theirs)
  assert found['target_num_hidden_layers'] == 6
  assert found['target_layer_ids'] == [5]


@pytest.mark.parametrize(
  'drop, message',
  [
    ('model.layers.6.mlp.experts.1.', '2 experts numbered up to 2'),
    ('model.layers.6.mlp.experts.2.', 'is 3 in the config|unknown|axis|=3'),
    ('model.layers.6.mlp.experts.', 'router without the experts'),
  ],
)
def test_incomplete_experts_are_refused(drop, message):
  config, theirs = foreign()
  theirs = {n: t for n, t in theirs.items() if not n.startswith(drop)}
  with pytest.raises(errors.UserError, match=message):
    layouts.to_native(config, theirs)


def test_whole_model_is_refused():
  config, theirs = foreign()
  theirs['model.layers.0.mlp.up_proj.weight'] = np.zeros((2, 2), np.float32)
  with pytest.raises(errors.UserError, match=r'layers \[0, 6\]'):
    layouts.to_native(config, theirs)


@pytest.mark.parametrize(
  'name, layout', [('mtp', 'qwen3_mtp'), ('mtp_moe', 'hy3')]
)
def test_mtp_layer_is_found_inside_its_target(tmp_path, name, layout):
  """As targets that come with one are published."""
  config, alone = layouts.from_native(*tiny.native(name), layout)
  matrix = np.zeros((2, 2), np.float32)
  theirs = {
    **{f'model.layers.{i}.mlp.up_proj.weight': matrix for i in range(6)},
    'model.embed_tokens.weight': matrix,
    'model.norm.weight': matrix[0],
    'lm_head.weight': matrix,
  }
  folder.write(tmp_path / 'whole', config, {**alone, **theirs})
  found, tensors = folder.read(tmp_path / 'whole', layouts.drafting)
  assert tensors.keys() == alone.keys()
  want, _ = layouts.to_native(config, alone)
  assert layouts.to_native(found, tensors)[0] == want
  # A target without one keeps its tensors, and is refused as a whole.
  assert layouts.drafting(config, theirs) == set(theirs)


def test_windows_of_the_target_are_not_the_drafters():
  config, theirs = foreign()
  config['layer_types'] = ['sliding_attention'] * 6
  config['sliding_window'] = 8
  found, _ = layouts.to_native(config, theirs)
  assert 'layer_windows' not in found
