# SPDX-License-Identifier: MIT
"""Builders of the drafters that are run on their own output.

Their options are the fields of their config, of which those that follow from
the target may be left out, and a section `loss` with the fields of their loss.
"""

import functools
from typing import Any

import numpy as np

from jspec import config as config_lib
from jspec.drafters import borrowed, mtp_warm_start, specblock_config
from jspec.drafters import eagle3 as eagle3_lib
from jspec.drafters import mtp as mtp_lib
from jspec.drafters import specblock as specblock_lib
from jspec.targets import reading
from jspec.typing import Array, Key


def plain(
  method: Any,
  defaults: dict[str, Any],
  loaded: Any,
  options: dict[str, Any],
  draft_token_ids: np.ndarray | None,
  key: Key[Array, ''],
) -> Any:
  """A drafter of the target's width and heads.

  Args:
    method: a `method.PlainMethod`.
    defaults: fields of its config that the method's usual form sets.
    loaded: the target.
    options: fields of its config, and `loss`.
    draft_token_ids: the reduced vocabulary or None.
    key: of the weights.
  """
  target, options = loaded.model, dict(options)
  like = target.config
  loss = config_lib.build(
    method.loss_class, options.pop('loss', {}), 'drafter.options.loss'
  )
  fields = {
    'width': target.width,
    'ff_width': like.ff_width,
    'num_heads': like.num_heads,
    'num_kv_heads': like.num_kv_heads,
    'head_width': like.head_width,
    'norm_eps': 1e-6,
    'rope_base': like.rope.base,
    'target_width': target.width,
    'target_num_layers': target.num_layers,
    'vocab_size': target.vocab_size,
    'draft_vocab_size': (
      None if draft_token_ids is None else len(draft_token_ids)
    ),
    **defaults,
  }
  given = {name: x for name, x in options.items() if x is not None}
  config = config_lib.build(
    method.config_class, {**fields, **given}, 'drafter.options'
  )
  arrays = borrowed.from_target(target, draft_token_ids)
  return method.make(config, loss, arrays, key)


def eagle3(loaded: Any, options: dict[str, Any], *rest) -> Any:
  """EAGLE-3 on a low, a middle and a high layer; see `plain`."""
  defaults = {
    'num_draft_tokens': 5,
    'norm_output': False,
    'fc_norm': False,
  }
  if options.get('taps') is None:
    defaults['taps'] = specblock_config.choose_taps(loaded.model.num_layers)
  return plain(eagle3_lib.METHOD, defaults, loaded, options, *rest)


def mtp(loaded: Any, options: dict[str, Any], *rest) -> Any:
  """MTP, dense unless `num_experts` is given; see `plain`.

  Option `init_from_target_layer` begins with a copy of that layer.
  """
  options = dict(options)
  layer = options.pop('init_from_target_layer', None)
  defaults = {
    'taps': (loaded.model.num_layers - 1,),
    'num_draft_tokens': 3,
    'qk_norm': False,
    'embedding_first': True,
    'input_postnorm': True,
    'feedback_postnorm': True,
    'zero_first_embedding': 'first_step',
  }
  drafter = plain(mtp_lib.METHOD, defaults, loaded, options, *rest)
  if layer is not None:
    read = None
    if loaded.opened is not None:
      # What is loaded may be rounded, or an outline.
      read = functools.partial(reading.layer, loaded.opened.reader())
    mtp_warm_start.warm_start_from_target_layer(
      drafter, loaded.model, layer, read
    )
  return drafter


def specblock(loaded: Any, options: dict[str, Any], *rest) -> Any:
  """SpecBlock with two layers and four slots; see `plain`."""
  defaults = {
    'num_layers': 2,
    'block_size': 4,
    'num_draft_tokens': 4,
    'label_shift': 1,
  }
  if options.get('taps') is None:
    defaults['taps'] = specblock_config.choose_taps(loaded.model.num_layers)
  return plain(specblock_lib.METHOD, defaults, loaded, options, *rest)
