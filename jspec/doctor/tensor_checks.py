# SPDX-License-Identifier: MIT
"""What the numbers themselves show: broken, untrained or ill-mapped tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec.doctor import report

MAP = 'draft_token_ids'
# Parts that start as zero, so that a drafter with them begins as one without.
_START_AT_ZERO = (
  'hidden_correction.down_proj',
  'layer_gate',
  'layer_fusion_weights',
  'markov_head.markov_w2',
  'selector.',
  '_conv.',
  '.bias',
)
# More findings of a kind than this are counted instead of listed.
_MAX_LISTED = 4


def check(
  tensors: Mapping[str, np.ndarray],
  config: Mapping[str, Any],
  said: Mapping[str, Any],
) -> list[report.Finding]:
  """Findings about tensors.

  Args:
    tensors: by name, native where they could be converted.
    config: native, or what is known of it.
    said: config.json, flat.
  """
  floats = {
    name: values
    for name, values in tensors.items()
    if values.dtype.kind not in 'biu'
  }
  return [
    *_dtypes(floats, said),
    *_broken(floats),
    *_zero(floats),
    *_untrained(floats),
    *_map(tensors.get(MAP), config),
  ]


def dtypes(tensors: Mapping[str, np.ndarray]) -> str:
  """The dtypes of the numbers, with how many numbers have each."""
  sizes: dict[str, int] = {}
  for values in tensors.values():
    if values.dtype.kind not in 'biu':
      name = str(values.dtype)
      sizes[name] = sizes.get(name, 0) + values.size
  return ', '.join(f'{size:,} in {name}' for name, size in sizes.items())


def _dtypes(floats, said):
  kinds = {str(values.dtype) for values in floats.values()}
  stated = said.get('torch_dtype') or said.get('dtype')
  if len(kinds) > 1:
    odd = sorted(kinds)
    yield report.doubt(
      f'tensors are in {" and ".join(odd)}: a program that takes one dtype may'
      ' leave some out without a word; here all are read'
    )
  elif stated and kinds and stated not in kinds:
    yield report.doubt(
      f'config.json says {stated}, the tensors are in {kinds.pop()}; a program'
      ' that believes the config rounds them again'
    )


def _broken(floats):
  names = [
    name
    for name, values in floats.items()
    if not np.isfinite(values.astype(np.float32)).all()
  ]
  if names:
    yield report.wrong(
      f'NaN or infinite numbers in {_listed(names)}; take an earlier checkpoint'
    )


def _zero(floats):
  zero = [name for name, values in floats.items() if not np.any(values)]
  started = [n for n in zero if any(part in n for part in _START_AT_ZERO)]
  rest = sorted(set(zero) - set(started))
  if rest:
    yield report.wrong(
      f'all numbers are zero in {_listed(rest)}: lost in a conversion, or never'
      ' written'
    )
  weights = [name for name in started if not name.endswith('.bias')]
  if weights:
    yield report.doubt(
      f'all numbers are zero in {_listed(weights)}, as before training: that'
      ' part does nothing'
    )


def _untrained(floats):
  norms = {n: v for n, v in floats.items() if 'norm' in n and v.ndim == 1}
  if norms and all(np.all(values == 1) for values in norms.values()):
    yield report.doubt(
      f'all {len(norms)} norm gains are exactly 1, as before training: is it'
      ' the trained checkpoint?'
    )


def _map(ids, config):
  size, vocab_size = config.get('draft_vocab_size'), config.get('vocab_size')
  if ids is None or vocab_size is None:
    return
  if ids.shape != (size,):
    return  # The shapes say so.
  if ids.min() < 0 or ids.max() >= vocab_size:
    yield report.wrong(
      f'{MAP} reaches from {ids.min()} to {ids.max()}, the vocabulary from 0 to'
      f' {vocab_size - 1}: offsets read as ids, or ids as offsets?'
    )
  elif np.any(np.diff(ids) <= 0):
    num = len(np.unique(ids))
    yield report.wrong(
      f'{MAP} must ascend; its {size} entries name {num} different tokens:'
      ' offsets read as ids, or ids as offsets?'
    )
  elif np.array_equal(ids, np.arange(size)):
    yield report.doubt(
      f'{MAP} is 0 to {size - 1}: a default rather than the most frequent'
      ' tokens; all others can never be drafted'
    )


def _listed(names):
  more = len(names) - _MAX_LISTED
  shown = ', '.join(sorted(names)[:_MAX_LISTED])
  return shown + (f' and {more} more' if more > 0 else '')
