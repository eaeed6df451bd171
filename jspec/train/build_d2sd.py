# SPDX-License-Identifier: MIT
"""Builds a D2SD drafter: the options of a block drafter, and its prefixes."""

import types
from typing import Any

import numpy as np

from jspec import errors
from jspec.drafters import d2sd as d2sd_lib
from jspec.drafters import d2sd_drafter, d2sd_loss
from jspec.train import build
from jspec.typing import Array, Key

_PREFIX_DECAY = 'prefix_decay'


def d2sd(
  loaded: Any,
  options: dict[str, Any],
  draft_token_ids: np.ndarray | None,
  key: Key[Array, ''],
) -> d2sd_drafter.D2SD:
  """A D2SD drafter of the target's width and heads.

  Args:
    loaded: the target.
    options: fields of `build.BlockOptions`, where `parts` may have `num_cuts`
      and `shared`; and `prefix_decay`, see `d2sd_loss.LossConfig`.
    draft_token_ids: the reduced vocabulary or None.
    key: of the weights.
  """
  rest = dict(options)
  decay = rest.pop(_PREFIX_DECAY, d2sd_loss.LossConfig().prefix_decay)
  if isinstance(decay, bool) or not isinstance(decay, float | int):
    raise errors.UserError(
      f'drafter.options.{_PREFIX_DECAY} is {decay!r} but must be a number'
    )

  def make(config, of_block, arrays, key):
    loss = d2sd_loss.LossConfig(block=of_block, prefix_decay=decay)
    return d2sd_lib.METHOD.make(config, loss, arrays, key)

  method = types.SimpleNamespace(
    name=d2sd_lib.METHOD.name,
    parts=d2sd_lib.METHOD.parts,
    config=d2sd_lib.METHOD.config,
    make=make,
  )
  return build.block(method, loaded, rest, draft_token_ids, key)
