# SPDX-License-Identifier: MIT
"""Models of every architecture, by way of a GGUF file, equal the reference."""

import math

import gguf as gguf_package
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import gguf, safetensors
from jspec.targets import gguf_model, reading
from tests.targets import goldens

ARCHITECTURES = {
  'llama': 'llama',
  'llama_tied': 'llama',
  'qwen2': 'qwen2',
  'qwen3': 'qwen3',
  'qwen3_yarn': 'qwen3',
  'gemma3': 'gemma3',
}


def metadata(name):
  """What the converter of llama.cpp writes of a golden's config."""
  said = goldens.fields(name)
  turns = said['rope_parameters']
  found = {
    'block_count': said['num_hidden_layers'],
    'context_length': said['max_position_embeddings'],
    'embedding_length': said['hidden_size'],
    'feed_forward_length': said['intermediate_size'],
    'attention.head_count': said['num_attention_heads'],
    'attention.head_count_kv': said['num_key_value_heads'],
    'attention.layer_norm_rms_epsilon': said['rms_norm_eps'],
  }
  if 'head_dim' in said:
    found['attention.key_length'] = said['head_dim']
    found['attention.value_length'] = said['head_dim']
  if name == 'gemma3':
    turns = turns['full_attention']
    found['attention.sliding_window'] = said['sliding_window']
  found['rope.freq_base'] = turns['rope_theta']
  if turns['rope_type'] != 'default':
    found['rope.scaling.type'] = turns['rope_type']
    found['rope.scaling.factor'] = turns['factor']
  if turns['rope_type'] == 'yarn':
    length = turns['original_max_position_embeddings']
    found['rope.scaling.original_context_length'] = length
  return found


def tensors(name):
  """The golden's weights as the converter leaves them, by their new names."""
  said = goldens.fields(name)
  arch = ARCHITECTURES[name]
  named = gguf_package.get_tensor_name_map(
    getattr(gguf_package.MODEL_ARCH, arch.upper()), said['num_hidden_layers']
  )
  source = safetensors.SafetensorsFolder(goldens.folder(name))
  found = {}
  for tensor in source.names():
    values = source.read(tensor)
    heads = {
      'q_proj': said['num_attention_heads'],
      'k_proj': said['num_key_value_heads'],
    }.get(tensor.split('.')[-2])
    if arch == 'llama' and heads:
      halves = values.reshape(heads, 2, -1, values.shape[-1])
      values = halves.swapaxes(1, 2).reshape(values.shape)
    if arch == 'gemma3' and tensor.endswith('norm.weight'):
      values = values + 1
    if arch == 'gemma3' and tensor.endswith('q_norm.weight'):
      # Files do not say query_pre_attn_scalar, which here is not the width.
      scalar, width = said['query_pre_attn_scalar'], said['head_dim']
      values = values * math.sqrt(width / scalar)
    new = named.get_name(tensor, try_suffixes=('.weight', '.bias'))
    found[new] = values
  return found


def write(path, name, *, arch=None, more=(), **changes):
  arch = arch or ARCHITECTURES[name]
  writer = gguf_package.GGUFWriter(path, arch)
  changes = {k.replace('__', '.'): v for k, v in changes.items()}
  for key, value in (metadata(name) | changes).items():
    if value is None:
      continue
    add = {
      bool: writer.add_bool,
      int: writer.add_uint32,
      float: writer.add_float32,
      str: writer.add_string,
      list: writer.add_array,
    }[type(value)]
    add(f'{arch}.{key}', value)
  for tensor, values in (tensors(name) | dict(more)).items():
    writer.add_tensor(tensor, np.ascontiguousarray(values, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return gguf.GGUFFile(path)


def load(file):
  config = gguf_model.config(file)
  rules = gguf_model.rules(config, gguf_model.family(file))
  ignored = gguf_model.ignored(file)
  return reading.read(reading.Reader(config, rules, file, ignored=ignored))


def difference(target, name):
  golden = goldens.golden(name)
  logits, _, _ = goldens.run(target, golden['input_ids'])
  return np.abs(logits - golden['logits']).max()


@pytest.mark.parametrize('name', ARCHITECTURES)
def test_logits_equal_the_reference(tmp_path, name):
  target = load(write(tmp_path / 'x.gguf', name))
  assert difference(target, name) < 1e-4
  assert target.config.tied == goldens.config(name).tied


def test_gemma_says_what_its_config_says(tmp_path):
  found = gguf_model.config(write(tmp_path / 'x.gguf', 'gemma3'))
  want = goldens.config('gemma3', query_pre_attn_scalar=24)
  assert found.windows == want.windows == (8,) * 5 + (None,)
  assert (found.rope, found.local_rope) == (want.rope, want.local_rope)
  assert found.attention_scale == want.attention_scale
  assert found.embedding_scale == want.embedding_scale
  assert (found.activation, found.logit_cap) == ('gelu_tanh', None)


@pytest.mark.few(3)
@pytest.mark.parametrize(
  'name, changes',
  [
    ('qwen2', {'rope__freq_base': 5e5}),
    ('qwen3_yarn', {'rope__scaling__factor': 2.0}),
    ('gemma3', {'attention__sliding_window': 7}),
    ('gemma3', {'attention__sliding_window_pattern': 5}),
    ('gemma3', {'rope__freq_base_swa': 2e4}),
    ('gemma3', {'final_logit_softcapping': 3.0}),
    ('gemma3', {'rope__scaling__type': None, 'rope__scaling__factor': None}),
  ],
)
def test_another_value_of_a_key_gives_something_else(tmp_path, name, changes):
  target = load(write(tmp_path / 'x.gguf', name, **changes))
  assert difference(target, name) > 1e-3


def test_rows_that_are_not_interleaved_must_stay_as_they_are(tmp_path):
  file = write(tmp_path / 'x.gguf', 'qwen3')
  config = gguf_model.config(file)
  turned = gguf_model.rules(config, 'llama')
  target = reading.read(reading.Reader(config, turned, file))
  assert difference(target, 'qwen3') > 1e-3


def test_windows_may_be_listed_or_absent(tmp_path):
  listed = [True, False, True, False, True, False]
  file = write(
    tmp_path / 'x.gguf', 'gemma3', attention__sliding_window_pattern=listed
  )
  assert gguf_model.config(file).windows == (8, None) * 3
  file = write(tmp_path / 'y.gguf', 'gemma3', attention__sliding_window=0)
  found = gguf_model.config(file)
  assert (found.windows, found.local_rope) == ((), None)


@pytest.mark.parametrize(
  'name, changes, named',
  [
    ('qwen2', {'arch': 'qwen2moe'}, "'qwen2moe' is not supported; use a file"),
    ('qwen3', {'pooling_type': 1}, 'qwen3.pooling_type is not known'),
    ('qwen3', {'attention__sliding_window': 64}, 'qwen3.attention.sliding_w'),
    ('gemma3', {'attention__scale': 0.2}, 'gemma3.attention.scale is not kno'),
    ('gemma3', {'rope__freq_base': None}, 'gemma3.rope.freq_base is missing'),
    (
      'gemma3',
      {'attention__sliding_window_pattern': [True, False]},
      'pattern has 2 layers of 6',
    ),
    (
      'qwen3_yarn',
      {'rope__scaling__original_context_length': None},
      'qwen3.rope.scaling.original_context_length is missing',
    ),
    (
      'qwen3_yarn',
      {'more': {'rope_freqs.weight': np.ones(8)}},
      'yarn rope scaling together with rope_freqs.weight',
    ),
    (
      'qwen3',
      {'more': {'blk.0.attn_q.bias': np.ones(64)}},
      'blk.0.attn_q.bias is not known',
    ),
  ],
)
def test_what_is_not_understood_is_refused_by_name(
  tmp_path, name, changes, named
):
  with pytest.raises(errors.UserError, match=named) as caught:
    load(write(tmp_path / 'x.gguf', name, **changes))
  assert '\n' not in str(caught.value)
