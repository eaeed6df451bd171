# SPDX-License-Identifier: MIT
"""What an EAGLE-3 checkpoint says, and what it calls its tensors.

Tensors are [out, in] on disk and have the names of the published heads, as
AngelSpec writes them; the layer is `midlayer`. Of a reduced vocabulary the
folder holds absolute ids (`drafters.vocab`), whatever it was imported from.
"""

import dataclasses

from jspec import tree
from jspec.checkpoints import names
from jspec.drafters import eagle3_layer, method, options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What an EAGLE-3 checkpoint must say.

  Attributes:
    taps: 0-based target layers whose outputs make the feature.
    draft_vocab_size: columns of the head, None for the target's vocabulary.
    norm_output: whether the state fed back is normed, as the head sees it.
    fc_norm: whether each tap has a norm before they are fused.
    num_draft_tokens: drafts of a chain, or the depth of a tree.
    tree_size: draft tokens of a tree; 0 drafts a chain.
    tree_width: nodes of a level that EAGLE-2's tree is grown on, and candidates
      of each.
    support: Q, tokens in the law of a sampled draft.
  """

  width: int
  ff_width: int
  num_layers: int = 1
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float
  taps: tuple[int, ...]
  target_width: int
  target_num_layers: int
  vocab_size: int
  draft_vocab_size: int | None
  norm_output: bool
  fc_norm: bool
  num_draft_tokens: int
  tree_size: int = 0
  tree_width: int = 10
  support: int = 32

  def __post_init__(self):
    self._need('num_layers', self.num_layers == 1, '1: the layer is recurrent')
    options.check_shared(self)
    most = tree.MAX_NODES - 1
    for name in ('num_draft_tokens', 'tree_width'):
      self._need(name, 1 <= getattr(self, name) <= most, f'1..{most}')

  def _need(self, name, holds, expected):
    options.need(holds, name, getattr(self, name), expected)

  @property
  def layer(self) -> eagle3_layer.LayerConfig:
    """The shapes of the layer."""
    fields = dataclasses.fields(eagle3_layer.LayerConfig)
    return eagle3_layer.LayerConfig(
      **{field.name: getattr(self, field.name) for field in fields}
    )


# Fields that say how to decode and that any checkpoint may be given anew.
OPTIONS = ('num_draft_tokens', 'tree_size', 'tree_width', 'support')


# Field of `Config` -> key in config.json.
CONFIG_KEYS = method.KEYS | {
  'num_layers': 'num_hidden_layers',
  'norm_output': 'norm_output',
  'fc_norm': 'fc_norm',
  'tree_size': 'tree_size',
  'tree_width': 'tree_width',
  'support': 'support',
}


def rules(config: Config) -> list[names.Rule]:
  """The rename table, from native tensor names to leaves of the drafter."""
  turn, everything = names.transpose, names.ALL
  kv_width = config.num_kv_heads * config.head_width
  first, second = slice(0, kv_width), slice(kv_width, 2 * kv_width)
  gate = slice(0, config.ff_width)
  up = slice(config.ff_width, 2 * config.ff_width)
  layer = 'midlayer.'
  attention, mlp = layer + 'self_attn.', layer + 'mlp.'
  found = [
    names.Rule('fc.weight', 'fc', (), turn),
    names.Rule(layer + 'input_layernorm.weight', 'input_norm'),
    names.Rule(layer + 'hidden_norm.weight', 'hidden_norm'),
    names.Rule(attention + 'q_proj.weight', 'q', (), turn),
    names.Rule(attention + 'k_proj.weight', 'kv', (everything, first), turn),
    names.Rule(attention + 'v_proj.weight', 'kv', (everything, second), turn),
    names.Rule(attention + 'o_proj.weight', 'out', (), turn),
    names.Rule(layer + 'post_attention_layernorm.weight', 'mlp_norm'),
    names.Rule(mlp + 'gate_proj.weight', 'gate_up', (everything, gate), turn),
    names.Rule(mlp + 'up_proj.weight', 'gate_up', (everything, up), turn),
    names.Rule(mlp + 'down_proj.weight', 'down', (), turn),
    names.Rule('norm.weight', 'norm'),
    names.Rule('lm_head.weight', 'head', (), turn),
  ]
  if config.fc_norm:
    found += [
      names.Rule(f'fc_norm.{i}.weight', 'fc_norm', (i,))
      for i in range(len(config.taps))
    ]
  return found
