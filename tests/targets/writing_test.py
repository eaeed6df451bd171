# SPDX-License-Identifier: MIT
"""A target that was written is read as the same arrays, by the same names."""

import json

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import names, safetensors
from jspec.targets import families, reading, sharding, writing
from tests.targets import goldens
from tests.targets.reading_test import assert_same, reader
from tests.targets.sharding_test import mesh_of


def write(path, name, target, **how):
  said = goldens.fields(name)
  family = families.find(said, name)
  rules = family.rules(target.config)
  return writing.write(path, target, rules, family.written(said), **how)


@pytest.mark.few(6)
@pytest.mark.parametrize('dtype', reading.DTYPES)
@pytest.mark.parametrize('name', goldens.NAMES)
def test_written_and_read_again_it_is_the_same(tmp_path, name, dtype):
  target = reading.read(reader(name), dtype=dtype)
  files = write(tmp_path, name, target)
  assert [file.name for file in files] == [safetensors.FILE]
  first = safetensors.SafetensorsFolder(goldens.folder(name))
  second = safetensors.SafetensorsFolder(tmp_path)
  assert set(second.names()) == set(first.names())
  for tensor in first.names():
    assert second.shape(tensor) == first.shape(tensor)
    if dtype == 'float32' and 'norm' not in tensor:
      np.testing.assert_array_equal(second.read(tensor), first.read(tensor))
  assert_same(reading.read(reader(name, second), dtype=dtype), target)
  said = json.loads((tmp_path / 'config.json').read_text())
  assert said.pop('dtype') == dtype
  want = goldens.fields(name)
  assert want.pop('dtype') == 'float32'
  if 'num_nextn_predict_layers' in want:
    want['num_nextn_predict_layers'] = 0  # They are not written.
  assert said == want


@pytest.mark.few(1)
@pytest.mark.parametrize('name', ['llama', 'gemma3', 'deepseek_v3'])
def test_files_of_a_split_or_placed_target_are_the_same(tmp_path, name):
  whole = goldens.load(name)
  wanted = write(tmp_path / 'whole', name, whole)[0].read_bytes()
  placed = sharding.place(whole, mesh_of(2))
  split = goldens.load(name, is_split=True)
  for label, target in dict(placed=placed, split=split).items():
    assert write(tmp_path / label, name, target)[0].read_bytes() == wanted


def test_large_targets_are_cut_into_files_with_an_index(tmp_path):
  target = goldens.load('llama')
  files = write(tmp_path, 'llama', target, shard_bytes=150_000)
  assert [file.name for file in files] == [
    f'model-0000{i}-of-00003.safetensors' for i in (1, 2, 3)
  ]
  index = json.loads((tmp_path / safetensors.INDEX).read_text())
  source = safetensors.SafetensorsFolder(tmp_path)
  assert index['metadata']['total_size'] == sum(
    source.read(name).nbytes for name in source.names()
  )
  assert_same(reading.read(reader('llama', source)), target)


def test_gains_that_rounding_would_change_stay_in_float32(tmp_path):
  target = reading.read(reader('gemma3'), dtype='bfloat16')
  gain = target.layers.attn_norm[...]
  target.layers.attn_norm[...] = gain.at[1:].set(1.25).at[0, 0].set(0.2998)
  write(tmp_path, 'gemma3', target)
  source = safetensors.SafetensorsFolder(tmp_path)
  stem = 'model.layers.{}.input_layernorm.weight'
  assert source.dtype(stem.format(0)) == np.float32
  assert source.dtype(stem.format(1)).itemsize == 2
  again = reading.read(reader('gemma3', source), dtype='bfloat16')
  assert_same(again, target)


def test_a_conversion_without_a_way_back_is_refused(tmp_path):
  rule = names.Rule('x', 'embedding', (), lambda values: values)
  with pytest.raises(errors.UserError, match='tensor x .* no way back'):
    writing.write(tmp_path, goldens.load('llama'), [rule], {})
