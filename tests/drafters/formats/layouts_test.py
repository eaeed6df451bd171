# SPDX-License-Identifier: MIT
"""Every method through every layout that can say it, and what cannot."""

import ml_dtypes
import numpy as np
import pytest

from jspec import errors
from jspec.drafters.formats import layouts
from tests.drafters.formats import tiny

SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}
PAIRS = [
  ('dflash', 'zlab', {}),
  ('dflash', 'zlab', {'layer_windows': [None, 64]}),
  ('dflash', 'angelspec', {}),
  ('dflash', 'deepspec', SHIFTED),
  ('dflash', 'deepspec', {'layer_windows': [9, 9], **SHIFTED}),
  ('dflash2', 'zlab', {}),
  ('dflash2', 'zlab', {'selector_rank': 0, 'selector_size': 0}),
  ('gated', 'angelspec', {}),
  ('dflare', 'angelspec', {}),
  ('dflare', 'vllm', {}),
  ('dfly', 'angelspec', {}),
  ('dfly', 'vllm', {'num_draft_tokens': 2}),
  ('dspark', 'angelspec', {}),
  ('dspark', 'deepspec', SHIFTED),
  ('dspark', 'deepspec', {'markov_head_type': 'gated', **SHIFTED}),
  ('dspark', 'deepspec', {'markov_head_type': 'rnn', **SHIFTED}),
  ('dspark', 'deepspec', {'confidence_head_with_markov': False, **SHIFTED}),
  (
    'dspark',
    'deepspec',
    {'markov_rank': 0, 'confidence_head_with_markov': False, **SHIFTED},
  ),
  (
    'dspark',
    'angelspec',
    {'enable_confidence_head': False, 'confidence_head_with_markov': False},
  ),
  ('eagle3', 'eagle', {'norm_output': True, 'fc_norm': True}),
  ('eagle3', 'sglang', {}),
  ('mtp', 'angelspec', {'mtp_draft_input_postnorm': False}),
  ('mtp', 'qwen3_mtp', {}),
  ('mtp', 'hy3', {'qk_norm': False}),
  ('mtp_moe', 'angelspec', {}),
  ('mtp_moe', 'hy3', {}),
  ('specblock', 'specblock', {}),
]


@pytest.mark.parametrize('name, layout, changes', PAIRS)
@pytest.mark.parametrize('dtype', [np.float32, ml_dtypes.bfloat16])
def test_there_and_back_is_exact(name, layout, changes, dtype):
  config, tensors = tiny.native(name, **changes)
  tensors = {n: t.astype(dtype) for n, t in tensors.items()}
  target = tiny.target()
  foreign, theirs = layouts.from_native(config, tensors, layout, target)
  assert layouts.detect(foreign, theirs) == layout
  back, ours = layouts.to_native(foreign, theirs, {}, target)
  assert back == config
  assert tiny.same(ours, tensors)


@pytest.mark.parametrize('name', sorted(tiny.CONFIGS))
def test_conversion_leaves_its_input_alone(name):
  config, tensors = tiny.native(name)
  before = (dict(config), dict(tensors))
  layout = {'mtp_moe': 'hy3', 'specblock': 'specblock', 'dflash2': 'zlab'}
  layout = layout.get(name, 'eagle' if name == 'eagle3' else 'angelspec')
  foreign, theirs = layouts.from_native(config, tensors, layout, tiny.target())
  assert (config, dict(tensors).keys()) == (before[0], before[1].keys())
  names = list(theirs)
  layouts.to_native(foreign, theirs)
  assert list(theirs) == names


# Names as the projects publish them, written down by hand.
LAYER = """input_layernorm post_attention_layernorm self_attn.q_proj
self_attn.k_proj self_attn.v_proj self_attn.o_proj self_attn.q_norm
self_attn.k_norm mlp.gate_proj mlp.up_proj mlp.down_proj""".split()
TOP = ['fc', 'hidden_norm', 'norm']
CORRECTION = [
  f'hidden_correction.{part}'
  for part in (
    *('hidden_norm', 'embed_norm', 'gate_proj', 'up_proj'),
    'down_proj',
  )
]
NO_QK = [name for name in LAYER if '_norm' not in name]
EAGLE = [*TOP[:1], 'norm', 'lm_head', 'layers.0.hidden_norm']


def _layers(names, count=2, at='layers'):
  return [f'{at}.{i}.{name}' for i in range(count) for name in names]


@pytest.mark.parametrize(
  'name, layout, changes, modules, bare',
  [
    ('dflash', 'zlab', {}, [*TOP, *_layers(LAYER)], []),
    (
      'dflash2',
      'zlab',
      {},
      [
        *(*TOP, 'candidate_selector.hidden_projection', *_layers(LAYER)),
        *_layers(['attention_conv.kernel_projection']),
        *_layers(['mlp_conv.kernel_projection']),
      ],
      [
        'candidate_selector.predecessor_codebook',
        'candidate_selector.successor_codebook',
        *_layers(['attention_conv.base_kernel', 'mlp_conv.base_kernel']),
      ],
    ),
    (
      'dfly',
      'vllm',
      {},
      [*TOP, *CORRECTION, *_layers(LAYER)],
      ['layer_fusion_weights'],
    ),
    (
      'dflare',
      'vllm',
      {},
      [
        *TOP[1:],
        *_layers([*LAYER, 'self_attn.k_proj_target']),
        *_layers(['self_attn.v_proj_target']),
      ],
      ['layer_fusion_weights'],
    ),
    (
      'dspark',
      'deepspec',
      SHIFTED,
      [
        *(*TOP, *_layers(LAYER), 'embed_tokens', 'lm_head'),
        *('markov_head.markov_w1', 'markov_head.markov_w2'),
        'confidence_head.proj',
      ],
      ['confidence_head.proj.bias'],
    ),
    ('eagle3', 'sglang', {}, [*EAGLE, *_layers(NO_QK, 1)], []),
    (
      'mtp',
      'qwen3_mtp',
      {},
      [
        *('mtp.fc', 'mtp.norm', 'mtp.pre_fc_norm_embedding'),
        *('mtp.pre_fc_norm_hidden', *_layers(LAYER, 1, 'mtp.layers')),
      ],
      [],
    ),
    (
      'specblock',
      'specblock',
      {},
      [
        *(f'input_layer.{n}' for n in ('condition_proj', 'condition_norm')),
        *(f'input_layer.{n}' for n in ('token_norm', 'query_norm', 'fuse')),
        *(f'input_layer.{n}' for n in ('position_queries', 'embed_tokens')),
        *(*_layers(NO_QK), 'shift_proj.0', 'norm', 'lm_head'),
        *('rank_head.0', 'rank_head.2'),
      ],
      [],
    ),
  ],
)
def test_tensors_have_the_published_names(name, layout, changes, modules, bare):
  config, tensors = tiny.native(name, **changes)
  _, theirs = layouts.from_native(config, tensors, layout, tiny.target())
  assert sorted(theirs) == sorted([f'{m}.weight' for m in modules] + bare)


def test_values_go_where_their_names_say():
  config, tensors = tiny.native('dflash')
  _, theirs = layouts.from_native(config, tensors, 'zlab')
  pairs = {
    'fc.weight': 'context_proj.weight',
    'hidden_norm.weight': 'context_norm.weight',
    'norm.weight': 'final_norm.weight',
  }
  for new, old in pairs.items():
    np.testing.assert_array_equal(theirs[new], tensors[old])


@pytest.mark.parametrize('prefix', ['model.', 'draft_model.', 'model.model.'])
def test_prefixes_of_wrappers_are_tolerated(prefix):
  config, tensors = tiny.native('dfly')
  foreign, theirs = layouts.from_native(config, tensors, 'vllm')
  wrapped = {prefix + n: t for n, t in theirs.items()}
  back, ours = layouts.to_native(foreign, wrapped)
  assert back == config
  assert tiny.same(ours, tensors)
  wrapped['fc.weight'] = theirs['fc.weight']
  with pytest.raises(errors.UserError, match='both fc.weight'):
    layouts.to_native(foreign, wrapped)


def test_unknown_layout_lists_what_was_looked_for():
  with pytest.raises(errors.UserError) as caught:
    layouts.detect({}, ['some.weight', 'other.weight'])
  for part in (
    'eh_proj',
    'midlayer',
    'hidden_norm',
    'other.weight',
    '--layout',
  ):
    assert part in str(caught.value)


def test_layout_with_two_readings_is_asked_for():
  config, tensors = tiny.native('dflash', **SHIFTED)
  foreign, theirs = layouts.from_native(
    config, tensors, 'deepspec', tiny.target()
  )
  theirs = {n: t for n, t in theirs.items() if n not in ('lm_head.weight',)}
  with pytest.raises(errors.UserError, match='label_shift 0.*label_shift 1'):
    layouts.to_native(foreign, theirs)
  back, _ = layouts.to_native(foreign, theirs, layout='deepspec')
  assert back['label_shift'] == 1


def test_native_folder_is_not_imported_again():
  config, tensors = tiny.native('dflash')
  with pytest.raises(errors.UserError, match='native layout already'):
    layouts.to_native(config, tensors)


@pytest.mark.parametrize(
  'name, layout, changes, message',
  [
    ('dflash', 'zlab', SHIFTED, 'label_shift is 1.*only say 0'),
    ('dflash', 'deepspec', {}, 'label_shift is 0.*only say 1'),
    ('dspark', 'zlab', {}, "model_type is 'dspark'"),
    ('dflash2', 'angelspec', {}, "model_type is 'dflash2'"),
    ('gated', 'zlab', {}, "fusion is 'gated'"),
    ('dfly', 'angelspec', {'layer_windows': [8, None]}, 'layer_windows'),
    ('dflash', 'zlab', {'layer_windows': [8, 9]}, r'widths \[8, 9\]'),
    ('dspark', 'angelspec', {'markov_head_type': 'rnn'}, "'rnn'"),
    ('eagle3', 'zlab', {}, "model_type is 'eagle3'"),
    ('mtp_moe', 'qwen3_mtp', {}, 'num_experts is 3'),
    ('mtp', 'hy3', {'mtp_draft_input_postnorm': False}, 'input_postnorm'),
    ('mtp', 'hy3', {'embedding_first': False}, 'embedding_first is False'),
    ('mtp', 'angelspec', {'feedback_postnorm': False}, 'feedback_postnorm'),
    ('dflash', 'zlab', {'novelty': 3}, 'novelty=3'),
    ('dflash', 'zlab', {'model_type': 'd2sd'}, "'d2sd'"),
  ],
)
def test_export_refuses_what_a_layout_cannot_say(
  name, layout, changes, message
):
  config, tensors = tiny.native(name)
  if changes.get('markov_head_type'):
    config, tensors = tiny.native(name, **changes)
  with pytest.raises(errors.UserError, match=message):
    layouts.from_native({**config, **changes}, tensors, layout, tiny.target())


def test_options_of_decoding_are_lost_by_name_only():
  config, tensors = tiny.native('dflash', tree_size=8, support=16)
  foreign, theirs = layouts.from_native(config, tensors, 'zlab')
  assert layouts.unsaid(config, foreign) == ['support', 'tree_size']
  back, _ = layouts.to_native(foreign, theirs)
  assert 'tree_size' not in back


def test_whose_drafter_it_is_goes_along():
  whose = {'target_name': 't', 'target_fingerprint': 'f00'}
  config, tensors = tiny.native('dflash', **whose)
  foreign, theirs = layouts.from_native(config, tensors, 'zlab')
  assert foreign['target_fingerprint'] == 'f00'
  assert layouts.to_native(foreign, theirs)[0] == config
