# SPDX-License-Identifier: MIT
"""Tiny native checkpoints of every method, and a target to go with them."""

import numpy as np

from jspec.drafters.formats import copies, eagle, family, family_table, mtp
from jspec.drafters.formats import specblock as specblock_layout

VOCAB, WIDTH, DEPTH = 40, 16, 6
IDS = np.asarray([0, 3, 4, 7, 11, 20, 38, 39], np.int32)

_SHAPES = {
  'jspec_format': 1,
  'hidden_size': WIDTH,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'rms_norm_eps': 1e-5,
  'rope_theta': 5e5,
  'vocab_size': VOCAB,
  'draft_vocab_size': None,
  'target_hidden_size': WIDTH,
  'target_num_hidden_layers': DEPTH,
  'num_draft_tokens': 3,
}
_DEEP = {
  **_SHAPES,
  'intermediate_size': 24,
  'num_hidden_layers': 2,
  'target_layer_ids': [1, 3, 4],
}
_BLOCK = {
  **_DEEP,
  'block_size': 4,
  'label_shift': 0,
  'mask_token_id': 39,
  'layer_windows': None,
}
_MARKOV = {
  'markov_rank': 5,
  'markov_head_type': 'vanilla',
  'enable_confidence_head': True,
  'confidence_head_with_markov': True,
}
_MTP = {
  **_SHAPES,
  'model_type': 'mtp',
  'target_layer_ids': [DEPTH - 1],
  'embedding_first': True,
  'feedback_postnorm': True,
  'zero_first_embedding': 'first_step',
  'mtp_draft_input_postnorm': True,
  'qk_norm': True,
  'num_experts': 0,
  'intermediate_size': 24,
}
CONFIGS = {
  'dflash': {
    **_BLOCK,
    'model_type': 'dflash',
    'fusion': 'concat',
    'gate_temperature': 1.0,
  },
  'gated': {
    **_BLOCK,
    'model_type': 'dflash',
    'fusion': 'gated',
    'gate_temperature': 0.5,
  },
  'dflash2': {
    **_BLOCK,
    'model_type': 'dflash2',
    'selector_rank': 6,
    'selector_size': 4,
    'conv_group_size': 8,
  },
  'dflare': {**_BLOCK, 'model_type': 'dflare'},
  'dfly': {
    **_BLOCK,
    'model_type': 'dfly',
    'enable_hidden_correction': True,
    'hidden_correction_intermediate_size': 12,
  },
  'dspark': {**_BLOCK, 'model_type': 'dspark', **_MARKOV},
  'eagle3': {
    **_DEEP,
    'model_type': 'eagle3',
    'num_hidden_layers': 1,
    'norm_output': False,
    'fc_norm': False,
  },
  'mtp': _MTP,
  'mtp_moe': {
    **_MTP,
    'num_experts': 3,
    'moe_intermediate_size': 10,
    'num_shared_experts': 2,
    'num_experts_per_tok': 2,
    'moe_router_use_sigmoid': True,
    'moe_router_enable_expert_bias': True,
    'route_norm': True,
    'router_scaling_factor': 2.5,
  },
  'specblock': {
    **_DEEP,
    'model_type': 'specblock',
    'num_attention_heads': 2,
    'block_size': 3,
    'label_shift': 1,
  },
}
_TABLES = {
  'eagle3': eagle.table,
  'mtp': mtp.table,
  'specblock': specblock_layout.table,
}


def native(name, seed=0, **changes):
  """A native config and random tensors of its shapes."""
  config = {**CONFIGS[name], **changes}
  full = config
  if config['model_type'] in family.METHODS:
    full = family.complete(config)
  table = _TABLES.get(config['model_type'], family_table.table)(full)
  rng = np.random.default_rng(seed)
  tensors = {
    name: rng.normal(size=[size for _, size in axes]).astype(np.float32)
    for name, axes in table.items()
  }
  if config['draft_vocab_size'] is not None:
    tensors['draft_token_ids'] = IDS
  return config, tensors


def reduced(name, **changes):
  """The same with a reduced draft vocabulary."""
  return native(name, draft_vocab_size=len(IDS), **changes)


def target(seed=1):
  rng = np.random.default_rng(seed)
  embedding, head = rng.normal(size=(2, VOCAB, WIDTH)).astype(np.float32)
  return copies.Target(embedding, head, DEPTH)


def same(a, b):
  """Whether two dicts of arrays are equal to the bit, dtypes included."""
  return a.keys() == b.keys() and all(
    a[n].dtype == b[n].dtype and np.array_equal(a[n], b[n]) for n in a
  )
