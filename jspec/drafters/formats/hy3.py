# SPDX-License-Identifier: MIT
"""MTP as Hy3 has it and vLLM serves it: one more layer of the target.

Everything lies under `model.layers.N`, N the target's depth; experts one by
one, [out, in]. The config is the target's. AngelSpec writes its dense and its
MoE heads so. The server gives the target's normed state.
"""

import re
from typing import Any

import numpy as np

from jspec import errors
from jspec.drafters.formats import copies, fields, mtp, qwen3_mtp, shapes

_TOP = ('enorm.', 'hnorm.', 'eh_proj.', 'final_layernorm.')
_IN = re.compile(r'layers\.(\d+)\.(.+)')
_EXPERT = re.compile(r'mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight')
_ROUTING = (
  *('num_experts_per_tok', 'moe_router_use_sigmoid', 'route_norm'),
  *('router_scaling_factor', 'num_experts', 'num_shared_experts'),
  *('moe_intermediate_size', 'moe_router_enable_expert_bias'),
)


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra)
  qwen3_mtp.of_target(left)
  tensors = dict(tensors)
  copied = copies.take(tensors)
  found, called, index = _moved(tensors)
  fields.stated(left, '_mtp_spec_layer', index, 'the tensors')
  fields.same(left, 'target_num_hidden_layers', index, f'model.layers.{index}')
  native = mtp.to_config(left, found, called)
  size = {'vocab_size': native['vocab_size'], 'width': native['hidden_size']}
  copies.check(copied, target, **size)
  return native | carried, found


def _moved(tensors):
  """Native tensors, their foreign names, and the index of their layer."""
  found, called, experts, indices = {}, {}, {}, set()
  for name, values in tensors.items():
    inside = _IN.fullmatch(name)
    if not inside:
      raise errors.UserError(
        f'tensor {name} is not of an MTP layer; give the MTP layer alone'
      )
    index, rest = int(inside.group(1)), inside.group(2)
    indices.add(index)
    expert = _EXPERT.fullmatch(rest)
    if expert:
      new = f'midlayer.mlp.experts_{expert.group(2)}_proj'
      experts.setdefault(new, {})[int(expert.group(1))] = values
      called[new] = f'model.layers.{index}.mlp.experts.*'
      continue
    new = rest if rest.startswith(_TOP) else f'midlayer.{rest}'
    found[new], called[new] = values, f'model.{name}'
  if len(indices) != 1:
    raise errors.UserError(
      f'the tensors are of layers {sorted(indices)}; give the MTP layer alone'
    )
  for new, by_index in experts.items():
    found[new] = _fused(new, by_index)
  return found, called, indices.pop()


def _fused(name, by_index):
  """[out, in] of every expert -> [E, in, out]."""
  count = max(by_index) + 1
  shapes_found = {values.shape for values in by_index.values()}
  if len(by_index) != count or len(shapes_found) > 1:
    raise errors.UserError(
      f'{name}: {len(by_index)} experts numbered up to {count - 1}, of shapes'
      f' {sorted(shapes_found)}; the checkpoint is incomplete'
    )
  return np.stack([by_index[e].T for e in range(count)])


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  del target  # Nothing of it is copied.
  out = qwen3_mtp.served_config(config)
  index = config['target_num_hidden_layers']
  out |= {
    'architectures': ['HYV3ForCausalLM'],
    'model_type': 'hy_v3',
    '_mtp_spec_layer': index,
  }
  if config['num_experts']:
    out |= {key: config[key] for key in _ROUTING}
  found, at = {}, f'model.layers.{index}.'
  for name, values in tensors.items():
    short = name.removeprefix('midlayer.')
    if name not in mtp.EXPERTS:
      found[at + short] = values
      continue
    part = short.removeprefix('mlp.experts_')
    for e in range(values.shape[0]):
      turned = np.ascontiguousarray(values[e].T)
      found[f'{at}mlp.experts.{e}.{part}.weight'] = turned
  return out, found
