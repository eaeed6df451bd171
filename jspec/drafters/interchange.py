# SPDX-License-Identifier: MIT
"""Drafter checkpoint folders: config.json and model.safetensors.

Ours carries every field a block drafter needs and AngelSpec's tensor names:

  config.json         shapes, target_layer_ids, mask_token_id, block_size,
                      num_draft_tokens, label_shift, draft_vocab_size, the
                      target's name and fingerprint
  model.safetensors   context_proj.weight, layers.0.self_attn.q_proj.weight ...
                      in bfloat16, [out, in]; draft_token_ids int32 [Vd] when
                      the draft vocabulary is reduced

Embedding and LM head are the target's and are not stored. AngelSpec and z-lab
folders load too, but they do not say all of this: what is missing must be given
in `extra`. A guess would load, run, and draft badly without a word.
"""

import dataclasses
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from jspec import errors
from jspec.checkpoints import names, safetensors
from jspec.drafters import block, borrowed, dflash

# Field of DFlashConfig -> key in config.json.
_KEYS = {
  'width': 'hidden_size',
  'ff_width': 'intermediate_size',
  'num_layers': 'num_hidden_layers',
  'num_heads': 'num_attention_heads',
  'num_kv_heads': 'num_key_value_heads',
  'head_width': 'head_dim',
  'norm_eps': 'rms_norm_eps',
  'rope_base': 'rope_theta',
  'taps': 'target_layer_ids',
  'target_width': 'target_hidden_size',
  'target_num_layers': 'target_num_hidden_layers',
  'vocab_size': 'vocab_size',
  'mask_token_id': 'mask_token_id',
  'block_size': 'block_size',
  'num_draft_tokens': 'num_draft_tokens',
  'label_shift': 'label_shift',
  'draft_vocab_size': 'draft_vocab_size',
  'min_expected_accepted': 'min_expected_accepted',
  'tree_size': 'tree_size',
}
_FINGERPRINT = 'target_fingerprint'
_MAP = 'draft_token_ids'

# Keys that say nothing about the computation, or repeat what is checked.
_IGNORED = frozenset(
  {
    '_angelspec_version',
    'architectures',
    'attention_dropout',
    'auto_map',
    'bos_token_id',
    'dtype',
    'eos_token_id',
    'initializer_range',
    'max_position_embeddings',
    'max_window_layers',
    'model_type',
    'pad_token_id',
    'target_name',
    'tie_word_embeddings',
    'torch_dtype',
    'transformers_version',
    'use_cache',
    'use_sliding_window',
  }
)
# Keys that would change the computation, with the values this drafter computes.
_EXPECTED = {
  'attention_bias': (False, None),
  'fusion_type': ('concat_fc',),
  'gate_temperature': (1.0,),
  'hidden_act': ('silu',),
  'model_arch': ('dflash',),
  'rope_scaling': (None,),
  'sliding_window': (None,),
}


@dataclasses.dataclass(frozen=True)
class _Layout:
  """What a family of checkpoints calls the tensors outside the layers."""

  context_proj: str
  context_norm: str
  final_norm: str


_ANGELSPEC = _Layout(
  'context_proj.weight', 'context_norm.weight', 'final_norm.weight'
)
_ZLAB = _Layout('fc.weight', 'hidden_norm.weight', 'norm.weight')


def save(
  folder: str | pathlib.Path,
  drafter: dflash.DFlash,
  *,
  target_name: str,
  target_fingerprint: str,
) -> None:
  """Writes a drafter as a checkpoint folder."""
  config = {
    'architectures': ['DFlashDraftModel'],
    'model_type': 'dflash',
    'num_target_layers': len(drafter.config.taps),
    'target_name': target_name,
    _FINGERPRINT: target_fingerprint,
  }
  for field, key in _KEYS.items():
    config[key] = getattr(drafter.config, field)
  arrays = {name: leaf[...] for name, leaf in _leaves(drafter).items()}
  arrays['context_proj'] = drafter.folded_context_proj()
  tensors = {}
  for rule in _rules(drafter.config, _ANGELSPEC):
    values = np.asarray(arrays[rule.leaf])[rule.box]
    values = values.T if rule.convert is names.transpose else values
    tensors[rule.source] = safetensors.to_bfloat16(values)
  if drafter.draft_token_ids is not None:
    tensors[_MAP] = np.asarray(drafter.draft_token_ids[...], np.int32)
  safetensors.write(folder, tensors, config)


def load(
  folder: str | pathlib.Path,
  target: nnx.Module,
  *,
  target_fingerprint: str,
  reserved_token_ids: Collection[int] = (),
  extra: Mapping[str, Any] | None = None,
  num_draft_tokens: int | None = None,
  loss_config: dflash.LossConfig | None = None,
) -> dflash.DFlash:
  """Reads a drafter and binds it to its target.

  Args:
    folder: a checkpoint folder.
    target: the target; its `embedding` and `head` are borrowed.
    target_fingerprint: of this target; must be the drafter's.
    reserved_token_ids: ids with a meaning (end of sequence, padding) that
      cannot be the mask token.
    extra: config keys that the folder does not have (foreign checkpoints), such
      as block_size, num_draft_tokens, label_shift, target_fingerprint.
    num_draft_tokens: propose fewer drafts than the checkpoint says.
    loss_config: for training on.

  Raises:
    UserError: anything missing, contradicting, unknown or for another target.
  """
  folder = pathlib.Path(folder)
  raw, layout = _read_config(folder, extra or {})
  if raw[_FINGERPRINT] != target_fingerprint:
    raise errors.UserError(
      f'{folder} was made for target {raw.get("target_name", "?")} with'
      f' fingerprint {raw[_FINGERPRINT]}, this target has {target_fingerprint};'
      ' load the target it was made for'
    )
  if raw['mask_token_id'] in reserved_token_ids:
    raise errors.UserError(
      f'{folder}: mask_token_id {raw["mask_token_id"]} is an end-of-sequence or'
      ' padding token of the target; it must be one that no text uses'
    )
  config = dflash.DFlashConfig(
    **{field: raw[key] for field, key in _KEYS.items()}
  )
  if num_draft_tokens is not None:
    config = dataclasses.replace(config, num_draft_tokens=num_draft_tokens)

  source = safetensors.SafetensorsFolder(folder)
  arrays = _borrow(config, source, target)
  drafter = dflash.DFlash(
    config, loss_config or dflash.LossConfig(), arrays, jax.random.key(0)
  )
  leaves = _leaves(drafter)
  shapes = {name: leaf.shape for name, leaf in leaves.items()}
  values = names.fill(
    _rules(config, layout),
    source,
    shapes,
    ignored=(_MAP, 'embed_tokens.weight'),
  )
  for name, leaf in leaves.items():
    leaf[...] = jax.numpy.asarray(values[name])
  return drafter


def _leaves(drafter: dflash.DFlash) -> dict[str, nnx.Param]:
  stack = drafter.block.layers
  leaves = {
    name: getattr(stack, name)
    for name in block.array_shapes(drafter.config.block)
  }
  for name in ('context_proj', 'context_norm', 'final_norm'):
    leaves[name] = getattr(drafter, name)
  return leaves


def _rules(config, layout):
  """The rename table: HF names, [out, in] on disk, [in, out] in memory."""
  turn = names.transpose
  kv_width = config.num_kv_heads * config.head_width
  first, second = slice(0, kv_width), slice(kv_width, 2 * kv_width)
  gate = slice(0, config.ff_width)
  up = slice(config.ff_width, 2 * config.ff_width)
  rules = [
    names.Rule(layout.context_proj, 'context_proj', (), turn),
    names.Rule(layout.context_norm, 'context_norm'),
    names.Rule(layout.final_norm, 'final_norm'),
  ]
  for i in range(config.num_layers):
    at, everything = f'layers.{i}.', names.ALL
    rules += [
      names.Rule(at + 'input_layernorm.weight', 'attn_norm', (i,)),
      names.Rule(at + 'self_attn.q_proj.weight', 'q', (i,), turn),
      names.Rule(
        at + 'self_attn.k_proj.weight', 'kv', (i, everything, first), turn
      ),
      names.Rule(
        at + 'self_attn.v_proj.weight', 'kv', (i, everything, second), turn
      ),
      names.Rule(at + 'self_attn.q_norm.weight', 'q_norm', (i,)),
      names.Rule(at + 'self_attn.k_norm.weight', 'k_norm', (i,)),
      names.Rule(at + 'self_attn.o_proj.weight', 'out', (i,), turn),
      names.Rule(at + 'post_attention_layernorm.weight', 'mlp_norm', (i,)),
      names.Rule(
        at + 'mlp.gate_proj.weight', 'gate_up', (i, everything, gate), turn
      ),
      names.Rule(
        at + 'mlp.up_proj.weight', 'gate_up', (i, everything, up), turn
      ),
      names.Rule(at + 'mlp.down_proj.weight', 'down', (i,), turn),
    ]
  return rules


def _read_config(folder, extra):
  """Returns all keys, from the folder and `extra`, and the tensor layout."""
  path = folder / 'config.json'
  try:
    raw = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'{path} is not a readable config ({error}); give a drafter folder'
    ) from error
  layout = _ANGELSPEC
  if 'dflash_config' in raw:
    raw, layout = _from_zlab(path, raw), _ZLAB
  elif raw.pop('num_target_layers', None) != len(
    raw.get('target_layer_ids', ())
  ):
    raise errors.UserError(
      f'{path}: num_target_layers does not count target_layer_ids; give the'
      ' layers the drafter was trained on'
    )
  for key, value in extra.items():
    if raw.get(key, value) != value:
      raise errors.UserError(
        f'{path}: {key} is {raw[key]}, not {value} as given; drop one'
      )
    raw[key] = value
  # Only our own checkpoints have it; 0 drafts in every round, as others do.
  raw.setdefault('min_expected_accepted', 0.0)
  raw.setdefault('tree_size', 0)
  _check_keys(path, raw)
  raw['target_layer_ids'] = tuple(raw['target_layer_ids'])
  if raw['draft_vocab_size'] == raw['vocab_size']:
    raw['draft_vocab_size'] = None
  return raw, layout


def _from_zlab(path, raw):
  """Unfolds z-lab's nested fields; there num_target_layers is a depth."""
  nested = raw.pop('dflash_config')
  kinds = set(raw.pop('layer_types', ())) - {'full_attention'}
  if kinds:
    raise errors.UserError(
      f'{path}: layer_types {sorted(kinds)} are not supported, only'
      ' full_attention'
    )
  # An absent key is refused by name, with all others that are.
  if 'num_target_layers' in raw:
    raw['target_num_hidden_layers'] = raw.pop('num_target_layers')
  raw.setdefault('draft_vocab_size', None)
  # Embedding and head are the target's, so the widths agree.
  if 'hidden_size' in raw:
    raw.setdefault('target_hidden_size', raw['hidden_size'])
  return {**raw, **nested}


def _check_keys(path, raw):
  needed = set(_KEYS.values()) | {_FINGERPRINT}
  missing = sorted(needed - raw.keys())
  if missing:
    raise errors.UserError(
      f'{path} does not say {", ".join(missing)}; add the keys, as the drafter'
      ' was trained (no default is safe)'
    )
  unknown = sorted(raw.keys() - needed - _IGNORED - _EXPECTED.keys())
  if unknown:
    raise errors.UserError(
      f'{path}: unknown keys {", ".join(unknown)}; is this a DFlash drafter?'
    )
  for key, allowed in _EXPECTED.items():
    if key in raw and raw[key] not in allowed:
      raise errors.UserError(
        f'{path}: {key}={raw[key]} is not supported, only {allowed[0]}'
      )


def _borrow(config, source, target):
  """Borrows the target's arrays; checks the copies that came along."""
  ids = None
  has_map = _MAP in source.names()
  if has_map != (config.draft_vocab_size is not None):
    state = 'has' if has_map else 'lacks'
    raise errors.UserError(
      f'{source.where} {state} the tensor {_MAP} but draft_vocab_size is'
      f' {config.draft_vocab_size}; a reduced draft vocabulary needs its map,'
      ' export the drafter again'
    )
  if has_map:
    ids = source.read(_MAP)
  arrays = borrowed.from_target(target, ids)
  if 'embed_tokens.weight' in source.names():
    copy, own = source.read('embed_tokens.weight'), arrays.embedding
    if copy.shape != own.shape or not np.allclose(copy, own, 1e-2, 1e-3):
      raise errors.UserError(
        f"{source.where}: its embed_tokens.weight is not this target's"
        ' embedding; load the target it was made for'
      )
  return arrays
