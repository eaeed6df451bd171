# SPDX-License-Identifier: MIT
"""Sliding windows: Hugging Face's four fields, and one list.

layer_types, sliding_window, use_sliding_window, max_window_layers
layer_windows    per layer, positions seen back (itself included), or null
"""

from typing import Any

from jspec import errors

_FULL, _SLIDING = 'full_attention', 'sliding_attention'


def take(left: dict[str, Any], num_layers: int) -> list[int | None] | None:
  """Takes the fields of sliding windows: positions seen back, per layer.

  Returns:
    None where every layer sees all, else one entry a layer.

  Raises:
    UserError: the fields are of another depth, incomplete or contradicting.
  """
  kinds = left.pop('layer_types', None)
  width = left.pop('sliding_window', None)
  is_used = left.pop('use_sliding_window', None)
  first = left.pop('max_window_layers', None)
  if kinds is None:
    if width is None or is_used is False:
      return None
    if is_used is None or first is None:
      raise errors.UserError(
        f'sliding_window={width} without layer_types; say which layers have it:'
        ' --set \'layer_types=["full_attention", ...]\''
      )
    kinds = [_SLIDING if i >= first else _FULL for i in range(num_layers)]
  if len(kinds) != num_layers:
    raise errors.UserError(
      f'layer_types has {len(kinds)} entries, num_hidden_layers is'
      f' {num_layers}; one of them is of another checkpoint'
    )
  odd = sorted(set(kinds) - {_FULL, _SLIDING})
  if odd:
    raise errors.UserError(f'layer_types {odd} are not supported')
  if _SLIDING not in kinds:
    return None
  if type(width) is not int or width < 1 or is_used is False:
    raise errors.UserError(
      f'layer_types has {_SLIDING}, but sliding_window={width!r} and'
      f' use_sliding_window={is_used}; give --set sliding_window=2048'
    )
  return [width if kind == _SLIDING else None for kind in kinds]


def to_fields(layer_windows: list[int | None] | None, num_layers: int) -> dict:
  """The same fields from the list; inverse of `take`.

  Raises:
    UserError: windows of several widths.
  """
  if layer_windows is None:
    return {'layer_types': [_FULL] * num_layers, 'sliding_window': None}
  widths = sorted({w for w in layer_windows if w is not None})
  if len(widths) > 1:
    raise errors.UserError(
      f'layer_windows has widths {widths}; this layout can say only one'
    )
  kinds = [_FULL if w is None else _SLIDING for w in layer_windows]
  return {
    'layer_types': kinds,
    'sliding_window': widths[0] if widths else None,
    'use_sliding_window': bool(widths),
  }
