# SPDX-License-Identifier: MIT
"""GPT-OSS.

Deviates from Llama in

  attention  biases everywhere; a sink of each head, a logit without a value in
             its softmax; every other layer sees a window
  rotary     YaRN with ramps that are not rounded (`truncate`)
  MLP        experts with biases, the router too, its softmax over the best few;
             gates clamped and up-projections shifted by 1, see
             `nn.layers.GATES`

Gate and up columns alternate on disk. Experts may be stored as MXFP4
(`checkpoints.mxfp4`); they are dequantised when read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec import errors
from jspec.checkpoints import conversions, mxfp4, names
from jspec.nn import moe
from jspec.targets import architecture, hf_config, llama, tables

_EXPECTED = {
  'attention_bias': (True,),
  'hidden_act': ('silu',),
  # As in the first release, which had no fields for them.
  'swiglu_alpha': (1.702,),
  'swiglu_limit': (7.0,),
}
# Of training; the last is where YaRN began, which its own fields say.
_IGNORED = (
  *('output_router_logits', 'router_aux_loss_coef', 'initial_context_length'),
)

_SIZES = {
  'model_type': 'gpt_oss',
  'attention_bias': True,
  'head_dim': 64,
  'hidden_size': 2880,
  'intermediate_size': 2880,
  'max_position_embeddings': 131_072,
  'num_attention_heads': 64,
  'num_experts_per_tok': 4,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-5,
  'rope_scaling': {
    'beta_fast': 32.0,
    'beta_slow': 1.0,
    'factor': 32.0,
    'original_max_position_embeddings': 4096,
    'rope_type': 'yarn',
    'truncate': False,
  },
  'rope_theta': 150_000.0,
  'sliding_window': 128,
  'vocab_size': 201_088,
}
PRESETS = {
  'gpt_oss_20b': _SIZES | {'num_hidden_layers': 24, 'num_local_experts': 32},
  'gpt_oss_120b': _SIZES | {'num_hidden_layers': 36, 'num_local_experts': 128},
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  _check_quantization(left.pop('quantization_config', None), where)
  shared = hf_config.shared(left, where)
  num_layers, top_k = shared['num_layers'], left.get('num_experts_per_tok')
  hf_config.expect(left, {'experts_per_token': (top_k,)}, where)
  window = hf_config.count(left, 'sliding_window', where)
  listed = hf_config.windows(left, num_layers, window, where)
  turns = tuple(None if i % 2 else window for i in range(num_layers))
  ff_width = hf_config.count(left, 'intermediate_size', where)
  experts = moe.MoeConfig(
    width=shared['width'],
    num_experts=hf_config.count(left, 'num_local_experts', where),
    top_k=hf_config.count(left, 'num_experts_per_tok', where),
    ff_width=ff_width,
    has_biases=True,
    activation='clamped_swiglu',
  )
  result = architecture.TransformerConfig(
    **shared,
    ff_width=ff_width,
    rope=hf_config.rotary(left, shared['max_len'], where),
    windows=turns if listed is None else listed,
    qkv_bias=True,
    out_bias=True,
    sinks=True,
    experts=experts,
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def _check_quantization(said, where):
  """Refuses what is not MXFP4 experts."""
  if said is None:
    return
  if not isinstance(said, Mapping) or said.get('quant_method') != 'mxfp4':
    raise errors.UserError(
      f'{where}: quantization_config {said!r} is not supported, only mxfp4'
    )
  odd = sorted(said.keys() - {'quant_method', 'modules_to_not_convert'})
  if odd:
    raise errors.UserError(
      f'{where}: quantization_config field {", ".join(odd)} is not known to'
      ' jspec'
    )


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table."""
  return tables.table(config, tables.Names(), experts=_experts)


def _experts(config, of, i):
  """Rules of the second half of layer `i`, all experts in one tensor."""

  def apart(num_axes):
    units = (1,) * (num_axes - 1) + (0,)
    return conversions.Conversion(_put_apart, _put_together, units=units)

  stem = of.layer.format(i) + 'mlp.'
  gate_up, down = stem + 'experts.gate_up_proj', stem + 'experts.down_proj'
  found = {
    stem + 'router.weight': ('router', names.transpose),
    stem + 'router.bias': ('router_bias', names.identity),
    gate_up: ('experts_gate_up', apart(3)),
    gate_up + '_bias': ('experts_gate_up_bias', apart(2)),
    down: ('experts_down', names.identity),
    down + '_bias': ('experts_down_bias', names.identity),
  }
  row = (architecture.row(config, i),)
  return [
    *tables.second_norms(config, of, i),
    *(names.Rule(name, leaf, row, way) for name, (leaf, way) in found.items()),
  ]


def _put_apart(values: np.ndarray) -> np.ndarray:
  """Columns g0 u0 g1 u1 ... as g0 g1 ... u0 u1 ..."""
  return np.concatenate([values[..., ::2], values[..., 1::2]], axis=-1)


def _put_together(values: np.ndarray) -> np.ndarray:
  """The other way round."""
  halves = np.stack(np.split(values, 2, axis=-1), axis=-1)
  return halves.reshape(values.shape)


def prepare(source: names.Source) -> names.Source:
  """The tensors with experts dequantised."""
  return mxfp4.Dequantised(source)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The config.json of what `writing` writes: nothing is quantised."""
  return {k: v for k, v in fields.items() if k != 'quantization_config'}


ignored = llama.ignored
