# SPDX-License-Identifier: MIT
"""What an MTP checkpoint says: fields, keys in config.json, tensor names.

Tensors are named as AngelSpec's native folders name them, [out, in] but for the
fused experts ([E, in, out]); embedding and LM head are the target's and are not
among them.
"""

import dataclasses

from jspec import tree
from jspec.checkpoints import names
from jspec.drafters import borrowed, method, mtp_layer, options
from jspec.nn import moe

ALL = names.ALL
# When the embedding behind a document's first token is replaced by zeros.
ZERO_FIRST = ('never', 'first_step', 'every_step')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What an MTP checkpoint must say.

  Attributes:
    ff_width: of the dense MLP (unused with experts).
    taps: the target's last layer, alone.
    target_width: another width than `width` adds `hidden_proj`.
    num_draft_tokens: drafts of a chain, or the depth of a tree.
    draft_vocab_size: columns of the reduced head, None for the target's own.
    qk_norm: whether queries and keys are normed.
    embedding_first: whether eh_proj takes [embedding, state] or the reverse.
    input_postnorm: the first state went through the target's final norm.
    feedback_postnorm: later states went through `final_layernorm`.
    zero_first_embedding: 'first_step' zeroes the embedding where a row at
      position 0 is fed, as servers do; 'every_step' keeps it zero at the
      simulated steps of that row too (the reference's training, which no
      server repeats; decoding zeroes the first step); 'never' zeroes nothing.
    num_experts: E of a mixture of experts; 0 for a dense MLP.
    experts_per_token: of the mixture.
    expert_ff_width: F of one expert.
    num_shared_experts: as one, so many times as wide.
    sigmoid_router: else softmax.
    expert_bias: whether the choice of experts has a bias.
    renormalise: whether the weights of the chosen sum to 1.
    router_scale: factor on them.
    support: Q, tokens in the law of a sampled draft.
    tree_size: draft tokens of a tree; 0 drafts a chain.
    tree_width: nodes of a level that the tree's search runs on.
  """

  width: int
  ff_width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float
  taps: tuple[int, ...]
  target_width: int
  target_num_layers: int
  vocab_size: int
  num_draft_tokens: int
  draft_vocab_size: int | None
  qk_norm: bool
  embedding_first: bool
  input_postnorm: bool
  feedback_postnorm: bool
  zero_first_embedding: str
  num_experts: int = 0
  experts_per_token: int = 0
  expert_ff_width: int = 0
  num_shared_experts: int = 0
  sigmoid_router: bool = True
  expert_bias: bool = True
  renormalise: bool = True
  router_scale: float = 1.0
  support: int = 32
  tree_size: int = 0
  tree_width: int = 4

  def __post_init__(self):
    need = options.need
    last = self.target_num_layers - 1
    need(self.taps == (last,), 'taps', self.taps, f'({last},), the last layer')
    most = tree.MAX_NODES - 1
    options.check_shared(self)
    for name in ('num_draft_tokens', 'tree_width'):
      value = getattr(self, name)
      need(1 <= value <= most, name, value, f'1..{most}')
    need(
      self.zero_first_embedding in ZERO_FIRST,
      'zero_first_embedding',
      repr(self.zero_first_embedding),
      ', '.join(ZERO_FIRST),
    )
    if self.num_experts:
      width = self.expert_ff_width
      need(width > 0, 'expert_ff_width', width, 'a width')
    else:
      need(self.ff_width > 0, 'ff_width', self.ff_width, 'a width')
    _ = self.layer  # Refuses what the router does.

  @property
  def layer(self) -> mtp_layer.LayerConfig:
    """The shapes of the layer."""
    experts = None
    if self.num_experts:
      experts = moe.MoeConfig(
        width=self.width,
        num_experts=self.num_experts,
        top_k=self.experts_per_token,
        ff_width=self.expert_ff_width,
        shared_ff_width=self.num_shared_experts * self.expert_ff_width,
        score='sigmoid' if self.sigmoid_router else 'softmax',
        has_bias=self.expert_bias,
        renormalise=self.renormalise,
        scale=self.router_scale,
      )
    fields = {field.name for field in dataclasses.fields(mtp_layer.LayerConfig)}
    same = {name: getattr(self, name) for name in fields - {'experts'}}
    return mtp_layer.LayerConfig(**same, experts=experts)


# Fields that say how to decode and that any checkpoint may be given anew.
OPTIONS = ('num_draft_tokens', 'tree_size', 'tree_width', 'support')


# Field of Config -> key in config.json.
CONFIG_KEYS = method.KEYS | {
  'qk_norm': 'qk_norm',
  'embedding_first': 'embedding_first',
  'input_postnorm': 'mtp_draft_input_postnorm',
  'feedback_postnorm': 'feedback_postnorm',
  'zero_first_embedding': 'zero_first_embedding',
  'num_experts': 'num_experts',
  'experts_per_token': 'num_experts_per_tok',
  'expert_ff_width': 'moe_intermediate_size',
  'num_shared_experts': 'num_shared_experts',
  'sigmoid_router': 'moe_router_use_sigmoid',
  'expert_bias': 'moe_router_enable_expert_bias',
  'renormalise': 'route_norm',
  'router_scale': 'router_scaling_factor',
  'support': 'support',
  'tree_size': 'tree_size',
  'tree_width': 'tree_width',
}


def array_shapes(config: Config) -> dict[str, tuple[int, ...]]:
  """Names and shapes of all leaves."""
  c = config
  shapes = {
    'enorm': (c.width,),
    'hnorm': (c.width,),
    'eh_proj': (2 * c.width, c.width),
    'final_layernorm': (c.width,),
  }
  if c.target_width != c.width:
    shapes['hidden_proj'] = (c.target_width, c.width)
  return shapes | mtp_layer.array_shapes(c.layer)


def rules(config: Config) -> list[names.Rule]:
  """Which tensor fills which part of which leaf."""
  c = config
  table = [
    _norm('enorm', 'enorm'),
    _norm('hnorm', 'hnorm'),
    _norm('final_layernorm', 'final_layernorm'),
    _matrix('eh_proj', 'eh_proj'),
    _norm('midlayer.input_layernorm', 'attn_norm'),
    _norm('midlayer.post_attention_layernorm', 'mlp_norm'),
  ]
  if c.target_width != c.width:
    table.append(_matrix('hidden_proj', 'hidden_proj'))
  attention = 'midlayer.self_attn'
  counts = (c.num_heads, c.num_kv_heads, c.num_kv_heads)
  table += _side_by_side(
    [f'{attention}.{name}_proj' for name in 'qkv'],
    'qkv',
    [count * c.head_width for count in counts],
  )
  table.append(_matrix(f'{attention}.o_proj', 'out'))
  if c.qk_norm:
    table += [_norm(f'{attention}.{x}_norm', f'{x}_norm') for x in 'qk']
  mlp = 'midlayer.mlp'
  if not c.num_experts:
    return table + _gated(mlp, 'gate_up', 'down', c.ff_width)
  width = c.expert_ff_width
  gate, up = slice(0, width), slice(width, 2 * width)
  table += [
    _matrix(f'{mlp}.router.gate', 'router'),
    names.Rule(f'{mlp}.experts_gate_proj', 'experts_gate_up', (ALL, ALL, gate)),
    names.Rule(f'{mlp}.experts_up_proj', 'experts_gate_up', (ALL, ALL, up)),
    names.Rule(f'{mlp}.experts_down_proj', 'experts_down'),
  ]
  if c.expert_bias:
    # Rounded, it would choose other experts.
    table.append(
      names.Rule(f'{mlp}.expert_bias', 'expert_bias', is_rounded=False)
    )
  if c.num_shared_experts:
    table += _gated(
      f'{mlp}.shared_mlp',
      'shared_gate_up',
      'shared_down',
      c.num_shared_experts * width,
    )
  return table


def check_borrowed(config: Config, arrays: borrowed.Borrowed) -> None:
  """Refuses arrays of another target.

  Raises:
    UserError: names the array and both shapes.
  """
  size = config.draft_vocab_size
  expected = {
    'embedding': (config.vocab_size, config.width),
    'head': (config.width, size or config.vocab_size),
    'draft_token_ids': size and (size,),
    'final_norm': (config.target_width,),
  }
  if config.width != config.target_width:
    expected['target_head'] = (config.target_width, config.vocab_size)
  borrowed.check(arrays, **expected)


def _norm(source, leaf):
  return names.Rule(f'{source}.weight', leaf)


def _matrix(source, leaf, box=()):
  return names.Rule(f'{source}.weight', leaf, box, names.transpose)


def _side_by_side(sources, leaf, widths):
  """Matrices that share one leaf, column by column."""
  table, start = [], 0
  for source, width in zip(sources, widths, strict=True):
    table.append(_matrix(source, leaf, (ALL, slice(start, start + width))))
    start += width
  return table


def _gated(source, gate_up, down, width):
  sources = [f'{source}.{name}_proj' for name in ('gate', 'up')]
  return [
    *_side_by_side(sources, gate_up, [width, width]),
    _matrix(f'{source}.down_proj', down),
  ]
