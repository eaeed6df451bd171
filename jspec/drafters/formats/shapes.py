# SPDX-License-Identifier: MIT
"""What shape every tensor must have by the config; both are reported.

A table maps a tensor's name to its axes, each a label (the config keys whose
product it is) and a size, so a contradiction can be told by the key that is
wrong: published configs have carried another model's numbers.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec import errors

Axis = tuple[str, int]
Table = dict[str, tuple[Axis, ...]]
Tensors = dict[str, np.ndarray]

_LAYER = re.compile(r'(?:^|\.)layers\.(\d+)\.')
# More findings than this are counted instead of listed.
_MAX_LISTED = 8


def axis(config: Mapping[str, Any], *keys: str) -> Axis:
  """The axis whose size is the product of these keys."""
  return '*'.join(keys), math.prod(config[key] for key in keys)


def decoder_layer(
  config: Mapping[str, Any],
  at: str,
  *,
  has_qk_norm: bool,
  has_mlp: bool = True,
  inputs: int = 1,
) -> Table:
  """Tensors of a pre-norm decoder layer, [out, in].

  Args:
    config: hidden_size, intermediate_size, heads and head_dim.
    at: prefix of the names, 'layers.0.' or the like.
    has_qk_norm: queries and keys are normed by head.
    has_mlp: whether it is a dense SwiGLU.
    inputs: hidden vectors that queries, keys and values are made of.
  """
  width = axis(config, 'hidden_size')
  wide = (f'{inputs}*hidden_size', inputs * width[1]) if inputs > 1 else width
  queries = axis(config, 'num_attention_heads', 'head_dim')
  keys = axis(config, 'num_key_value_heads', 'head_dim')
  table = {
    'input_layernorm.weight': (width,),
    'post_attention_layernorm.weight': (width,),
    'self_attn.q_proj.weight': (queries, wide),
    'self_attn.k_proj.weight': (keys, wide),
    'self_attn.v_proj.weight': (keys, wide),
    'self_attn.o_proj.weight': (width, queries),
  }
  if has_qk_norm:
    table['self_attn.q_norm.weight'] = (axis(config, 'head_dim'),)
    table['self_attn.k_norm.weight'] = (axis(config, 'head_dim'),)
  if has_mlp:
    table |= mlp('mlp.', width, axis(config, 'intermediate_size'))
  return {at + name: axes for name, axes in table.items()}


def mlp(at: str, width: Axis, ff_width: Axis) -> Table:
  """Tensors of a SwiGLU."""
  return {
    at + 'gate_proj.weight': (ff_width, width),
    at + 'up_proj.weight': (ff_width, width),
    at + 'down_proj.weight': (width, ff_width),
  }


def check(
  table: Table, tensors: Tensors, called: Mapping[str, str] | None = None
) -> None:
  """Refuses tensors that do not fit the table.

  Args:
    table: the expected tensors.
    tensors: the present ones.
    called: their names in the foreign checkpoint, for messages.

  Raises:
    UserError: what is missing, left over or of another size, with both sizes.
  """
  called = called or {}

  def name(tensor):
    return called.get(tensor, tensor)

  _check_depth(table, tensors)
  problems = []
  for tensor, axes in table.items():
    if tensor not in tensors:
      continue
    shape, sizes = tensors[tensor].shape, [size for _, size in axes]
    for i, (label, size) in enumerate(axes):
      if len(shape) != len(axes) or shape[i] != size:
        problems.append(
          f'{name(tensor)} is {list(shape)}, {label}={size} wants {sizes}'
        )
        break
  problems += [f'no tensor {name(t)}' for t in sorted(table.keys() - tensors)]
  problems += [
    f'unknown tensor {name(t)} {list(tensors[t].shape)}'
    for t in sorted(tensors.keys() - table.keys())
  ]
  if problems:
    more = len(problems) - _MAX_LISTED
    tail = f'; and {more} more' if more > 0 else ''
    raise errors.UserError(
      'tensors and config contradict each other: '
      + '; '.join(problems[:_MAX_LISTED])
      + tail
    )


def num_layers(tensors: Mapping[str, Any]) -> int:
  """Layers that the tensors' names count."""
  found = [_LAYER.search(name) for name in tensors]
  return 1 + max((int(m.group(1)) for m in found if m), default=-1)


def _check_depth(table, tensors):
  want, have = num_layers(table), num_layers(tensors)
  if want != have:
    raise errors.UserError(
      f'num_hidden_layers is {want}, but the tensors hold {have} layers; one of'
      ' them is of another checkpoint'
    )


def head_fields(left: dict[str, Any], tensors: Tensors, at: str) -> None:
  """Fills in heads' width and key-value heads where the tensors tell them.

  Args:
    left: the config; head_dim and num_key_value_heads are added if absent.
    tensors: the checkpoint's.
    at: prefix of a layer's `self_attn` tensors.
  """
  norm, keys = (
    tensors.get(at + 'q_norm.weight'),
    tensors.get(at + 'k_proj.weight'),
  )
  if left.get('head_dim') is None:
    if norm is not None:
      left['head_dim'] = norm.shape[0]
    elif left.get('num_attention_heads'):
      left['head_dim'] = left['hidden_size'] // left['num_attention_heads']
  width = left.get('head_dim')
  if left.get('num_key_value_heads') is None and keys is not None and width:
    left['num_key_value_heads'] = keys.shape[0] // width
