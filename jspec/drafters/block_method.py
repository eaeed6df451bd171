# SPDX-License-Identifier: MIT
"""A member of the DFlash family, as data: which parts it fixes, which it has.

Adding one that is made of existing parts is a file of a few lines (`dfly.py`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx

from jspec.checkpoints import names
from jspec.drafters import (
  block_config,
  block_drafter,
  block_loss,
  block_names,
  borrowed,
)
from jspec.typing import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockMethod:
  """Implements `method.Method`.

  Attributes:
    name: as `model_type` says it.
    parts: fields of `BlockDrafterConfig` that it may set; the other parts stay
      off, and a checkpoint or config that names them is refused.
    fixed: fields that it sets itself.
  """

  name: str
  parts: tuple[str, ...] = ()
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def config(self, **fields) -> block_config.BlockDrafterConfig:
    """The config, from the fields that are not fixed."""
    return block_config.BlockDrafterConfig(
      method=self.name, **self.fixed, **fields
    )

  def from_json(
    self, raw: Mapping[str, Any], where: str
  ) -> block_config.BlockDrafterConfig:
    """See `Method`."""
    return block_names.from_json(self.name, self.fixed, self.parts, raw, where)

  def to_json(self, config: block_config.BlockDrafterConfig) -> dict[str, Any]:
    """See `Method`."""
    return block_names.to_json(config, self.parts)

  def rules(self, config: block_config.BlockDrafterConfig) -> list[names.Rule]:
    """See `Method`."""
    return block_names.rules(config)

  def leaves(self, drafter: Any) -> dict[str, nnx.Param]:
    """See `Method`."""
    return block_names.leaves(drafter)

  def saved(self, drafter: Any) -> dict[str, Array]:
    """See `Method`."""
    return block_names.saved(drafter)

  def make(
    self,
    config: block_config.BlockDrafterConfig,
    loss_config: block_loss.LossConfig | None,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ) -> block_drafter.BlockDrafter:
    """See `Method`."""
    return block_drafter.BlockDrafter(
      config, loss_config or block_loss.LossConfig(), arrays, key
    )
