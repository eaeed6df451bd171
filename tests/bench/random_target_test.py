# SPDX-License-Identifier: MIT
"""Shapes without files: what is kept of a model when it is cut."""

import numpy as np
import pytest

from jspec import errors
from jspec.bench import random_target
from jspec.targets import families, reading

SHAPES = families.presets()


def cut(name, *sizes):
  return random_target.cut(SHAPES[name], name, *sizes)


def test_layers_come_from_both_ends():
  config = cut('deepseek_v3', 5, 16, 1000)
  assert config.num_layers == 5
  assert config.dense_layers == (0, 1, 2)
  assert config.experts.num_experts == 16
  assert config.vocab_size == 1000
  assert config.width == SHAPES['deepseek_v3'].width
  assert cut('deepseek_v3', 2).dense_layers == (0,)
  whole = SHAPES['gpt_oss_20b'].windows
  assert cut('gpt_oss_20b', 3).windows == (*whole[:2], whole[-1])
  assert cut('qwen3_8b', 36) == SHAPES['qwen3_8b']


@pytest.mark.parametrize(
  'name, sizes, words',
  [
    ('qwen3_8b', (37,), 'has 36 layers, not 37'),
    ('qwen3_8b', (1, 8), 'has no experts'),
    ('qwen3_8b', (1, None, 10**6), 'ids, not 1000000'),
    ('qwen3_30b_a3b', (1, 129), 'has 128 experts, not 129'),
    ('qwen3_30b_a3b', (1, 4), 'top_k=8'),
  ],
)
def test_what_a_shape_has_not_is_refused(name, sizes, words):
  with pytest.raises(errors.UserError, match=words):
    cut(name, *sizes)


def test_random_arrays_have_the_sizes_of_trained_ones():
  config = cut('gemma3_1b', 1, None, 100)
  reader = random_target.RandomReader(config)
  found = {}
  for name in ('qkv', 'final_norm', 'embedding'):
    shape = reader.shapes[name]
    found[name] = np.empty(shape, np.float32)
    reader.read(name, tuple(slice(0, n) for n in shape), found[name])
  assert abs(found['qkv'].std() * config.width**0.5 - 1) < 0.02
  assert abs(found['final_norm'].mean() - 1) < 0.02
  # No row is another's.
  assert len(np.unique(found['embedding'][:, 0])) == 100


def test_options_of_a_target_are_kept(monkeypatch):
  seen = {}
  monkeypatch.setattr(
    reading, 'read', lambda reader, **forms: seen.update(forms) or Tiles()
  )
  spec = 'qwen3_8b,dtype=bfloat16,weights=int8'
  target = random_target.load(spec, 2, None, 64)
  assert (seen['dtype'], seen['weights']) == ('bfloat16', 'int8')
  said = 'with random weights, 2 layers, 64 ids'
  assert target.label == f'{spec} {said}'
  with pytest.raises(errors.UserError, match='no option of a target'):
    random_target.load('qwen3_8b,wights=int8', 2)
  with pytest.raises(errors.UserError, match="unknown target 'qwen4'"):
    random_target.load('qwen4', 2)


class Tiles:
  def add_tiles(self):
    """As a target's."""
