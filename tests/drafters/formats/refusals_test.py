# SPDX-License-Identifier: MIT
"""Configs that contradict their tensors, say too little, or say too much."""

import re

import numpy as np
import pytest

from jspec import errors
from jspec.drafters.formats import layouts
from tests.drafters.formats import tiny

SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}


def foreign(name, layout, **changes):
  config, tensors = tiny.native(name, **changes)
  return layouts.from_native(config, tensors, layout, tiny.target())


def refused(name, layout, edit, extra=None, **changes):
  """The message, after `edit` changed the foreign checkpoint."""
  config, tensors = foreign(name, layout, **changes)
  edit(config, tensors)
  with pytest.raises(errors.UserError) as caught:
    layouts.to_native(config, tensors, extra or {}, layout=layout)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def setting(**keys):
  return lambda config, tensors: config.update(keys)


def without(*keys):
  def edit(config, tensors):
    for key in keys:
      del config[key]

  return edit


@pytest.mark.parametrize(
  'name, layout, keys, numbers',
  [
    ('dfly', 'vllm', {'hidden_size': 32}, ['hidden_size=32', '16']),
    (
      'dfly',
      'vllm',
      {'intermediate_size': 48},
      ['gate_proj.weight is [24, 16]', 'intermediate_size=48', '[48, 16]'],
    ),
    (
      'dfly',
      'vllm',
      {'num_attention_heads': 8},
      ['q_proj.weight is [32, 16]', 'num_attention_heads*head_dim=64'],
    ),
    ('dfly', 'vllm', {'num_key_value_heads': 4}, ['[16, 16]', '=32']),
    ('dfly', 'vllm', {'head_dim': 16}, ['q_norm.weight is [8]', 'head_dim=16']),
    ('dfly', 'vllm', {'num_hidden_layers': 5}, ['2 entries', 'is 5']),
    ('dfly', 'angelspec', {'num_hidden_layers': 5}, ['is 5', 'hold 2 layers']),
    (
      'dfly',
      'vllm',
      {'hidden_correction_intermediate_size': 16},
      ['is 16 in the config, 12 by the tensors'],
    ),
    ('dfly', 'vllm', {'enable_hidden_correction': False}, ['False', 'True']),
    ('dfly', 'vllm', {'num_target_layers': 4}, ['num_target_layers is 4', '3']),
    (
      'dfly',
      'vllm',
      {'dflash_config': {'mask_token_id': 39, 'target_layer_ids': [1, 2, 9]}},
      ['reach 9', 'target has 6 layers'],
    ),
    (
      'dfly',
      'vllm',
      {
        'dflash_config': {'mask_token_id': 39, 'target_layer_ids': [1, 2]},
        'num_target_layers': 2,
      },
      ['fc.weight is [16, 48]', '=32', 'layer_fusion_weights is [2, 3]'],
    ),
    (
      'dfly',
      'vllm',
      {'dflash_config': {'mask_token_id': 40, 'target_layer_ids': [1, 3, 4]}},
      ['mask_token_id is 40', 'vocab_size 40'],
    ),
    ('dfly', 'vllm', {'target_hidden_size': 24}, ['[16, 48]', '=72']),
    (
      'dfly',
      'vllm',
      {'architectures': ['QwenDFlareDraftModel'], 'model_arch': 'dflare'},
      ['config is of dflare', 'tensors are of dfly'],
    ),
    ('dfly', 'vllm', {'num_draft_tokens': 4}, ['is 4', 'block_size 4', '1..3']),
    ('dfly', 'vllm', {'label_shift': 1}, ['is 1', '0 by this layout']),
    ('dfly', 'vllm', {'layer_types': ['full_attention']}, ['1 entries', '2']),
    ('dflare', 'vllm', {'num_target_layers': 4}, ['reach 4', '4 layers']),
    ('dflash2', 'zlab', {'block_size': 8.0}, ['block_size=8.0']),
    ('dflash', 'zlab', {'num_target_layers': 4}, ['reach 4', '4 layers']),
    ('gated', 'angelspec', {'num_target_layers': 5}, ['is 5', '3 by target_']),
    (
      'gated',
      'angelspec',
      {'fusion_type': 'concat_fc'},
      ['concat_fc', 'gated'],
    ),
    ('dspark', 'angelspec', {'markov_rank': 256}, ['is 256', '5 by the']),
    ('dspark', 'angelspec', {'vocab_size': 64}, ['is 40', 'vocab_size 64']),
    ('dspark', 'angelspec', {'enable_confidence_head': False}, ['False']),
    (
      'dspark',
      'angelspec',
      {'confidence_head_with_markov': False},
      ['is False', 'True by the tensors'],
    ),
    (
      'dflash',
      'angelspec',
      {'vocab_size': 64, 'draft_vocab_size': 64},
      ['[40, 16]', 'vocab_size=64'],
    ),
    (
      'dspark',
      'angelspec',
      {'vocab_size': 64, 'draft_vocab_size': 64},
      ['[40, 5]', 'vocab_size=64'],
    ),
    ('eagle3', 'eagle', {'hidden_size': 32}, ['hidden_size=32', '[16']),
    ('eagle3', 'sglang', {'intermediate_size': 9}, ['layers.0.mlp', '[9, 16]']),
    ('eagle3', 'eagle', {'num_hidden_layers': 2}, ['is 2', 'has 1']),
    ('eagle3', 'eagle', {'num_aux_hidden_states': 4}, ['is 4', '3 by target']),
    ('eagle3', 'eagle', {'vocab_size': 50}, ['is 40', 'vocab_size 50']),
    ('eagle3', 'eagle', {'fc_norm': True}, ['True', 'False by the tensors']),
    ('mtp', 'qwen3_mtp', {'hidden_size': 20}, ['mtp.fc.weight is [16, 32]']),
    ('mtp', 'hy3', {'num_hidden_layers': 7}, ['is 7', '6 by model.layers.6']),
    ('mtp', 'hy3', {'intermediate_size': 25}, ['model.layers.6.mlp', '[24']),
    ('mtp_moe', 'hy3', {'num_experts': 4}, ['is 4', '3 by the tensors']),
    ('mtp_moe', 'hy3', {'moe_intermediate_size': 9}, ['is 9', '10 by']),
    ('mtp_moe', 'hy3', {'num_shared_experts': 1}, ['is 1', '2 by']),
    ('specblock', 'specblock', {'hidden_size': 32}, ['hidden_size=32']),
    (
      'specblock',
      'specblock',
      {'diffspec_draft_token_num': 5, 'block_size': 5},
      ['position_queries.weight is [3, 16]', 'block_size=5'],
    ),
  ],
)
def test_contradiction_is_refused_with_both_numbers(
  name, layout, keys, numbers
):
  message = refused(name, layout, setting(**keys))
  for number in numbers:
    assert number in message


def test_config_of_another_model_is_refused():
  """Published so: Hy3's DFly weights with Qwen3's numbers."""
  qwen3 = {
    'intermediate_size': 12,
    'num_attention_heads': 2,
    'rope_theta': 1e6,
    'target_num_hidden_layers': 5,
  }
  message = refused('dfly', 'vllm', setting(**qwen3))
  assert 'q_proj.weight is [32, 16]' in message
  assert 'num_attention_heads*head_dim=16' in message


@pytest.mark.parametrize(
  'name, layout, key',
  [
    ('dfly', 'vllm', 'block_size'),
    ('dfly', 'angelspec', 'block_size'),
    ('dfly', 'vllm', 'rope_theta'),
    ('dfly', 'vllm', 'rms_norm_eps'),
    ('dfly', 'vllm', 'target_num_hidden_layers'),
    ('dfly', 'angelspec', 'target_layer_ids'),
    ('dfly', 'angelspec', 'mask_token_id'),
    ('dfly', 'angelspec', 'vocab_size'),
    ('gated', 'angelspec', 'gate_temperature'),
    ('eagle3', 'eagle', 'num_draft_tokens'),
    ('mtp', 'angelspec', 'mtp_draft_input_postnorm'),
    ('mtp', 'angelspec', 'intermediate_size'),
    ('mtp_moe', 'hy3', 'num_experts_per_tok'),
    ('mtp_moe', 'hy3', 'router_scaling_factor'),
    ('mtp_moe', 'hy3', 'route_norm'),
    ('specblock', 'specblock', 'rope_theta'),
    ('specblock', 'specblock', 'target_layer_ids'),
  ],
)
def test_what_is_missing_is_asked_for_and_taken(name, layout, key):
  value = foreign(name, layout)[0][key]
  message = refused(name, layout, without(key))
  assert f'does not say {key}' in message
  assert f'--set {key}=' in message
  config, tensors = foreign(name, layout)
  del config[key]
  found, _ = layouts.to_native(config, tensors, {key: value})
  assert found == tiny.CONFIGS[name]


def test_everything_missing_is_named_at_once():
  edit = without('block_size', 'rope_theta', 'rms_norm_eps')
  message = refused('dfly', 'vllm', edit)
  assert 'rms_norm_eps, rope_theta, block_size' in message


def test_layers_of_eagle_are_never_guessed():
  message = refused('eagle3', 'eagle', without('eagle_config'))
  assert '--set target_layer_ids=[' in message


def test_number_of_drafts_and_shift_come_from_block_and_layout():
  config, tensors = foreign('dflash', 'deepspec', **SHIFTED)
  del config['num_draft_tokens'], config['label_shift']
  found, _ = layouts.to_native(config, tensors)
  assert (found['label_shift'], found['num_draft_tokens']) == (1, 4)
  config, tensors = foreign('dflash', 'zlab')
  del config['num_draft_tokens'], config['label_shift']
  found, _ = layouts.to_native(config, tensors)
  assert (found['label_shift'], found['num_draft_tokens']) == (0, 3)


def test_shift_of_served_dfly_follows_its_own_key():
  config, tensors = foreign('dfly', 'vllm')
  del config['num_draft_tokens'], config['label_shift']
  config |= {'sample_from_anchor': True, 'dspark_bonus_anchor': False}
  found, _ = layouts.to_native(config, tensors)
  assert (found['label_shift'], found['num_draft_tokens']) == (1, 4)
  config['dspark_bonus_anchor'] = True
  with pytest.raises(errors.UserError, match='dspark_bonus_anchor'):
    layouts.to_native(config, tensors)


@pytest.mark.parametrize(
  'keys, message',
  [
    ({'novelty': 1, 'newness': 2}, 'unknown config keys newness, novelty'),
    ({'hidden_act': 'gelu'}, "hidden_act='gelu' is not supported"),
    ({'attention_bias': True}, 'attention_bias=True'),
    ({'rope_scaling': {'rope_type': 'yarn', 'factor': 4}}, 'plain rotary'),
    ({'rope_parameters': {'rope_theta': 7.0}}, '500000.0.*7.0'),
    ({'causal': True}, 'causal=True'),
    ({'output_multiplier': 0.2}, 'output_multiplier'),
    ({'hidden_correction_type': 'mlp'}, 'hidden_correction_type'),
    ({'layer_types': ['full_attention', 'linear']}, "'linear'"),
    ({'sliding_window': 64, 'layer_types': None}, 'sliding_window=64 without'),
  ],
)
def test_key_that_changes_the_computation_is_refused(keys, message):
  assert re.search(message, refused('dfly', 'vllm', setting(**keys)))


@pytest.mark.parametrize(
  'keys',
  [
    {'transformers_version': '5.0', 'bos_token_id': 1, 'use_cache': True},
    {'tie_word_embeddings': True, 'initializer_range': 0.1},
    {'rope_theta': None, 'rope_parameters': {'rope_theta': 5e5}},
    {'rope_scaling': {'rope_type': 'default'}},
    {'sliding_window': 64, 'use_sliding_window': False, 'layer_types': None},
    {'max_window_layers': 28},
    {'head_dim': None, 'num_key_value_heads': None},
    {'target_hidden_size': None},
  ],
)
def test_harmless_keys_change_nothing(keys):
  config, tensors = foreign('dfly', 'vllm')
  found, _ = layouts.to_native({**config, **keys}, tensors)
  assert found == tiny.CONFIGS['dfly']


@pytest.mark.parametrize(
  'keys, windows',
  [
    ({'layer_types': ['sliding_attention', 'full_attention']}, [64, None]),
    ({'layer_types': None, 'use_sliding_window': True}, [None, 64]),
  ],
)
def test_windows_become_a_list(keys, windows):
  config, tensors = foreign('dfly', 'vllm')
  config |= {'sliding_window': 64, 'max_window_layers': 1, **keys}
  assert layouts.to_native(config, tensors)[0]['layer_windows'] == windows


def test_given_keys_may_not_contradict():
  message = refused('dfly', 'vllm', setting(), {'block_size': 9})
  assert 'block_size is 4' in message and '9' in message


def test_leftover_and_missing_tensors_are_named():
  def edit(config, tensors):
    tensors['layers.1.extra.weight'] = tensors.pop('norm.weight')

  message = refused('dfly', 'vllm', edit)
  assert 'no tensor norm.weight' in message
  assert 'unknown tensor layers.1.extra.weight [16]' in message


def test_combination_that_no_drafter_has_is_refused():
  def edit(config, tensors):
    tensors['markov_head.markov_w1.weight'] = np.zeros((40, 5), np.float32)

  assert 'markov_head and layer_fusion' in refused('dfly', 'vllm', edit)


def test_vllm_counts_layers_from_the_embedding():
  config, tensors = foreign('eagle3', 'sglang')
  del config['eagle_config']
  config['eagle_aux_hidden_state_layer_ids'] = [2, 4, 5]
  assert layouts.to_native(config, tensors)[0] == tiny.CONFIGS['eagle3']
  config['eagle_config'] = {'eagle_aux_hidden_state_layer_ids': [2, 4, 5]}
  with pytest.raises(errors.UserError, match=r'\[2, 4, 5\].*\[1, 3, 4\]'):
    layouts.to_native(config, tensors)


def test_head_of_eagle_is_its_own():
  def edit(config, tensors):
    del tensors['lm_head.weight']

  assert 'no tensor lm_head.weight' in refused('eagle3', 'eagle', edit)
