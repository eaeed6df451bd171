# SPDX-License-Identifier: MIT
"""Llama in GGUF: a real model by way of a file, and what is refused."""

import gguf as gguf_package
import numpy as np
import pytest

from jspec import errors, loading
from jspec.checkpoints import gguf
from jspec.nn import rope
from jspec.targets import gguf_model, tables
from tests import shared_data, stories260k

NAMES = {
  'attn_norm': 'attn_norm',
  'q': 'attn_q',
  'k': 'attn_k',
  'v': 'attn_v',
  'out': 'attn_output',
  'mlp_norm': 'ffn_norm',
  'gate': 'ffn_gate',
  'up': 'ffn_up',
  'down': 'ffn_down',
}
FIELDS = {
  'block_count': 5,
  'context_length': 512,
  'embedding_length': 64,
  'feed_forward_length': 172,
  'attention.head_count': 8,
  'attention.head_count_kv': 4,
  'attention.layer_norm_rms_epsilon': 1e-5,
  'rope.dimension_count': 8,
}


def write(path, *, drop=(), tensors=(), arch='llama', **changes):
  """Writes stories260K as llama.cpp would: Q and K rows are interleaved."""
  writer = gguf_package.GGUFWriter(path, arch)
  fields = FIELDS | {k.replace('__', '.'): v for k, v in changes.items()}
  for key, value in fields.items():
    if value is None:
      continue
    add = {
      bool: writer.add_bool,
      int: writer.add_uint32,
      float: writer.add_float32,
      str: writer.add_string,
      list: writer.add_array,
    }[type(value)]
    add(f'llama.{key}', value)
  pieces, scores = stories260k.vocabulary()
  texts = [p.decode('utf-8', 'replace').replace(' ', '\u2581') for p in pieces]
  texts[:3] = ['<unk>', '<s>', '</s>']
  kinds = [2, 3, 3] + [6] * 256 + [1] * (len(texts) - 259)
  writer.add_tokenizer_model('llama')
  writer.add_token_list(texts)
  writer.add_token_scores(scores)
  writer.add_token_types(kinds)
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(2)
  writer.add_add_bos_token(True)
  arrays = {}
  for name, values in stories260k.raw().items():
    if name in NAMES:
      for i, layer in enumerate(values):
        arrays[f'blk.{i}.{NAMES[name]}.weight'] = layer
  arrays['token_embd.weight'] = stories260k.raw()['embedding']
  arrays['output_norm.weight'] = stories260k.raw()['final_norm']
  arrays |= dict(tensors)
  for name, values in arrays.items():
    if name not in drop:
      writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def test_model_and_tokenizer_come_out_of_the_file(tmp_path):
  path = write(tmp_path / 'story.gguf')
  loaded = loading.load_target(str(path), progress=False)
  assert loaded.name == 'story'
  assert loaded.stop_ids == (2,)
  assert loaded.template is None
  assert loaded.model.config == stories260k.config(
    norm_eps=float(np.float32(1e-5))
  )
  prompt = loaded.tokenizer.encode('Once upon a time', add_special=True)
  assert prompt[0] == loaded.tokenizer.bos_id == 1
  ids = prompt + stories260k.greedy(loaded.model, 40, prompt)
  assert loaded.tokenizer.decode(ids) == stories260k.decode(ids)
  assert stories260k.START.startswith(loaded.tokenizer.decode(ids)[:100])


def test_rows_of_q_and_k_are_put_back_in_halves():
  rows = np.arange(16)[:, None] * np.ones((1, 3))
  # Two heads of 8: llama.cpp stores 0 4 1 5 2 6 3 7.
  stored = rows.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
  assert list(stored[:8, 0]) == [0, 4, 1, 5, 2, 6, 3, 7]
  np.testing.assert_array_equal(
    gguf_model.rotate_half_rows(stored, head_width=8), rows
  )


@pytest.mark.parametrize(
  'changes, named',
  [
    ({'expert_count': 8}, 'llama.expert_count'),
    ({'attention__sliding_window': 64}, 'llama.attention.sliding_window'),
    ({'attention__head_count_kv': [4, 4, 4, 4, 4]}, 'head_count_kv'),
    ({'attention__value_length': 16}, 'value_length'),
    ({'rope__dimension_count': 4}, 'rope.dimension_count'),
    ({'rope__scaling__type': 'longrope'}, 'longrope'),
    ({'vocab_size': 500}, 'llama.vocab_size'),
    ({'block_count': None}, 'llama.block_count is missing'),
    ({'arch': 'qwen2'}, 'qwen2'),
    ({'drop': ['blk.3.ffn_up.weight']}, 'blk.3.ffn_up.weight is missing'),
    ({'drop': ['token_embd.weight']}, 'token_embd.weight is missing'),
    (
      {'tensors': {'blk.0.attn_q.bias': np.ones(64)}},
      'attn_q.bias is not known',
    ),
    ({'feed_forward_length': 170}, 'blk.0.ffn_up.weight has shape'),
    ({'tensors': {'rope_freqs.weight': np.ones(4) * 3}}, 'rope_freqs.weight'),
  ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path, changes, named):
  path = write(tmp_path / 'x.gguf', **changes)
  with pytest.raises(errors.UserError, match=named) as caught:
    loading.load_target(str(path), progress=False)
  assert '\n' not in str(caught.value)


def test_llama3_rule_is_found_behind_its_divisors(tmp_path):
  config = rope.RopeConfig(
    base=500000.0, kind='llama3', factor=8.0, original_max_len=8192
  )
  plain = rope.inverse_frequencies(rope.RopeConfig(base=500000.0), 8)
  divisors = plain / rope.inverse_frequencies(config, 8)
  path = write(
    tmp_path / 'x.gguf',
    rope__freq_base=500000.0,
    tensors={'rope_freqs.weight': divisors},
  )
  file = gguf.GGUFFile(path)
  found = gguf_model.config(file)
  assert found.rope.kind == 'llama3'
  np.testing.assert_allclose(
    rope.inverse_frequencies(found.rope, 8),
    rope.inverse_frequencies(config, 8),
    rtol=1e-5,
  )
  tables.load(
    found,
    gguf_model.rules(found, 'llama'),
    file,
    ignored=gguf_model.ignored(file),
  )


def test_untied_head_is_read(tmp_path):
  shared_data.path('data/stories260k/stories260K.bin')
  head = np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32)
  path = write(tmp_path / 'x.gguf', tensors={'output.weight': head})
  model = loading.load_target(str(path), progress=False).model
  assert not model.config.tied
  np.testing.assert_array_equal(model.head[...], head.T)


@pytest.mark.parametrize(
  'changes, kind',
  [
    ({'rope__scaling__type': 'linear', 'rope__scaling__factor': 2.0}, 'linear'),
    ({'rope__scaling__factor': 2.0}, 'linear'),
    ({'rope__scale_linear': 2.0}, 'linear'),
    ({'rope__scaling__type': 'none'}, 'default'),
    ({}, 'default'),
  ],
)
def test_linear_scaling_is_read_in_all_its_spellings(tmp_path, changes, kind):
  file = gguf.GGUFFile(write(tmp_path / 'x.gguf', **changes))
  found = gguf_model.config(file).rope
  assert found.kind == kind
  assert found.factor == (2.0 if kind == 'linear' else 1.0)
