# SPDX-License-Identifier: MIT
"""Llama folders: unknown fields and tensors are refused."""

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import safetensors
from jspec.targets import llama, tables, transformer


def fields(**changes):
  """A config of transformers 4; a value of None removes the field."""
  out = {
    'model_type': 'llama',
    'hidden_size': 64,
    'intermediate_size': 32,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'vocab_size': 256,
    'max_position_embeddings': 128,
    'rms_norm_eps': 1e-5,
    'hidden_act': 'silu',
    'rope_theta': 5e6,
    'tie_word_embeddings': True,
  }
  out |= changes
  return {name: value for name, value in out.items() if value is not None}


def test_both_layouts_of_rotary_fields_give_one_config():
  scaling = {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
  }
  old = llama.config(fields(rope_scaling=scaling), 'old')
  new = llama.config(
    fields(rope_theta=None, rope_parameters=scaling | {'rope_theta': 5e6}),
    'new',
  )
  assert old == new
  assert old.rope.base == 5e6
  assert old.rope.original_max_len == 8192
  assert old.head_width == 16


@pytest.mark.parametrize(
  'changes, named',
  [
    ({'sliding_window': 4096}, 'sliding_window'),
    ({'made_up': 1}, 'made_up'),
    ({'attention_bias': True}, 'attention_bias'),
    ({'mlp_bias': True}, 'mlp_bias'),
    ({'hidden_act': 'gelu'}, 'hidden_act'),
    ({'pretraining_tp': 2}, 'pretraining_tp'),
    ({'quantization_config': {'bits': 4}}, 'quantization_config'),
    ({'hidden_size': None}, 'hidden_size'),
    ({'vocab_size': 'many'}, 'vocab_size'),
    ({'num_key_value_heads': 3}, '3 key-value heads'),
    ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}, 'dynamic'),
    ({'rope_scaling': {'type': 'linear'}}, 'factor'),
    ({'rope_scaling': {'type': 'linear', 'factor': 2, 'x': 1}}, 'field x'),
    (
      {'rope_parameters': {'rope_type': 'default'}, 'rope_theta': None},
      'theta',
    ),
    ({'rope_parameters': {'rope_theta': 1e4}}, 'rope_theta'),
    ({'rope_scaling': 'twice'}, 'twice'),
  ],
)
def test_config_that_cannot_be_computed_is_refused_by_name(changes, named):
  llama.config(fields(), 'config.json')
  with pytest.raises(errors.UserError, match=named) as caught:
    llama.config(fields(**changes), 'config.json')
  assert '\n' not in str(caught.value)


def write_folder(folder, *, drop=(), **extra):
  config = llama.config(fields(), 'config.json')
  rng = np.random.default_rng(0)
  shapes = transformer.array_shapes(config)
  tensors = {}
  for rule in llama.rules(config):
    values = rng.normal(size=shapes[rule.leaf]).astype(np.float32)[rule.box]
    tensors[rule.source] = values.T if values.ndim == 2 else values
  tensors['model.embed_tokens.weight'] = np.ascontiguousarray(
    tensors['model.embed_tokens.weight'].T
  )
  tensors = {k: v for k, v in tensors.items() if k not in drop} | extra
  safetensors.write(folder, tensors, fields())
  return config


def read_folder(folder, config):
  source = safetensors.SafetensorsFolder(folder)
  return tables.load(
    config, llama.rules(config), source, ignored=llama.ignored(config, source)
  )


def test_missing_and_unknown_tensors_are_refused_together(tmp_path):
  gone = 'model.layers.1.self_attn.q_proj.weight'
  config = write_folder(tmp_path, drop=[gone], odd_bias=np.zeros(3, np.float32))
  with pytest.raises(errors.UserError) as caught:
    read_folder(tmp_path, config)
  assert gone in str(caught.value)
  assert 'odd_bias is not known' in str(caught.value)


def test_tied_head_is_the_embedding_and_another_head_is_refused(tmp_path):
  config = write_folder(tmp_path)
  arrays = read_folder(tmp_path, config)
  np.testing.assert_array_equal(arrays['head'], arrays['embedding'].T)
  again = {'lm_head.weight': arrays['embedding']}
  write_folder(tmp_path, **again)
  read_folder(tmp_path, config)
  write_folder(tmp_path, **{'lm_head.weight': arrays['embedding'] + 1})
  with pytest.raises(errors.UserError, match='lm_head.weight'):
    read_folder(tmp_path, config)


def test_stored_inverse_frequencies_are_knowingly_ignored(tmp_path):
  name = 'model.layers.0.self_attn.rotary_emb.inv_freq'
  config = write_folder(tmp_path, **{name: np.zeros(8, np.float32)})
  read_folder(tmp_path, config)
  other = name.replace('layers.0', 'layers.7')
  write_folder(tmp_path, **{other: np.zeros(8, np.float32)})
  with pytest.raises(errors.UserError, match='layers.7'):
    read_folder(tmp_path, config)
