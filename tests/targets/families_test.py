# SPDX-License-Identifier: MIT
"""The families: what a config may say, and what published models come to."""

import math

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import names
from jspec.targets import architecture, families, gemma3, reading
from tests.targets import goldens

# Parameters as their authors count them, embedding and head included.
PARAMETERS = {
  'deepseek_v3': 671_026_419_200,
  'gemma3_1b': 999_885_952,
  'gpt_oss_20b': 20_914_757_184,
  'gpt_oss_120b': 116_829_156_672,
  # The multimodal models less vision tower and projector.
  'gemma3_4b': 4_300_079_472 - 419_816_304,
  'gemma3_27b': 27_432_406_640 - 423_060_336,
  'llama3p1_8b': 8_030_261_248,
  'mistral_7b': 7_241_732_096,
  'qwen2p5_7b': 7_615_616_512,
  'qwen3_30b_a3b': 30_532_122_624,
  'qwen3_8b': 8_190_735_360,
}
YARN = {'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 4.0}
# By golden, a change that must be refused, and by what name.
REFUSED = (
  ('qwen2', {'layer_types': ['full_attention']}, 'layer_types'),
  ('qwen2', {'layer_types': ['full_attention', 'odd']}, 'layer_types odd'),
  ('qwen2', {'use_sliding_window': 1}, 'use_sliding_window'),
  ('qwen2', {'hidden_act': 'gelu'}, 'hidden_act'),
  ('qwen3', {'attention_bias': True}, 'attention_bias'),
  ('qwen3', {'quantization_config': {'bits': 4}}, 'quantization_config'),
  ('qwen3', {'head_dim': 15}, 'head width 15'),
  ('qwen3', {'rope_parameters': YARN | {'rope_type': 'dynamic'}}, 'dynamic'),
  ('qwen3', {'rope_parameters': YARN | {'rope_type': 'longrope'}}, 'longrope'),
  ('qwen3', {'rope_parameters': YARN | {'turns': 2}}, 'turns'),
  ('mistral', {'sliding_window': 0}, 'sliding_window'),
  ('mistral', {'sliding_window': 'all'}, 'sliding_window'),
  ('qwen3_moe', {'mlp_only_layers': [2]}, 'mlp_only_layers'),
  ('qwen3_moe', {'num_experts': 4}, 'num_local_experts'),
  ('qwen3_moe', {'num_experts_per_tok': 5}, 'top_k=5'),
  ('qwen3_moe', {'decoder_sparse_step': 0}, 'decoder_sparse_step'),
  ('gpt_oss', {'swiglu_limit': 8.0}, 'swiglu_limit'),
  ('gpt_oss', {'experts_per_token': 3}, 'experts_per_token'),
  ('gpt_oss', {'quantization_config': {'quant_method': 'awq'}}, 'awq'),
  (
    'gpt_oss',
    {'quantization_config': {'quant_method': 'mxfp4', 'block': 16}},
    'quantization_config field block',
  ),
  ('deepseek_v3', {'topk_method': 'greedy'}, 'topk_method'),
  ('deepseek_v3', {'n_group': 4}, 'num_groups=4'),
  ('deepseek_v3', {'qk_head_dim': 16}, 'qk_head_dim'),
  ('deepseek_v3', {'num_key_value_heads': 2}, 'num_key_value_heads'),
  ('deepseek_v3', {'rope_interleave': False}, 'rope_interleave'),
  ('deepseek_v3', {'quantization_config': {'fmt': 'e4m3'}}, 'e4m3'),
  ('gemma3', {'attn_logit_softcapping': 50.0}, 'attn_logit_softcapping'),
  ('gemma3', {'hidden_activation': 'gelu'}, 'hidden_activation'),
  ('gemma3', {'use_bidirectional_attention': True}, 'bidirectional'),
  ('gemma3', {'final_logit_softcapping': 'soft'}, 'final_logit_softcapping'),
  ('gemma3', {'rope_parameters': {'full_attention': {}}}, 'rope_parameters'),
  ('gemma3', {'sliding_window_pattern': 3}, 'sliding_window_pattern'),
)


@pytest.mark.parametrize('name', PARAMETERS)
def test_presets_have_the_published_number_of_parameters(name):
  config = families.presets()[name]
  shapes = architecture.array_shapes(config)
  if config.tied:
    del shapes['head']
  assert sum(map(math.prod, shapes.values())) == PARAMETERS[name]


def test_every_preset_is_counted():
  # Hy3's is known by its name only; its own test has it.
  assert families.presets().keys() == PARAMETERS.keys() | {'hy3_295b_a21b'}


def test_an_unknown_family_is_refused_with_the_known_ones():
  with pytest.raises(errors.UserError, match="'mamba'.*llama, mistral, qwen2"):
    families.find({'model_type': 'mamba'}, 'config.json')
  with pytest.raises(errors.UserError, match='None is not supported'):
    families.find({}, 'config.json')


@pytest.mark.parametrize('name', goldens.NAMES)
def test_a_field_nobody_knows_is_refused_by_name(name):
  with pytest.raises(errors.UserError, match='field made_up'):
    goldens.config(name, made_up=1)


@pytest.mark.parametrize('name, change, named', REFUSED)
def test_what_is_not_computed_is_refused_by_name(name, change, named):
  goldens.config(name)
  with pytest.raises(errors.UserError, match=named) as caught:
    goldens.config(name, **change)
  assert '\n' not in str(caught.value)


def gemma(**changes):
  """A multimodal config around the golden's."""
  text = goldens.fields('gemma3', 'config_v4.json') | changes
  return {
    'model_type': 'gemma3',
    'vision_config': {'x': 1},
    'text_config': text,
  }


def test_gemma_is_found_inside_the_multimodal_model():
  whole = gemma()
  family = families.find(whole, 'config.json')
  assert family.config(whole, 'config.json') == goldens.config('gemma3')
  for bad, named in (
    (gemma(made_up=1), 'text_config: field made_up'),
    (whole | {'made_up': 1}, 'config.json: field made_up'),
    (whole | {'text_config': None}, 'text_config is None'),
    (whole | {'tie_word_embeddings': False}, 'tie_word_embeddings'),
  ):
    with pytest.raises(errors.UserError, match=named):
      family.config(bad, 'config.json')


@pytest.mark.parametrize(
  'prefix, head',
  [
    ('language_model.model.', 'language_model.lm_head.'),
    ('model.language_model.', 'lm_head.'),
    ('model.', 'lm_head.'),
  ],
)
def test_gemma_tensors_are_found_under_the_names_of_every_version(prefix, head):
  tensors = {
    prefix + 'norm.weight': np.ones(3),
    head + 'weight': np.zeros(3),
    'vision_tower.x': np.ones(1),
    'model.vision_tower.x': np.ones(1),
    'multi_modal_projector.x': np.ones(1),
  }
  found = gemma3.prepare(names.Held('here', tensors))
  assert sorted(found.names()) == ['lm_head.weight', 'model.norm.weight']
  assert found.shape('model.norm.weight') == (3,)
  assert found.read('lm_head.weight').sum() == 0


def test_qwen_windows_begin_where_the_config_says():
  on = dict(use_sliding_window=True, sliding_window=64, layer_types=None)
  windows = [
    goldens.config('qwen2', **on, max_window_layers=full).windows
    for full in (1, 2)
  ]
  assert windows == [(None, 64), ()]
  off = goldens.config('qwen2', sliding_window=64, max_window_layers=1)
  assert off.windows == ()
  listed = ['sliding_attention', 'full_attention']
  config = goldens.config('qwen2', **on | {'layer_types': listed})
  assert config.windows == (64, None)


def test_families_of_equal_shape_have_other_fingerprints():
  marks = {
    reading.fingerprint(goldens.config(name), {})
    for name in ('llama', 'qwen2', 'qwen3', 'mistral')
  }
  wide = goldens.config('mistral', sliding_window=9)
  marks.add(reading.fingerprint(wide, {}))
  assert len(marks) == 5
