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
from jspec.drafters import borrowed
from jspec.drafters import dflash as dflash_lib
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
class DFlashOptions:
  """Options of `dflash`; None is filled in from the target.

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
    num_anchors: blocks drawn from a row.
    decay_gamma: of the positional decay of the loss.
    chunk: anchors whose logits are held at once.
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
  num_anchors: int = 64
  decay_gamma: float = 4.0
  chunk: int = 16


def dflash(
  loaded: Any,
  options: dict[str, Any],
  draft_token_ids: np.ndarray | None,
  key: Key[Array, ''],
) -> dflash_lib.DFlash:
  """A DFlash drafter of the target's width, its heads by default."""
  chosen = config_lib.build(DFlashOptions, options, 'drafter.options')
  target = loaded.model
  like = target.config
  taps = chosen.taps or dflash_lib.choose_taps(
    target.num_layers, chosen.num_taps
  )
  if chosen.mask_token_id in loaded.stop_ids:
    # Loading would refuse the trained drafter: see `interchange.load`.
    raise errors.UserError(
      f'drafter.options.mask_token_id {chosen.mask_token_id} ends answers of'
      ' the target: give a token that no text uses'
    )
  num_drafts = chosen.block_size - 1 + chosen.label_shift
  config = dflash_lib.DFlashConfig(
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
  )
  loss_config = dflash_lib.LossConfig(
    num_anchors=chosen.num_anchors,
    decay_gamma=chosen.decay_gamma,
    chunk=chosen.chunk,
  )
  arrays = borrowed.from_target(target, draft_token_ids)
  return dflash_lib.DFlash(config, loss_config, arrays, key)
