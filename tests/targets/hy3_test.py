# SPDX-License-Identifier: MIT
"""Hy3 against the formulas in plain numpy: no reference golden exists."""

import math

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import names
from jspec.nn import rope
from jspec.targets import architecture, families, hy3, tables, transformer
from tests.targets import goldens

FIELDS = {
  'model_type': 'hy_v3',
  'expert_hidden_dim': 12,
  'first_k_dense_replace': 1,
  'head_dim': 8,
  'hidden_size': 32,
  'intermediate_size': 24,
  'max_position_embeddings': 64,
  'mlp_layer_types': ['dense', 'sparse'],
  'moe_intermediate_size': 12,
  'moe_router_enable_expert_bias': True,
  'moe_router_use_sigmoid': True,
  'num_attention_heads': 4,
  'num_experts': 6,
  'num_experts_per_tok': 2,
  'num_hidden_layers': 2,
  'num_key_value_heads': 2,
  'num_nextn_predict_layers': 1,
  'num_shared_experts': 1,
  'qk_norm': True,
  'rms_norm_eps': 1e-5,
  'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e4},
  'route_norm': True,
  'router_scaling_factor': 2.826,
  'tie_word_embeddings': False,
  'vocab_size': 50,
}


def tensors():
  """Random weights of a checkpoint, and of a layer that drafts."""
  config = hy3.config(FIELDS, 'config.json')
  shapes = architecture.array_shapes(config)
  rng, found = np.random.default_rng(0), {}
  for rule in hy3.rules(config):
    values = np.empty(shapes[rule.leaf])[rule.box]
    shape = values.T.shape if rule.convert is names.transpose else values.shape
    values = rng.normal(0, 1 / math.sqrt(shape[-1]), shape)
    if rule.leaf.endswith('norm'):
      values = 1 + 0.1 * rng.normal(size=shape)
    found[rule.source] = values.astype(np.float32)
  found['model.layers.2.eh_proj.weight'] = np.zeros((32, 64), np.float32)
  found['model.layers.2.mlp.expert_bias'] = np.zeros(6, np.float32)
  return config, found


def norm(x, gain):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * gain


def mlp(x, w, stem):
  gate, up, down = (
    w[f'{stem}{name}_proj.weight'].T for name in ('gate', 'up', 'down')
  )
  z = x @ gate
  return (z / (1 + np.exp(-z)) * (x @ up)) @ down


def attention(x, w, stem, config):
  length = len(x)
  q, k, v = (
    (x @ w[f'{stem}{name}_proj.weight'].T).reshape(length, -1, 8)
    for name in 'qkv'
  )
  q, k = (
    norm(part, w[f'{stem}{name}_norm.weight'])
    for name, part in (('q', q), ('k', k))
  )
  angle = np.arange(length)[:, None, None] * rope.inverse_frequencies(
    config.rope, 8
  )

  def turn(part):
    a, b = part[..., :4], part[..., 4:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

  out = np.zeros_like(q)
  for head in range(4):
    scores = turn(q)[:, head] @ turn(k)[:, head // 2].T / math.sqrt(8)
    scores = np.where(np.tril(np.ones(scores.shape)) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out[:, head] = weights @ v[:, head // 2]
  return out.reshape(length, -1) @ w[f'{stem}o_proj.weight'].T


def experts(x, w, stem):
  scores = 1 / (1 + np.exp(-x @ w[stem + 'router.gate.weight'].T))
  out = mlp(x, w, stem + 'shared_mlp.')
  for row, score in enumerate(scores):
    best = np.argsort(-(score + w[stem + 'expert_bias']))[:2]
    for i in best:
      weight = 2.826 * score[i] / score[best].sum()
      out[row] += weight * mlp(x[row], w, f'{stem}experts.{i}.')
  return out


def test_logits_follow_the_formulas():
  config, w = tensors()
  source = names.Held('here', w)
  arrays = tables.load(
    config, hy3.rules(config), source, ignored=hy3.ignored(config, source)
  )
  target = transformer.Transformer(config, arrays)
  ids = np.random.default_rng(1).integers(0, 50, (1, 9))
  logits, _, _ = goldens.run(target, ids)
  x = w['model.embed_tokens.weight'][ids[0]].astype(np.float64)
  for i in range(2):
    stem = f'model.layers.{i}.'
    normed = norm(x, w[stem + 'input_layernorm.weight'])
    x = x + attention(normed, w, stem + 'self_attn.', config)
    normed = norm(x, w[stem + 'post_attention_layernorm.weight'])
    x = x + (experts if i else mlp)(normed, w, stem + 'mlp.')
  want = norm(x, w['model.norm.weight']) @ w['lm_head.weight'].T
  np.testing.assert_allclose(logits[0], want, atol=1e-4)


def test_the_preset_has_as_many_parameters_as_its_name_says():
  shapes = architecture.array_shapes(families.presets()['hy3_295b_a21b'])
  assert round(sum(map(math.prod, shapes.values())) / 1e9) == 295


@pytest.mark.parametrize(
  'change, named',
  [
    ({'made_up': 1}, 'made_up'),
    ({'moe_router_use_sigmoid': False}, 'moe_router_use_sigmoid'),
    ({'qk_norm': False}, 'qk_norm'),
    ({'expert_hidden_dim': 13}, 'expert_hidden_dim'),
    ({'mlp_layer_types': ['sparse', 'sparse']}, 'mlp_layer_types'),
  ],
)
def test_what_is_not_computed_is_refused_by_name(change, named):
  with pytest.raises(errors.UserError, match=named):
    hy3.config(FIELDS | change, 'config.json')
