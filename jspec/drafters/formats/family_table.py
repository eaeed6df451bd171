# SPDX-License-Identifier: MIT
"""The tensors of a native checkpoint of the DFlash family, with their shapes.

A config with the keys of all parts (`family.complete`) says which there are.
"""

from typing import Any

from jspec.drafters.formats import shapes, vocabulary

MIX, PROJ = 'layer_fusion_weights', 'context_proj.weight'
# DFlash2 convolves before and after a sub-layer, over two slots.
SIDES_AND_TAPS = 4


def table(config: dict[str, Any]) -> shapes.Table:
  """The tensors of a native config."""
  width, vocab = shapes.axis(config, 'hidden_size'), ('vocab_size',)
  taps = ('target_layer_ids', len(config['target_layer_ids']))
  target = shapes.axis(config, 'target_hidden_size')
  rows = shapes.axis(config, *vocab)
  found = {'context_norm.weight': (width,), 'final_norm.weight': (width,)}
  fusion, method_name = config['fusion'], config['model_type']
  if 'concat' in fusion:
    label = f'{taps[1]} target_layer_ids*target_hidden_size'
    found[PROJ] = (width, (label, taps[1] * target[1]))
  if 'layer_mix' in fusion:
    found[MIX] = (shapes.axis(config, 'num_hidden_layers'), taps)
  if fusion == 'gated':
    found['layer_gate'] = (taps,)
    for i in range(taps[1]):
      found[f'candidate_norms.{i}.weight'] = (target,)
  for i in range(config['num_hidden_layers']):
    at = f'layers.{i}.'
    found |= shapes.decoder_layer(config, at, has_qk_norm=True)
    if method_name == 'dflare':
      keys = shapes.axis(config, 'num_key_value_heads', 'head_dim')
      for name in ('k_proj_target', 'v_proj_target'):
        found[f'{at}self_attn.{name}.weight'] = (keys, target)
    if config['conv_group_size']:
      groups = config['hidden_size'] // config['conv_group_size']
      for part in ('attn_conv', 'mlp_conv'):
        found[f'{at}{part}.base'] = (('sides', 2), ('taps', 2), width)
        found[f'{at}{part}.proj.weight'] = (
          ('4*hidden_size/conv_group_size', SIDES_AND_TAPS * groups),
          width,
        )
  if config['draft_vocab_size'] is not None:
    found[vocabulary.NATIVE] = (shapes.axis(config, 'draft_vocab_size'),)
  return found | _head_table(config, width, rows)


def _head_table(config, width, rows):
  found = {}
  rank = shapes.axis(config, 'markov_rank')
  if config['markov_rank']:
    r = rank[1]
    found['markov_head.markov_w1.weight'] = (rows, rank)
    found['markov_head.markov_w2.weight'] = (rows, rank)
    both = ('hidden_size+markov_rank', width[1] + r)
    if config['markov_head_type'] == 'gated':
      found['markov_head.gate_proj.weight'] = (rank, both)
      found['markov_head.gate_proj.bias'] = (rank,)
    if config['markov_head_type'] == 'rnn':
      three = ('3*markov_rank', 3 * r)
      state = ('hidden_size+2*markov_rank', width[1] + 2 * r)
      found['markov_head.joint_proj.weight'] = (three, state)
      found['markov_head.joint_proj.bias'] = (three,)
  if config['enable_confidence_head']:
    seen = width
    if config['confidence_head_with_markov']:
      seen = ('hidden_size+markov_rank', width[1] + rank[1])
    found['confidence_head.proj.weight'] = (('one', 1), seen)
    found['confidence_head.proj.bias'] = (('one', 1),)
  if config['enable_hidden_correction']:
    key = 'hidden_correction_intermediate_size'
    inner, both = shapes.axis(config, key), ('2*hidden_size', 2 * width[1])
    at = 'hidden_correction.'
    found[at + 'hidden_norm.weight'] = (width,)
    found[at + 'embed_norm.weight'] = (width,)
    found |= shapes.mlp(at, both, inner)
    found[at + 'down_proj.weight'] = (width, inner)
  if config['selector_rank']:
    rank = shapes.axis(config, 'selector_rank')
    found['selector.prev_embed.weight'] = (rows, rank)
    found['selector.next_embed.weight'] = (rows, rank)
    found['selector.proj.weight'] = (rank, width)
  return found
