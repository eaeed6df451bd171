# SPDX-License-Identifier: MIT
"""The Llama family: Hugging Face `config.json` and tensor names.

Every field of the config is used, knowingly ignored, or refused by name; the
same holds for every tensor.

The table below is shared with the GGUF loader, which differs in names and in
the order of the Q and K rows.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jspec import errors
from jspec.checkpoints import names
from jspec.targets import hf_config, transformer

# Training, bookkeeping, and token ids that the tokenizer side reads.
_IGNORED = frozenset(
  {
    '_name_or_path',
    'architectures',
    'attention_dropout',
    'auto_map',
    'bos_token_id',
    'chunk_size_feed_forward',
    'dtype',
    'eos_token_id',
    'id2label',
    'initializer_range',
    'is_llama_config',
    'label2id',
    'model_type',
    'output_attentions',
    'output_hidden_states',
    'pad_token_id',
    'return_dict',
    'torch_dtype',
    'transformers.js_config',
    'transformers_version',
    'unk_token_id',
    'use_cache',
  }
)

# Fields that change the model, with the only values this stack computes.
_EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'mlp_bias': (False, None),
  # Splits matmuls in another order; the result is the same only at 1.
  'pretraining_tp': (1, None),
  'quantization_config': (None,),
  'rope_interleaved': (False, None),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
  """What one file format calls the tensors; `layer` holds one `{}`."""

  embedding: str = 'model.embed_tokens.weight'
  head: str = 'lm_head.weight'
  final_norm: str = 'model.norm.weight'
  layer: str = 'model.layers.{}.'
  attn_norm: str = 'input_layernorm.weight'
  q: str = 'self_attn.q_proj.weight'
  k: str = 'self_attn.k_proj.weight'
  v: str = 'self_attn.v_proj.weight'
  out: str = 'self_attn.o_proj.weight'
  mlp_norm: str = 'post_attention_layernorm.weight'
  gate: str = 'mlp.gate_proj.weight'
  up: str = 'mlp.up_proj.weight'
  down: str = 'mlp.down_proj.weight'


def config(
  fields: Mapping[str, Any], where: str
) -> transformer.TransformerConfig:
  """Returns the architecture that a `config.json` describes.

  Args:
    fields: the parsed JSON.
    where: its path, for messages.

  Raises:
    errors.UserError: a field is missing, unknown, or asks for what this stack
      does not compute.
  """
  left = dict(fields)
  model_type = left.get('model_type')
  if model_type != 'llama':
    raise errors.UserError(
      f'{where}: model_type {model_type!r} is not supported; use a model of'
      " type 'llama'"
    )
  for name, allowed in _EXPECTED.items():
    value = left.pop(name, allowed[0])
    if value not in allowed:
      raise errors.UserError(
        f'{where}: {name} {value!r} is not supported, only {allowed[0]!r}'
      )
  width = hf_config.count(left, 'hidden_size', where)
  num_heads = hf_config.count(left, 'num_attention_heads', where)
  if left.get('head_dim') is None:
    left['head_dim'] = width // num_heads
  if left.get('num_key_value_heads') is None:
    left['num_key_value_heads'] = num_heads
  max_len = hf_config.count(left, 'max_position_embeddings', where)
  tied = left.pop('tie_word_embeddings', False)
  if not isinstance(tied, bool):
    raise errors.UserError(
      f'{where}: tie_word_embeddings is {tied!r}, not true or false'
    )
  result = transformer.TransformerConfig(
    num_layers=hf_config.count(left, 'num_hidden_layers', where),
    width=width,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    num_heads=num_heads,
    num_kv_heads=hf_config.count(left, 'num_key_value_heads', where),
    head_width=hf_config.count(left, 'head_dim', where),
    vocab_size=hf_config.count(left, 'vocab_size', where),
    max_len=max_len,
    norm_eps=hf_config.number(left, 'rms_norm_eps', where),
    rope=hf_config.rotary(left, max_len, where),
    tied=tied,
  )
  unknown = sorted(left.keys() - _IGNORED)
  if unknown:
    raise errors.UserError(
      f'{where}: field {", ".join(unknown)} is not known to jspec and may'
      ' change the model; remove it if it does not'
    )
  check_sizes(result, where)
  return result


def check_sizes(config: transformer.TransformerConfig, where: str) -> None:
  """Refuses sizes that cannot belong together."""
  if config.num_heads % config.num_kv_heads:
    raise errors.UserError(
      f'{where}: {config.num_heads} query heads cannot share'
      f' {config.num_kv_heads} key-value heads evenly'
    )
  if config.head_width % 2:
    raise errors.UserError(
      f'{where}: head width {config.head_width} is odd; rotary embedding needs'
      ' an even one'
    )


def rules(config: transformer.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table of a Hugging Face Llama folder."""
  return table(config, Names())


def ignored(
  config: transformer.TransformerConfig, source: names.Source
) -> list[str]:
  """Returns tensors that hold nothing to load.

  Old exports store the inverse frequencies of every layer, which the config
  determines; tied ones may store the head again, which must then be the
  embedding.
  """
  present = set(source.names())
  stem = Names().layer + 'self_attn.rotary_emb.inv_freq'
  wanted = [stem.format(layer) for layer in range(config.num_layers)]
  found = [name for name in wanted if name in present]
  if config.tied and Names().head in present:
    head, embedding = source.read(Names().head), source.read(Names().embedding)
    if not np.array_equal(head, embedding):
      raise errors.UserError(
        f'{source.where}: tie_word_embeddings is true but {Names().head} is not'
        f' {Names().embedding}; correct the config or drop the tensor'
      )
    found.append(Names().head)
  return found


def table(
  config: transformer.TransformerConfig,
  of: Names,
  *,
  convert_q: Callable[[np.ndarray], np.ndarray] = names.transpose,
  convert_k: Callable[[np.ndarray], np.ndarray] = names.transpose,
  shape_q: tuple[int, ...] | None = None,
  shape_k: tuple[int, ...] | None = None,
) -> list[names.Rule]:
  """Returns the table from [out, in] matrices to the stacked, fused leaves.

  A tied model has no rule for its head: see `tie`.
  """
  q_end = config.num_heads * config.head_width
  k_end = q_end + config.num_kv_heads * config.head_width
  ff = config.ff_width
  flip = names.transpose
  out = [
    names.Rule(of.embedding, 'embedding'),
    names.Rule(of.final_norm, 'final_norm'),
  ]
  if not config.tied:
    out.append(names.Rule(of.head, 'head', (), flip))
  for i in range(config.num_layers):
    layer = of.layer.format(i)
    q, k = (i, names.ALL, slice(0, q_end)), (i, names.ALL, slice(q_end, k_end))
    v = (i, names.ALL, slice(k_end, None))
    gate, up = (i, names.ALL, slice(0, ff)), (i, names.ALL, slice(ff, None))
    out += [
      names.Rule(layer + of.attn_norm, 'attn_norm', (i,)),
      names.Rule(layer + of.q, 'qkv', q, convert_q, shape_q),
      names.Rule(layer + of.k, 'qkv', k, convert_k, shape_k),
      names.Rule(layer + of.v, 'qkv', v, flip),
      names.Rule(layer + of.out, 'out', (i,), flip),
      names.Rule(layer + of.mlp_norm, 'mlp_norm', (i,)),
      names.Rule(layer + of.gate, 'gate_up', gate, flip),
      names.Rule(layer + of.up, 'gate_up', up, flip),
      names.Rule(layer + of.down, 'down', (i,), flip),
    ]
  return out


def load(
  config: transformer.TransformerConfig,
  table: list[names.Rule],
  source: names.Source,
  *,
  ignored: list[str],
  on_tensor: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
  """Reads the arrays of `transformer.Transformer`, float32."""
  shapes = transformer.array_shapes(config)
  if config.tied:
    del shapes['head']
  arrays = names.fill(
    table, source, shapes, ignored=ignored, on_tensor=on_tensor
  )
  if config.tied:
    # Materialised [in, out]: on a CPU the transposed matmul is slower.
    arrays['head'] = np.ascontiguousarray(arrays['embedding'].T)
  return arrays
