# SPDX-License-Identifier: MIT
"""Who takes part, and with which settings.

All see the same documents in the same order for the same number of steps, draft
chains of the same depth (trees where the method is one), and have about the
same number of trained parameters: widths are chosen so. Losses are what each
method's paper or code trains with, but for the ablations, which are named.
"""

import dataclasses
from typing import Any

from jspec.drafters import block_config

# Draft tokens of a chain; a block of as many slots (`label_shift` 1).
DEPTH = 6
# What all heads score; the target scores everything.
VOCAB_SIZE = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One line of the table.

  Attributes:
    name: of the line and of the run's folder.
    build: builder, `module:attr`; '' if it is not trained.
    options: what the builder reads.
    spec: for what is not trained, the drafter as the command line has it.
    decode: options of the trained drafter in decoding.
    domains: documents it is trained on; None for all.
    note: what it is compared for.
  """

  name: str
  build: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  spec: str = ''
  decode: dict[str, Any] = dataclasses.field(default_factory=dict)
  domains: tuple[str, ...] | None = None
  note: str = ''


def taps(num_layers: int) -> dict[str, tuple[int, ...]]:
  """Target layers by use, all of them members of one store.

  Low, middle and high are the nearest of the block drafters' five.
  """
  five = block_config.choose_taps(num_layers, 5)
  return {'block': five, 'three': (five[0], five[2], five[4])}


def store_taps(num_layers: int) -> tuple[int, ...]:
  """What the shared store captures."""
  return (*taps(num_layers)['block'], num_layers - 1)


def entries(num_layers: int, mask_token_id: int) -> list[Entry]:
  """All lines, in the order of the table.

  Args:
    num_layers: of the target.
    mask_token_id: a token that no text uses.
  """
  layers = taps(num_layers)
  decay = {'ce': 1.0, 'weights': 'decay', 'decay_gamma': 3.0}
  dpace = {'ce': 1.0, 'weights': 'dpace'}

  def block(method, mix=decay, loss=None, **changes):
    options = {
      'taps': layers['block'],
      'mask_token_id': mask_token_id,
      'block_size': DEPTH,
      'label_shift': 1,
      'loss': {'num_anchors': 64, 'mix': mix, **(loss or {})},
      **changes,
    }
    return {'build': f'jspec.train.build:{method}', 'options': options}

  eagle3 = {'taps': layers['three'], 'num_draft_tokens': DEPTH}
  eagle3_loss = {'ttt_length': 4, 'num_anchors': 96}
  mtp = {
    'build': 'jspec.train.build_plain:mtp',
    'options': {
      'num_draft_tokens': DEPTH,
      'ff_width': 4096,
      'loss': {'ttt_length': 4, 'num_anchors': 96},
    },
  }
  correction = {'parts': {'correction_width': 576}}
  return [
    Entry(name='ngram', spec=f'ngram,num_draft_tokens={DEPTH}'),
    Entry(name='suffix', spec=f'suffix,num_draft_tokens={DEPTH}'),
    Entry(name='dflash', **block('dflash')),
    Entry(
      name='dflash_dpace',
      note='D-PACE instead of decay',
      **block('dflash', dpace),
    ),
    Entry(
      name='dflash2',
      **block(
        'dflash2',
        dpace,
        {'selector': 1.0},
        parts={'selector_rank': 32, 'selector_size': 16, 'conv_group': 16},
      ),
    ),
    Entry(name='dflare', **block('dflare')),
    Entry(name='dfly', **block('dfly', dpace, **correction)),
    Entry(
      name='dspark',
      **block(
        'dspark',
        {'ce': 0.1, 'l1': 0.9, 'confidence': 1.0, 'decay_gamma': 4.0},
        parts={
          'markov_rank': 32,
          'has_confidence': True,
          'confidence_sees_token': True,
        },
      ),
    ),
    Entry(
      name='eagle3',
      build='jspec.train.build_plain:eagle3',
      options={**eagle3, 'loss': eagle3_loss},
    ),
    Entry(
      name='eagle3_no_ttt',
      note='one step, true features only',
      build='jspec.train.build_plain:eagle3',
      options={**eagle3, 'loss': {**eagle3_loss, 'ttt_length': 1}},
    ),
    Entry(name='mtp', **mtp),
    Entry(
      name='d2sd',
      note='2 blocks drafted again',
      **{
        **block('dflash', parts={'num_cuts': 2}),
        'build': 'jspec.train.build_d2sd:d2sd',
      },
    ),
    Entry(
      name='specblock',
      note='a tree of two blocks',
      build='jspec.train.build_plain:specblock',
      options={
        'taps': layers['three'],
        'ff_width': 576,
        'loss': {'num_anchors': 64},
      },
      decode={'tree_size': 16},
    ),
    Entry(name='mtp_chat', domains=('chat',), **mtp),
    Entry(
      name='dfly_code_math',
      domains=('code', 'math'),
      **block('dfly', dpace, **correction),
    ),
  ]
