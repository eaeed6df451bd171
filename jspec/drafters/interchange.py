# SPDX-License-Identifier: MIT
"""Drafter checkpoint folders: config.json and model.safetensors.

  config.json         model_type (the method), its keys, and whose it is: the
                      target's name and fingerprint
  model.safetensors   the method's tensors, [out, in], in bfloat16 (but for
                      those whose rule says otherwise); and draft_token_ids
                      int32 [Vd] of a reduced vocabulary

Embedding and LM head are the target's and are not stored. Folders of other
projects are turned into this form when they are read (`formats`); what they do
not say must be given in `extra`. A guess would load, run, and draft badly
without a word.
"""

import importlib
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from jspec import errors
from jspec.checkpoints import names, safetensors
from jspec.drafters import borrowed
from jspec.drafters import method as method_lib

# What `model_type` may say -> the module whose METHOD it is.
METHODS = {
  name: f'jspec.drafters.{name}'
  for name in (
    'd2sd',
    'dflare',
    'dflash',
    'dflash2',
    'dfly',
    'dspark',
    'eagle3',
    'mtp',
    'specblock',
  )
}
FORMAT = 1
_FINGERPRINT = 'target_fingerprint'
_MAP = 'draft_token_ids'
_MASK = 'mask_token_id'


def find_method(name: str, where: str) -> method_lib.Method:
  """The method of that name, or of a `module:attr`.

  Raises:
    UserError: there is none.
  """
  module, colon, attr = name.partition(':')
  try:
    if colon:
      return getattr(importlib.import_module(module), attr)
    return importlib.import_module(METHODS[name]).METHOD
  except (KeyError, ImportError, AttributeError) as error:
    raise errors.UserError(
      f'{where}: no method {name!r} of drafting; there are'
      f' {", ".join(METHODS)}, or write module:attr ({error})'
    ) from error


def save(
  folder: str | pathlib.Path,
  drafter: Any,
  *,
  target_name: str,
  target_fingerprint: str,
  template: str = '',
) -> None:
  """Writes a drafter as a checkpoint folder.

  Args:
    folder: made if absent.
    drafter: of a method that `find_method` finds by `drafter.method`.
    target_name: for people.
    target_fingerprint: of the target it was trained for.
    template: hash of the chat template it was trained with.
  """
  method = find_method(drafter.method, 'save')
  config = method.to_json(drafter.config)
  config |= {
    'jspec_format': FORMAT,
    'model_type': drafter.method,
    'target_name': target_name,
    _FINGERPRINT: target_fingerprint,
    'target_template': template,
  }
  arrays = method.saved(drafter)
  tensors = {}
  for rule in method.rules(drafter.config):
    values = np.asarray(arrays[rule.leaf])[rule.box]
    values = values.T if rule.convert is names.transpose else values
    if rule.is_rounded:
      values = safetensors.to_bfloat16(values)
    tensors[rule.source] = values
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
  loss_config: Any | None = None,
) -> Any:
  """Reads a drafter and binds it to its target.

  Args:
    folder: a checkpoint folder, ours or another project's.
    target: the target; its embedding, final norm and head are borrowed.
    target_fingerprint: of this target; must be the drafter's.
    reserved_token_ids: ids with a meaning (end of sequence, padding) that
      cannot be the mask token.
    extra: config keys that the folder does not have (foreign checkpoints), such
      as block_size, num_draft_tokens, label_shift, target_fingerprint.
    loss_config: for training on.

  Raises:
    UserError: anything missing, contradicting, unknown or for another target.
  """
  folder = pathlib.Path(folder)
  raw, source = _open(folder, extra or {}, target)
  where = str(folder / 'config.json')
  method = find_method(raw.pop('model_type'), where)
  _check_format(raw.pop('jspec_format', None), where)
  raw.pop('target_template', None)
  theirs, name = raw.pop(_FINGERPRINT, None), raw.pop('target_name', '?')
  if theirs is None:
    raise errors.UserError(
      f'{where} does not say {_FINGERPRINT}; add the key once you know that'
      f' the drafter is for this target ({target_fingerprint})'
    )
  if theirs != target_fingerprint:
    raise errors.UserError(
      f'{folder} was made for target {name} with fingerprint {theirs}, this'
      f' target has {target_fingerprint}; load the target it was made for'
    )
  if raw.get(_MASK) in reserved_token_ids:
    raise errors.UserError(
      f'{folder}: {_MASK} {raw[_MASK]} is an end-of-sequence or padding token'
      ' of the target; it must be one that no text uses'
    )
  config = method.from_json(raw, where)
  arrays = _borrow(config, source, target)
  drafter = method.make(config, loss_config, arrays, jax.random.key(0))
  leaves = method.leaves(drafter)
  values = names.fill(
    method.rules(config),
    source,
    {leaf_name: leaf.shape for leaf_name, leaf in leaves.items()},
    ignored=(_MAP,),
  )
  for leaf_name, leaf in leaves.items():
    leaf[...] = jax.numpy.asarray(values[leaf_name])
  return drafter


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
  """The keys of a folder's config.json, as they are.

  Raises:
    UserError: it cannot be read.
  """
  path = pathlib.Path(folder) / 'config.json'
  try:
    return dict(json.loads(path.read_text(encoding='utf-8')))
  except (OSError, ValueError, TypeError) as error:
    raise errors.UserError(
      f'{path} is not a readable config ({error}); give a drafter folder'
    ) from error


def _open(folder, extra, target):
  """The keys and the tensors of a folder, in our own form."""
  raw, source = read_config(folder), safetensors.SafetensorsFolder(folder)
  if 'jspec_format' not in raw:
    from jspec.drafters.formats import copies, layouts  # For foreign ones.

    try:
      drafting = layouts.drafting(raw, source.names())
      tensors = {name: source.read(name) for name in drafting}
      raw, tensors = layouts.to_native(
        raw, tensors, extra, copies.of_model(target)
      )
    except errors.UserError as error:
      raise errors.UserError(f'{folder}: {error}') from error
    return raw, names.Held(str(folder), tensors)
  for key, value in extra.items():
    if raw.get(key, value) != value:
      raise errors.UserError(
        f'{folder}: {key} is {raw[key]}, not {value} as given; drop one'
      )
    raw[key] = value
  return raw, source


def _check_format(version, where):
  if version not in (None, FORMAT):
    raise errors.UserError(
      f'{where}: jspec_format {version}, but this jspec reads {FORMAT}; use a'
      ' newer one'
    )


def _borrow(config, source, target):
  """Borrows the target's arrays, with the drafter's own vocabulary."""
  has_map = _MAP in source.names()
  if has_map != (config.draft_vocab_size is not None):
    state = 'has' if has_map else 'lacks'
    raise errors.UserError(
      f'{source.where} {state} the tensor {_MAP} but draft_vocab_size is'
      f' {config.draft_vocab_size}; a reduced draft vocabulary needs its map,'
      ' export the drafter again'
    )
  return borrowed.from_target(target, source.read(_MAP) if has_map else None)
