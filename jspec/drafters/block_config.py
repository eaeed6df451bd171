# SPDX-License-Identifier: MIT
"""What a checkpoint of a block drafter must say.

One config serves the DFlash family, because its members are one backbone with
parts switched on:

  method   context of a layer                 K/V of it   added to the head
  dflash   norm(W [h_1; ..; h_C])             shared      -
  dflash2  the same                           shared      selector; convolutions
  dflare   norm(sum_c a_lc h_c)               its own     -
  dfly     norm(W [h_1; ..; h_C] + sum ..)    shared      hidden correction
  dspark   as dflash                          shared      Markov; confidence
  d2sd     as dflash                          shared      - (drafts twice)

Which token a slot predicts differs between published checkpoints, so it is a
field (`label_shift`):

  slots        anchor  MASK  MASK  MASK      at positions a, a+1, a+2, a+3
  label_shift 0   -     a+1   a+2   a+3      block_size - 1 drafts
  label_shift 1  a+1    a+2   a+3   a+4      block_size drafts
"""

import dataclasses

from jspec import errors
from jspec.drafters import block, options

FUSIONS = ('concat', 'gated', 'layer_mix', 'concat_layer_mix')
MARKOV_KINDS = ('vanilla', 'gated', 'rnn')

# Fields that say how to decode and that any checkpoint may be given anew.
OPTIONS = (
  'num_draft_tokens',
  'tree_size',
  'support',
  'min_expected_accepted',
  'beam_width',
  'num_cuts',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDrafterConfig:
  """Shapes, conventions and parts of a block drafter.

  Attributes:
    method: who it is, for the checkpoint.
    taps: 0-based target layers whose outputs make the context.
    mask_token_id: a row of the target's embedding that no text uses.
    block_size: slots fed, anchor included.
    num_draft_tokens: drafts of a proposal, or the depth of its tree.
    label_shift: 0 or 1, see above.
    draft_vocab_size: columns of the reduced head, None for the target's own.
    fusion: how taps become context, one of FUSIONS.
    gate_temperature: of the one softmax over taps ('gated').
    has_context_kv: context rows have key and value weights of their own.
    layer_windows: per layer, positions a slot sees back (itself included), or
      None for all; None: no layer has a window.
    correction_width: of the hidden correction; 0 for none.
    markov_rank: of the Markov head; 0 for none.
    markov_kind: one of MARKOV_KINDS.
    has_confidence: a head says how likely each draft is accepted.
    confidence_sees_token: that head also sees the token before.
    selector_rank: of the candidate-path selector; 0 for none.
    selector_size: candidates a slot offers the selector.
    conv_group: channels that share a coefficient of the convolutions; 0: none.
    num_cuts: blocks that are drafted again (d2sd); 0 for all others.
    shared: one model drafts them both times (d2sd).
    support: Q, tokens in the law of a sampled draft.
    min_expected_accepted: a proposal that expects fewer accepted drafts (the
      sum of its survival probabilities) is withdrawn, since scoring the anchor
      alone is cheaper; 0 always drafts. It looks at no drawn token, so it is
      lossless with sampled drafts too (non-anticipation).
    tree_size: draft tokens of a tree; 0 drafts a chain.
    beam_width: nodes of a level that a tree goes on from, where slots depend on
      the token before.
  """

  method: str
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
  mask_token_id: int
  block_size: int
  num_draft_tokens: int
  label_shift: int
  draft_vocab_size: int | None
  fusion: str = 'concat'
  gate_temperature: float = 1.0
  has_context_kv: bool = False
  layer_windows: tuple[int | None, ...] | None = None
  correction_width: int = 0
  markov_rank: int = 0
  markov_kind: str = 'vanilla'
  has_confidence: bool = False
  confidence_sees_token: bool = False
  selector_rank: int = 0
  selector_size: int = 16
  conv_group: int = 0
  num_cuts: int = 0
  shared: bool = True
  support: int = 32
  min_expected_accepted: float = 0.0
  tree_size: int = 0
  beam_width: int = 8

  def __post_init__(self):
    need = options.need
    need(4 <= self.block_size <= 32, 'block_size', self.block_size, '4..32')
    need(self.label_shift in (0, 1), 'label_shift', self.label_shift, '0 or 1')
    need(
      1 <= self.num_draft_tokens <= self.num_labels,
      'num_draft_tokens',
      self.num_draft_tokens,
      f'1..{self.num_labels} (block_size - 1 + label_shift)',
    )
    options.check_shared(self)
    need(self.beam_width >= 1, 'beam_width', self.beam_width, 'at least 1')
    need(
      0 <= self.mask_token_id < self.vocab_size,
      'mask_token_id',
      self.mask_token_id,
      f'0..{self.vocab_size - 1}',
    )
    self._check_parts()

  def _check_parts(self):
    need = options.need
    need(self.fusion in FUSIONS, 'fusion', self.fusion, f'one of {FUSIONS}')
    need(
      'mix' not in self.fusion or self.target_width == self.width,
      'target_width',
      self.target_width,
      f'the width ({self.width}), since taps are added up as they are',
    )
    need(
      self.fusion != 'gated' or self.target_width == self.width,
      'target_width',
      self.target_width,
      f'the width ({self.width}), since taps are added up as they are',
    )
    need(
      self.gate_temperature > 0,
      'gate_temperature',
      self.gate_temperature,
      'a number above 0',
    )
    windows = self.layer_windows
    need(
      windows is None
      or (
        len(windows) == self.num_layers
        and all(w is None or w >= self.block_size for w in windows)
      ),
      'layer_windows',
      windows,
      f'{self.num_layers} entries of None or at least {self.block_size}'
      ' (block_size): a block is never cut',
    )
    need(
      self.markov_kind in MARKOV_KINDS,
      'markov_kind',
      self.markov_kind,
      f'one of {MARKOV_KINDS}',
    )
    heads = (self.correction_width, self.markov_rank, self.selector_rank)
    need(
      min(heads) >= 0 and sum(size > 0 for size in heads) <= 1,
      'correction_width, markov_rank, selector_rank',
      heads,
      'at most one above 0',
    )
    need(
      not self.confidence_sees_token or self.markov_rank > 0,
      'markov_rank',
      self.markov_rank,
      'above 0, whose embedding the confidence head sees',
    )
    need(
      self.conv_group == 0 or self.width % self.conv_group == 0,
      'conv_group',
      self.conv_group,
      f'a divisor of the width ({self.width})',
    )
    need(
      0 <= self.num_cuts <= self.num_draft_tokens,
      'num_cuts',
      self.num_cuts,
      f'0..{self.num_draft_tokens} (num_draft_tokens)',
    )

  @property
  def num_labels(self) -> int:
    """Slots that predict a token: the most drafts a block can give."""
    return self.block_size - 1 + self.label_shift

  @property
  def block(self) -> block.BlockConfig:
    """The shapes of the backbone."""
    names = [field.name for field in dataclasses.fields(block.BlockConfig)]
    return block.BlockConfig(**{name: getattr(self, name) for name in names})


def choose_taps(num_layers: int, count: int) -> tuple[int, ...]:
  """`count` layers spread from the second to the third last (36, 5 -> 1 .. 33).

  Raises:
    UserError: the target has too few layers for that many distinct ones.
  """
  if count == 1:
    return (num_layers // 2,)
  step = (num_layers - 4) / (count - 1)
  taps = tuple(round(1 + i * step) for i in range(count))
  if list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] >= num_layers:
    raise errors.UserError(
      f'{count} taps do not fit a target of {num_layers} layers: give `taps`'
      ' (distinct 0-based layers) or ask for fewer'
    )
  return taps
