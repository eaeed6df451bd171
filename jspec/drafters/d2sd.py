# SPDX-License-Identifier: MIT
"""D2SD: two block drafters, or one model as both (arXiv 2606.04446).

What it does is in `d2sd_drafter`, how it is trained in `d2sd_loss`; here is how
it is saved. A second drafter's tensors are named as the first's, behind
`second.`; `shared` in config.json says whether there is one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx

from jspec import errors
from jspec.checkpoints import names
from jspec.drafters import (
  block_config,
  block_names,
  borrowed,
  d2sd_drafter,
  d2sd_loss,
)
from jspec.typing import Array, Key

_SECOND = 'second.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class D2SDMethod:
  """Implements `method.Method`; a second drafter's tensors have a prefix."""

  name: str = 'd2sd'
  parts: tuple[str, ...] = ('num_cuts', 'shared')

  def config(self, **fields) -> block_config.BlockDrafterConfig:
    """The config, from all fields but the method."""
    return block_config.BlockDrafterConfig(method=self.name, **fields)

  def from_json(
    self, raw: Mapping[str, Any], where: str
  ) -> block_config.BlockDrafterConfig:
    """See `Method`."""
    missing = [name for name in self.parts if name not in raw]
    if missing:
      raise errors.UserError(
        f'{where} does not say {", ".join(missing)}: how many branches a block'
        ' gets, and whether one model (true) or two draft them; add the keys'
      )
    return block_names.from_json(self.name, {}, self.parts, raw, where)

  def to_json(self, config: block_config.BlockDrafterConfig) -> dict[str, Any]:
    """See `Method`."""
    return block_names.to_json(config, self.parts)

  def rules(self, config: block_config.BlockDrafterConfig) -> list[names.Rule]:
    """See `Method`."""
    rules = block_names.rules(config)
    if config.shared:
      return rules
    return rules + [
      dataclasses.replace(
        rule, source=_SECOND + rule.source, leaf=_SECOND + rule.leaf
      )
      for rule in rules
    ]

  def leaves(self, drafter: d2sd_drafter.D2SD) -> dict[str, nnx.Param]:
    """See `Method`."""
    return _of_all(block_names.leaves, drafter)

  def saved(self, drafter: d2sd_drafter.D2SD) -> dict[str, Array]:
    """See `Method`."""
    return _of_all(block_names.saved, drafter)

  def make(
    self,
    config: block_config.BlockDrafterConfig,
    loss_config: d2sd_loss.LossConfig | None,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ) -> d2sd_drafter.D2SD:
    """See `Method`."""
    return d2sd_drafter.D2SD(
      config, loss_config or d2sd_loss.LossConfig(), arrays, key
    )


METHOD = D2SDMethod()


def _of_all(names_of, drafter):
  found = dict(names_of(drafter.first))
  if drafter.second is not None:
    others = names_of(drafter.second)
    found |= {_SECOND + name: value for name, value in others.items()}
  return found
