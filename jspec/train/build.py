# SPDX-License-Identifier: MIT
"""Builds the drafter a config names by `module:attr`.

A builder is a function

  build(loaded, options, draft_token_ids, key) -> TrainableDrafter

where `options` is the config's section, to be refused key by key, and
`draft_token_ids` the reduced vocabulary or None.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jspec import config as config_lib
from jspec import errors
from jspec.drafters import block_config, block_loss, borrowed
from jspec.drafters import dflare as dflare_lib
from jspec.drafters import dflash as dflash_lib
from jspec.drafters import dflash2 as dflash2_lib
from jspec.drafters import dfly as dfly_lib
from jspec.drafters import dspark as dspark_lib
from jspec.typing import Array, Key


def resolve(name: str) -> Callable[..., Any]:
  """Finds the function `module:attr`."""
  module_name, colon, attr = name.partition(':')
  try:
    if not colon:
      raise ImportError('no colon')
    return getattr(importlib.import_module(module_name), attr)
  except (ImportError, AttributeError) as error:
    raise errors.UserError(
      f'`{name}` cannot be imported ({error}): write module:function'
    ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockOptions:
  """Options of the DFlash family; None is filled in from the target.

  Attributes:
    num_layers: depth of the drafter.
    ff_width: feed-forward width.
    num_heads: query heads.
    num_kv_heads: key-value heads.
    head_width: width of a head.
    norm_eps: of all RMS norms.
    rope_base: of the rotary embedding.
    taps: captured target layers; None spreads `num_taps` of them.
    num_taps: how many, where `taps` is None.
    mask_token_id: a token no text uses.
    block_size: slots fed, anchor included.
    num_draft_tokens: drafts of a proposal; None takes all a block gives.
    label_shift: 0: slot k predicts token k behind the anchor; 1: token k + 1.
    layer_windows: per layer, positions a slot sees back; None: all.
    parts: fields of `BlockDrafterConfig` that belong to the method.
    loss: anchors, terms and weights.
  """

  num_layers: int = 2
  ff_width: int | None = None
  num_heads: int | None = None
  num_kv_heads: int | None = None
  head_width: int | None = None
  norm_eps: float = 1e-6
  rope_base: float | None = None
  taps: tuple[int, ...] | None = None
  num_taps: int = 5
  mask_token_id: int
  block_size: int = 8
  num_draft_tokens: int | None = None
  label_shift: int = 0
  layer_windows: tuple[int, ...] | None = None
  parts: dict[str, Any] = dataclasses.field(default_factory=dict)
  loss: block_loss.LossConfig = block_loss.LossConfig()


def block(
  method: Any,
  loaded: Any,
  options: dict[str, Any],
  draft_token_ids: np.ndarray | None,
  key: Key[Array, ''],
) -> Any:
  """A drafter of the DFlash family, of the target's width and heads.

  Args:
    method: the family member, a `block_method.BlockMethod`.
    loaded: the target.
    options: fields of `BlockOptions`.
    draft_token_ids: the reduced vocabulary or None.
    key: of the weights.
  """
  _check_mask(loaded, options.get('mask_token_id'))
  chosen = config_lib.build(BlockOptions, options, 'drafter.options')
  target = loaded.model
  like = target.config
  taps = chosen.taps or block_config.choose_taps(
    target.num_layers, chosen.num_taps
  )
  unknown = sorted(chosen.parts.keys() - set(method.parts))
  if unknown:
    raise errors.UserError(
      f'drafter.options.parts has no key `{unknown[0]}` for {method.name};'
      f' known: {", ".join(method.parts) or "nothing"}'
    )
  num_drafts = chosen.block_size - 1 + chosen.label_shift
  config = method.config(
    width=target.width,
    ff_width=chosen.ff_width or like.ff_width,
    num_layers=chosen.num_layers,
    num_heads=chosen.num_heads or like.num_heads,
    num_kv_heads=chosen.num_kv_heads or like.num_kv_heads,
    head_width=chosen.head_width or like.head_width,
    norm_eps=chosen.norm_eps,
    rope_base=chosen.rope_base or like.rope.base,
    taps=tuple(taps),
    target_width=target.width,
    target_num_layers=target.num_layers,
    vocab_size=target.vocab_size,
    mask_token_id=chosen.mask_token_id,
    block_size=chosen.block_size,
    num_draft_tokens=chosen.num_draft_tokens or num_drafts,
    label_shift=chosen.label_shift,
    draft_vocab_size=None if draft_token_ids is None else len(draft_token_ids),
    layer_windows=chosen.layer_windows,
    **chosen.parts,
  )
  arrays = borrowed.from_target(target, draft_token_ids)
  return method.make(config, chosen.loss, arrays, key)


def _check_mask(loaded, token_id):
  """Refuses what `interchange.load` would, and a mask token that is a guess."""
  tokenizer = loaded.tokenizer
  special = {*loaded.stop_ids, tokenizer and tokenizer.bos_id} - {None}
  if token_id is None:
    said = f'is not set, and none is known for {loaded.name}'
  elif token_id in special:
    said = f'{token_id} begins or ends texts of {loaded.name}'
  else:
    return
  raise errors.UserError(
    f'drafter.options.mask_token_id {said}: give a token that no text uses'
  )


def dflash(*args) -> Any:
  """`block` for DFlash; the arguments are those of a builder."""
  return block(dflash_lib.METHOD, *args)


def dflash2(*args) -> Any:
  """`block` for DFlash2."""
  return block(dflash2_lib.METHOD, *args)


def dflare(*args) -> Any:
  """`block` for DFlare."""
  return block(dflare_lib.METHOD, *args)


def dfly(*args) -> Any:
  """`block` for DFly."""
  return block(dfly_lib.METHOD, *args)


def dspark(*args) -> Any:
  """`block` for DSpark."""
  return block(dspark_lib.METHOD, *args)
