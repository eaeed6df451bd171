# SPDX-License-Identifier: MIT
"""Checkpoints as the reference implementations wrote them, there and back."""

import json

import numpy as np
import pytest

from jspec import errors
from jspec.drafters import interchange
from jspec.drafters.formats import copies, fields, folder, layouts
from tests import shared_data
from tests.drafters.formats import tiny

BLOCK = {'block_size': 4}
EAGLE = {
  'target_layer_ids': [0, 1, 2],
  'target_num_hidden_layers': 4,
  'num_draft_tokens': 3,
}
MTP = {'num_draft_tokens': 3}
# Folder -> layout, method, what its config does not say.
CASES = {
  'dflash': ('angelspec', 'dflash', BLOCK),
  'dflash_gated': ('angelspec', 'dflash', BLOCK),
  'dflare': ('angelspec', 'dflare', BLOCK),
  'dfly': ('angelspec', 'dfly', BLOCK),
  'dspark': ('angelspec', 'dspark', BLOCK),
  'zlab_dflash': ('zlab', 'dflash', {}),
  'eagle3': ('eagle', 'eagle3', EAGLE),
  'eagle3_pruned': ('eagle', 'eagle3', EAGLE),
  'mtp_dense': ('hy3', 'mtp', MTP),
  'mtp_moe': ('hy3', 'mtp', MTP),
}
# A target's config names its own model; an MTP head in it is another.
RENAMED = {'architectures', 'model_type'}


def _read(name):
  return folder.read(shared_data.path(f'goldens/drafters/{name}'))


def _extra(name):
  path = shared_data.path(f'goldens/drafters/{name}') / 'draft_config.json'
  extra = dict(CASES[name][2])
  if name == 'mtp_moe':
    draft = json.loads(path.read_text())
    words = ('moe', 'expert', 'rout')
    extra |= {k: v for k, v in draft.items() if any(w in k for w in words)}
  return extra


@pytest.fixture(scope='module')
def target():
  tensors = folder.read(shared_data.path('goldens/targets/qwen3'))[1]
  return copies.Target(
    tensors['model.embed_tokens.weight'], tensors['lm_head.weight'], 4
  )


@pytest.mark.parametrize('name', CASES)
def test_there_and_back_is_exact(name, target):
  layout, method, _ = CASES[name]
  config, tensors = _read(name)
  assert layouts.detect(config, tensors) == layout
  found, native = layouts.to_native(config, tensors, _extra(name), target)
  assert found['model_type'] == method
  out, back = layouts.from_native(found, native, layout, target)
  assert tiny.same(back, tensors)
  for key in config.keys() & out.keys() - RENAMED:
    assert out[key] == config[key], key
  # What is not written again is harmless, or says that nothing slides.
  lost = config.keys() - out.keys() - fields.DROPPED
  assert lost <= {
    'max_window_layers',
    'use_sliding_window',
    'sliding_window',
  } | {'layer_types'}


@pytest.mark.parametrize('name', CASES)
def test_native_form_is_what_the_drafter_reads(name, target):
  config, tensors = _read(name)
  found, native = layouts.to_native(config, tensors, _extra(name), target)
  method = interchange.find_method(found.pop('model_type'), name)
  assert found.pop('jspec_format') == interchange.FORMAT
  rules = method.rules(method.from_json(found, name))
  ids = {'draft_token_ids'} & native.keys()
  assert sorted(rule.source for rule in rules) == sorted(native.keys() - ids)


def test_offsets_of_the_pruned_head_are_ids(target):
  config, tensors = _read('eagle3_pruned')
  _, native = layouts.to_native(config, tensors, EAGLE, target)
  want = np.arange(64) + tensors['d2t']
  np.testing.assert_array_equal(native['draft_token_ids'], want)
  np.testing.assert_array_equal(np.flatnonzero(tensors['t2d']), want)


@pytest.mark.parametrize('name', sorted(set(CASES) - {'zlab_dflash'}))
def test_what_the_config_does_not_say_is_asked_for(name):
  config, tensors = _read(name)
  key = sorted(CASES[name][2])[0]
  with pytest.raises(errors.UserError, match=key):
    layouts.to_native(config, tensors)


@pytest.mark.parametrize('key', ['hidden_size', 'intermediate_size'])
@pytest.mark.parametrize('name', CASES)
def test_another_models_numbers_are_refused(name, key):
  if name == 'mtp_moe' and key == 'intermediate_size':
    key = 'num_attention_heads'  # It has no dense layer.
  config, tensors = _read(name)
  wrong = {**config, key: 2 * config[key]}
  with pytest.raises(errors.UserError, match=f'{2 * config[key]}'):
    layouts.to_native(wrong, tensors, _extra(name))


def test_names_of_servers_are_the_same_numbers(target):
  """DFly and DFlare renamed by hand, as vLLM has them."""
  table = {
    'context_proj.weight': 'fc.weight',
    'context_norm.weight': 'hidden_norm.weight',
    'final_norm.weight': 'norm.weight',
  }
  for name in ('dfly', 'dflare'):
    config, tensors = _read(name)
    found, native = layouts.to_native(config, tensors, BLOCK, target)
    served = {
      table.get(n, n): t for n, t in tensors.items() if n != copies.EMBEDDING
    }
    nested = {k: config.pop(k) for k in ('mask_token_id', 'target_layer_ids')}
    config |= {'dflash_config': nested, **BLOCK}
    if name == 'dflare':
      config['num_target_layers'] = config['target_num_hidden_layers']
    again, same = layouts.to_native(config, served, {}, target)
    assert again == found
    assert tiny.same(same, native)


def test_deepspec_names_are_the_same_numbers_one_token_further(target):
  table = {
    'context_proj.weight': 'fc.weight',
    'context_norm.weight': 'hidden_norm.weight',
    'final_norm.weight': 'norm.weight',
  }
  config, tensors = _read('dspark')
  found, native = layouts.to_native(config, tensors, BLOCK, target)
  theirs = {table.get(n, n): t for n, t in tensors.items()}
  theirs['lm_head.weight'] = target.head
  config |= {
    'architectures': ['Qwen3DSparkModel'],
    'model_type': 'qwen3',
    'num_target_layers': 4,
    'num_anchors': 512,
    **BLOCK,
  }
  again, same = layouts.to_native(config, theirs, {}, target)
  assert tiny.same(same, native)
  assert again == {**found, 'label_shift': 1, 'num_draft_tokens': 4}


def test_plain_confidence_head_is_told_by_its_width(target):
  config, tensors = _read('dspark')
  path = shared_data.path('goldens/drafters/dspark')
  plain = json.loads((path / 'config_conf_plain.json').read_text())
  tensors = {n: t for n, t in tensors.items() if 'markov' not in n}
  tensors['confidence_head.proj.weight'] = np.zeros((1, 64), np.float32)
  found, _ = layouts.to_native(plain, tensors, BLOCK, target)
  assert found['markov_rank'] == 0
  assert found['confidence_head_with_markov'] is False
