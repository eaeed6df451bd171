# SPDX-License-Identifier: MIT
"""The layouts there are; which one a checkpoint has; conversion both ways.

  foreign folder -> to_native -> native config and tensors -> from_native -> ...

Conversions are pure functions of a config (a dict) and tensors (a dict of
arrays, whose dtypes and values are kept). Every tensor is used once or is a
copy of the target's; every config key is used, known harmless, or refused; what
config and tensors both say must agree. So there and back again changes no bit.
"""

import collections
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jspec import errors
from jspec.drafters.formats import (
  angelspec,
  copies,
  deepspec,
  eagle,
  family,
  family_table,
  hy3,
  mtp,
  names,
  qwen3_mtp,
  sglang,
  shapes,
  specblock,
  vllm,
  zlab,
)

# Modules with `to_native` and `from_native`.
LAYOUTS = {
  'angelspec': angelspec,
  'deepspec': deepspec,
  'eagle': eagle,
  'hy3': hy3,
  'qwen3_mtp': qwen3_mtp,
  'sglang': sglang,
  'specblock': specblock,
  'vllm': vllm,
  'zlab': zlab,
}
# Native keys that only say how to decode; no other layout has them.
DECODING = frozenset(
  {
    *('beam_width', 'class_widths', 'first_width', 'min_expected_accepted'),
    *('support', 'tree_blocks', 'tree_size', 'tree_starts', 'tree_width'),
  }
)
# Layouts told by tensors alone: the first whose tensors are all there.
_MARKS = (
  ('hy3', (r'layers\.\d+\.eh_proj\.weight',)),
  ('qwen3_mtp', (r'mtp\.fc\.weight',)),
  ('angelspec', (r'eh_proj\.weight', r'midlayer\..*')),
  ('eagle', (r'fc\.weight', r'midlayer\.hidden_norm\.weight')),
  ('sglang', (r'fc\.weight', r'layers\.0\.hidden_norm\.weight')),
  ('specblock', (r'input_layer\.condition_proj\.weight',)),
  ('angelspec', (r'context_norm\.weight', r'final_norm\.weight')),
)
# Norms of z-lab's names, which three layouts share.
_SERVED = (r'hidden_norm\.weight', r'norm\.weight')


def detect(config: Mapping[str, Any], tensor_names: Collection[str]) -> str:
  """Returns the name of a checkpoint's layout.

  Raises:
    UserError: none, or more than one that would mean different things.
  """
  if 'jspec_format' in config:
    raise errors.UserError('this folder is in the native layout already')
  short = set(names.strip(tensor_names).values())
  for layout, marks in _MARKS:
    if all(any(re.fullmatch(mark, n) for n in short) for mark in marks):
      return layout
  if not all(any(re.fullmatch(mark, n) for n in short) for mark in _SERVED):
    looked = [' and '.join(marks) for _, marks in (*_MARKS, ('', _SERVED))]
    raise errors.UserError(
      'unknown layout: looked for tensors '
      + ', or '.join(looked).replace('\\', '')
      + f'; found {", ".join(sorted(short)[:5])} ...; give --layout, one of '
      + ', '.join(LAYOUTS)
    )
  return _served(config, short)


def _served(config, short):
  """Which of the layouts with z-lab's names; they differ in label_shift."""
  is_nested = any(config.get(key) for key in ('dflash_config', 'dflare_config'))
  if 'layer_fusion_weights' in short:
    return 'vllm'
  has_copies = copies.HEAD in short and copies.EMBEDDING in short
  has_heads = any(n.startswith(('markov_head', 'confidence_')) for n in short)
  if is_nested and not has_heads and not has_copies:
    return 'zlab'
  if has_copies and 'target_layer_ids' in config and not is_nested:
    return 'deepspec'
  raise errors.UserError(
    "the names are z-lab's and DeepSpec's, whose slots predict different"
    ' tokens; say which: --layout zlab (slot k: token k, label_shift 0) or'
    ' --layout deepspec (token k + 1, label_shift 1)'
  )


def drafting(
  config: Mapping[str, Any], tensor_names: Collection[str]
) -> set[str]:
  """Names of the tensors that draft: all, unless a target is around them.

  Some targets come with an MTP layer. Theirs are the tensors of `mtp`, or of
  the layer behind the last one (Hy3); the others are the target's.
  """
  short = names.strip(tensor_names)
  whole = set(tensor_names)
  if 'jspec_format' in config or not any(
    name.startswith('layers.0.') for name in short.values()
  ):
    return whole
  for own in (r'mtp\.', rf'layers\.{config.get("num_hidden_layers")}\.'):
    found = {name for name in whole if re.match(own, short[name])}
    heads = ('mtp.fc.weight', 'eh_proj.weight')
    if any(short[name].endswith(heads) for name in found):
      return found
  return whole


def to_native(
  config: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  extra: Mapping[str, Any] | None = None,
  target: copies.Target | None = None,
  *,
  layout: str | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts a foreign checkpoint.

  Args:
    config: as in its config.json.
    tensors: by name; values and dtypes are kept.
    extra: config keys that it lacks, such as block_size.
    target: to compare copies of the target with; None drops them unseen.
    layout: a key of `LAYOUTS`; None detects it.

  Returns:
    The native config, and tensors under native names.

  Raises:
    UserError: unknown, missing, left over, contradicting or not the target's.
  """
  module = LAYOUTS[layout or detect(config, tensors)]
  short = names.strip(tensors)
  stripped = {short[name]: values for name, values in tensors.items()}
  extra = dict(extra or {})
  found, native = module.to_native(dict(config), stripped, extra, target)
  if target is not None:
    check_target(found, target)
  return found, native


def check_target(config: Mapping[str, Any], target: copies.Target) -> None:
  """Refuses a native config of another target.

  Raises:
    UserError: with both numbers.
  """
  for key, value in target.facts().items():
    if config[key] != value:
      raise errors.UserError(
        f'{key} is {config[key]}, the given target has {value}; give the target'
        ' it was made for'
      )


def from_native(
  config: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  layout: str,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts a native checkpoint to another layout; inverse of `to_native`.

  Args:
    config: native.
    tensors: native.
    layout: a key of `LAYOUTS`.
    target: for layouts that carry copies of it.

  Raises:
    UserError: the layout cannot say what the drafter is, or wants a target.
  """
  kind = config.get('model_type')
  if 'jspec_format' not in config or kind not in _TABLES:
    raise errors.UserError(
      f'cannot export model_type {kind!r} (jspec_format'
      f' {config.get("jspec_format")}); give a native drafter folder, of one of'
      f' {", ".join(_TABLES)}'
    )
  config = dict(config)
  if kind in family.METHODS:
    config = family.complete(config)
  if target is not None:
    check_target(config, target)
  shapes.check(_TABLES[kind](config), dict(tensors))
  out, found = LAYOUTS[layout].from_native(config, dict(tensors), target)
  _check_back(config, out, found, layout)
  out['torch_dtype'] = _dtype(found)
  return out, found


def unsaid(config: Mapping[str, Any], foreign: Mapping[str, Any]) -> list[str]:
  """Native keys, on how to decode only, that a foreign config lost."""
  return sorted((DECODING & config.keys()) - foreign.keys())


def _check_back(config, out, found, layout):
  """What was written must read as what it was written from."""
  back, _ = to_native(out, found, layout=layout)
  same = config.keys() - DECODING - {'zero_first_embedding'}
  lost = sorted(k for k in same if back.get(k, config[k]) != config[k])
  lost += sorted(same - back.keys() - family.OFF.keys())
  if lost:
    told = ', '.join(f'{key}={config[key]!r}' for key in lost)
    raise errors.UserError(f'the {layout} layout cannot say {told}')


def _dtype(tensors):
  """The dtype of most numbers, where a bias or a norm has another."""
  sizes = collections.Counter()
  for values in tensors.values():
    if values.dtype.kind not in 'biu':
      sizes[str(values.dtype)] += values.size
  return sizes.most_common(1)[0][0]


# The tensors of a native config, by its model_type.
_TABLES = {
  **dict.fromkeys(family.METHODS, family_table.table),
  'eagle3': eagle.table,
  'mtp': mtp.table,
  'specblock': specblock.table,
}
