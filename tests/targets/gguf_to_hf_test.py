# SPDX-License-Identifier: MIT
"""A GGUF file, exported as a folder, is read as the same target."""

import dataclasses

import numpy as np
import pytest
import tokenizers

from jspec import errors, loading
from jspec.checkpoints import safetensors
from jspec.targets import families, gguf_model, gguf_to_hf, reading, writing
from jspec.text import chat, hf_texts
from jspec.text import tokenizer as tokenizer_lib
from tests.targets import gguf_model_test, goldens, llama_gguf_test
from tests.targets.reading_test import assert_same


@pytest.mark.parametrize('name', gguf_model_test.ARCHITECTURES)
def test_arrays_and_architecture_are_the_same(tmp_path, name):
  file = gguf_model_test.write(tmp_path / 'x.gguf', name)
  config = gguf_model.config(file)
  fields = gguf_to_hf.fields(config, gguf_model.family(file), 'x.gguf')
  family = families.find(fields, name)
  target = gguf_model_test.load(file)
  writing.write(tmp_path / 'hf', target, family.rules(config), fields)
  source = safetensors.SafetensorsFolder(tmp_path / 'hf')
  # Named as transformers names them.
  golden = safetensors.SafetensorsFolder(goldens.folder(name))
  assert set(source.names()) == set(golden.names())
  again = reading.read(
    reading.Reader(config, family.rules(config), source, ignored=())
  )
  # Gains of Gemma are files' 1 + w on one side and w on the other.
  assert_same(again, target, rtol=2e-7 if name == 'gemma3' else 0.0)


@pytest.mark.parametrize('change', ['windows', 'bases', 'embeddings'])
def test_what_a_config_cannot_say_is_refused(tmp_path, change):
  file = gguf_model_test.write(tmp_path / 'x.gguf', 'gemma3')
  config = gguf_model.config(file)
  changes = {
    'windows': dict(windows=(), local_rope=None),
    'bases': dict(
      local_rope=dataclasses.replace(config.rope, kind='linear', factor=2.0)
    ),
    'embeddings': dict(embedding_scale=2.0),
  }[change]
  odd = dataclasses.replace(config, **changes)
  with pytest.raises(errors.UserError, match='x.gguf: a config.json cannot'):
    gguf_to_hf.fields(odd, 'gemma3', 'x.gguf')


def test_the_whole_folder_is_the_same_target(tmp_path):
  path = llama_gguf_test.write(tmp_path / 'story.gguf')
  loading.export_target(str(path), tmp_path / 'hf', 'float32')
  first, second = (
    loading.load_target(str(x), progress=False) for x in (path, tmp_path / 'hf')
  )
  assert second.fingerprint == first.fingerprint
  assert second.model.config == first.model.config
  assert_same(second.model, first.model)
  assert (second.stop_ids, second.template) == (first.stop_ids, None)
  assert second.tokenizer.bos_id == first.tokenizer.bos_id == 1
  for text in ('Once upon a time', ' two  spaces', 'caf\u00e9 \u4e2d'):
    for special in (False, True):
      ids = first.tokenizer.encode(text, add_special=special)
      assert second.tokenizer.encode(text, add_special=special) == ids
    assert second.tokenizer.decode(ids) == first.tokenizer.decode(ids)


def test_template_and_all_ends_are_written(tmp_path):
  words = {word: i for i, word in enumerate(['<s>', '</s>', '<end>', 'a'])}
  backend = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(words, unk_token='a')
  )
  tokenizer = tokenizer_lib.Tokenizer(backend, 0, (1, 2))
  template = chat.ChatTemplate('{{ eos_token }}\u00fc', '<s>', '<end>')
  hf_texts.write(tmp_path, tokenizer, template)
  found = tokenizer_lib.from_hf_folder(tmp_path)
  assert (found.bos_id, found.eos_ids) == (0, (1, 2))
  assert chat.from_hf_folder(tmp_path) == template
  # Nor is there anything where there is nothing.
  bare = tokenizer_lib.Tokenizer(backend)
  hf_texts.write(tmp_path, bare, None)
  found = tokenizer_lib.from_hf_folder(tmp_path)
  assert (found.bos_id, found.eos_ids) == (None, ())
  assert chat.from_hf_folder(tmp_path) is None


@pytest.mark.slow
def test_rounding_reaches_the_file(tmp_path):
  path = llama_gguf_test.write(tmp_path / 'story.gguf')
  (file,) = loading.export_target(str(path), tmp_path / 'hf', 'bfloat16')
  source = safetensors.SafetensorsFolder(tmp_path / 'hf')
  found = source.part('model.norm.weight', (slice(0, 4),))
  assert found.dtype.name == 'bfloat16' and np.all(found != 0)
  assert file.stat().st_size < 0.6 * path.stat().st_size
