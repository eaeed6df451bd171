# SPDX-License-Identifier: MIT
"""What a SpecBlock checkpoint and its training must say, and tensor names.

The names of the tensors are those of the published code (SpecBlock, arXiv
2605.07243); the embedding is the target's and is not stored.
"""

import dataclasses

from jspec import errors
from jspec.checkpoints import names
from jspec.drafters import method, options, rank_head
from jspec.nn import rope
from jspec.trees import multi_slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Shapes, and how to decode; nothing of the first has a default.

  Attributes:
    taps: 0-based target layers whose outputs condition the first block.
    target_width: of the target's states and embedding.
    block_size: slots of a position, all of them fed the same token.
    num_draft_tokens: drafts of a chain, at most one a slot.
    label_shift: 1, because slot k predicts k + 1 tokens behind the token fed.
      There is no other convention; it is a field so that checkpoints say it.
    draft_vocab_size: columns of the drafter's own head; None for the target's
      whole vocabulary.
    support: Q, tokens in the law of a sampled draft.
    tree_size: draft tokens of a tree; 0 drafts a chain.
    tree_blocks: 1 or 2, the runs a tree is grown from.
    tree_starts: most starts of the second block.
    first_width: most children of the anchor.
    class_widths: most children behind a slot, by predicted rank class; 0 for
      the last makes blocks give up (`trees.multi_slot`).
  """

  width: int
  ff_width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float
  taps: tuple[int, ...]
  target_width: int
  target_num_layers: int
  vocab_size: int
  block_size: int
  num_draft_tokens: int
  label_shift: int
  draft_vocab_size: int | None
  support: int = 32
  tree_size: int = 0
  tree_blocks: int = 2
  tree_starts: int = 10
  first_width: int = 10
  class_widths: tuple[int, ...] = (2, 4, 10, 0)

  def __post_init__(self):
    options.check_shared(self)
    least = rank_head.NUM_LOGITS
    self._need('num_layers', self.num_layers >= 1, 'at least 1')
    self._need('block_size', 2 <= self.block_size <= 32, '2..32')
    self._need(
      'num_draft_tokens',
      1 <= self.num_draft_tokens <= self.block_size,
      f'1..{self.block_size} (block_size)',
    )
    self._need('label_shift', self.label_shift == 1, '1')
    self._need('head_width', self.head_width % 2 == 0, 'an even number')
    self._need(
      'draft_vocab_size',
      least <= (self.draft_vocab_size or self.vocab_size) <= self.vocab_size,
      f'{least} (what the rank head looks at) to {self.vocab_size}',
    )
    self._need('tree_blocks', self.tree_blocks in (1, 2), '1 or 2')
    self._need(
      'class_widths',
      len(self.class_widths) == rank_head.NUM_CLASSES
      and all(0 <= width <= least for width in self.class_widths),
      f'{rank_head.NUM_CLASSES} widths from 0 to {least}',
    )
    self._need('first_width', 1 <= self.first_width <= least, f'1 to {least}')
    self._need('tree_starts', 1 <= self.tree_starts <= 32, '1 to 32')

  def _need(self, name, holds, expected):
    options.need(holds, name, getattr(self, name), expected)

  @property
  def num_columns(self) -> int:
    """Vd, columns of the head."""
    return self.draft_vocab_size or self.vocab_size

  @property
  def rope(self) -> rope.RopeConfig:
    """Plain rotary embedding."""
    return rope.RopeConfig(base=self.rope_base)

  @property
  def widths(self) -> multi_slot.Widths:
    """How a tree branches."""
    return multi_slot.Widths(
      first=self.first_width,
      by_class=self.class_widths,
      starts=self.tree_starts,
    )


# Fields that say how to decode and that any checkpoint may be given anew.
OPTIONS = (
  'num_draft_tokens',
  'support',
  'tree_size',
  'tree_blocks',
  'tree_starts',
  'first_width',
  'class_widths',
)

# Field of `Config` -> key in config.json.
CONFIG_KEYS = method.KEYS | {
  'num_layers': 'num_hidden_layers',
  'block_size': 'block_size',
  'label_shift': 'label_shift',
  'support': 'support',
  'tree_size': 'tree_size',
  'tree_blocks': 'tree_blocks',
  'tree_starts': 'tree_starts',
  'first_width': 'first_width',
  'class_widths': 'class_widths',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """How rows are drawn and weighted in training.

  Attributes:
    num_anchors: rows drawn from every sequence, whose slots are scored and run
      further; 0 takes all. The first block always runs on all of them, because
      they see each other.
    num_blocks: blocks trained, each behind the one before.
    slot_decay: weight of slot k is slot_decay ** k.
    rank_weight: of the rank head's loss.
    labels: 'teacher': cross-entropy with the target's law, right is its argmax;
      'text': cross-entropy with the token that follows, right is that token.
      Where the text is the target's greedy answer they differ in softness only.
    cross_rows: later blocks also see the same block of earlier rows, as the
      published training code has it and decoding cannot. Wants all rows.
    chunk: rows of a sequence whose logits (for all slots) are held at once.
  """

  num_anchors: int = 0
  num_blocks: int = 3
  slot_decay: float = 0.8
  rank_weight: float = 1.0
  labels: str = 'teacher'
  cross_rows: bool = False
  chunk: int = 16

  def __post_init__(self):
    for name, holds, expected in (
      ('num_anchors', self.num_anchors >= 0, '0 (all rows) or more'),
      ('num_blocks', self.num_blocks >= 1, 'at least 1'),
      ('slot_decay', 0 < self.slot_decay <= 1, 'above 0, at most 1'),
      ('rank_weight', self.rank_weight >= 0, 'at least 0'),
      ('labels', self.labels in ('teacher', 'text'), 'teacher or text'),
      ('chunk', self.chunk >= 1, 'at least 1'),
      (
        'cross_rows',
        not (self.cross_rows and self.num_anchors),
        f'False with num_anchors={self.num_anchors}: it wants all rows (0)',
      ),
    ):
      options.need(holds, name, getattr(self, name), expected)


def choose_taps(num_layers: int) -> tuple[int, int, int]:
  """The published layers: the second, the middle and the fourth last.

  Raises:
    UserError: the target has too few layers.
  """
  taps = (1, num_layers // 2 - 1, num_layers - 4)
  if not taps[0] < taps[1] < taps[2]:
    raise errors.UserError(
      f'no low, middle and high layer in a target of {num_layers} layers: give'
      ' `taps` (distinct 0-based layers)'
    )
  return taps


def rules(config: Config) -> list[names.Rule]:
  """How a checkpoint's tensors fill the leaves."""
  table = [
    names.Rule(f'input_layer.{name}.weight', leaf, convert=convert)
    for name, leaf, convert in (
      ('condition_proj', 'condition_proj', names.transpose),
      ('condition_norm', 'condition_norm', names.identity),
      ('token_norm', 'token_norm', names.identity),
      ('position_queries', 'queries', names.identity),
      ('query_norm', 'query_norm', names.identity),
      ('fuse', 'fuse', names.transpose),
    )
  ]
  kv_width = config.num_kv_heads * config.head_width
  boxes = (
    ('self_attn.q_proj', 'q', ()),
    ('self_attn.k_proj', 'kv', (names.ALL, slice(0, kv_width))),
    ('self_attn.v_proj', 'kv', (names.ALL, slice(kv_width, 2 * kv_width))),
    ('self_attn.o_proj', 'out', ()),
    ('mlp.gate_proj', 'gate_up', (names.ALL, slice(0, config.ff_width))),
    (
      'mlp.up_proj',
      'gate_up',
      (names.ALL, slice(config.ff_width, 2 * config.ff_width)),
    ),
    ('mlp.down_proj', 'down', ()),
  )
  for i in range(config.num_layers):
    at = f'layers.{i}'
    table += [
      names.Rule(f'{at}.input_layernorm.weight', f'{at}.attn_norm'),
      names.Rule(f'{at}.post_attention_layernorm.weight', f'{at}.mlp_norm'),
    ]
    table += [
      names.Rule(f'{at}.{name}.weight', f'{at}.{leaf}', box, names.transpose)
      for name, leaf, box in boxes
    ]
    if i > 0:
      source = f'shift_proj.{i - 1}.weight'
      table.append(names.Rule(source, f'{at}.shift', (), names.transpose))
  return table + [
    names.Rule('norm.weight', 'final_norm'),
    names.Rule('lm_head.weight', 'head', (), names.transpose),
    names.Rule('rank_head.0.weight', 'rank_in', (), names.transpose),
    names.Rule('rank_head.2.weight', 'rank_out', (), names.transpose),
  ]
