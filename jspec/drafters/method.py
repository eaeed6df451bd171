# SPDX-License-Identifier: MIT
"""The `Method` interface: how a drafter goes to a checkpoint and comes back.

Every method's module has a `METHOD`; `interchange` reads and writes folders
through it and knows nothing else of the drafter.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from flax import nnx

from jspec import errors
from jspec.checkpoints import names
from jspec.drafters import borrowed
from jspec.typing import Array, Key

# Field of a config -> key in config.json, where all methods agree.
KEYS = {
  'width': 'hidden_size',
  'ff_width': 'intermediate_size',
  'num_heads': 'num_attention_heads',
  'num_kv_heads': 'num_key_value_heads',
  'head_width': 'head_dim',
  'norm_eps': 'rms_norm_eps',
  'rope_base': 'rope_theta',
  'taps': 'target_layer_ids',
  'target_width': 'target_hidden_size',
  'target_num_layers': 'target_num_hidden_layers',
  'vocab_size': 'vocab_size',
  'num_draft_tokens': 'num_draft_tokens',
  'draft_vocab_size': 'draft_vocab_size',
}


@runtime_checkable
class Method(Protocol):
  """One method of drafting."""

  name: str

  def from_json(self, raw: Mapping[str, Any], where: str) -> Any:
    """The config, from the keys of config.json; refuses unknown ones."""

  def to_json(self, config: Any) -> dict[str, Any]:
    """The keys of config.json, all of them."""

  def rules(self, config: Any) -> list[names.Rule]:
    """Which tensor fills which leaf."""

  def leaves(self, drafter: Any) -> dict[str, nnx.Param]:
    """The drafter's parameters by leaf name."""

  def saved(self, drafter: Any) -> dict[str, Array]:
    """What a checkpoint holds of each leaf (input scales folded in)."""

  def make(
    self,
    config: Any,
    loss_config: Any | None,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ) -> Any:
    """A drafter with fresh weights; None takes the default loss."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainMethod:
  """A `Method` whose config is a dataclass with one key for every field.

  Attributes:
    name: as `model_type` says it.
    keys: field of the config -> key of config.json.
    config_class: the config.
    loss_class: the loss's config; its defaults are the default loss.
    drafter_class: made from (config, loss config, borrowed arrays, key); has
      `leaves` and `saved`.
    rules: makes the rename table of a config.
  """

  name: str
  keys: Mapping[str, str]
  config_class: type
  loss_class: type
  drafter_class: type
  rules: Callable[[Any], list[names.Rule]]

  def from_json(self, raw: Mapping[str, Any], where: str) -> Any:
    """See `Method`; a field without default must be there."""
    needed = {
      self.keys[field.name]
      for field in dataclasses.fields(self.config_class)
      if field.default is dataclasses.MISSING
    }
    fields = read(raw, self.keys, needed, self.name, where)
    return self.config_class(**fields)

  def to_json(self, config: Any) -> dict[str, Any]:
    """See `Method`."""
    return {key: getattr(config, name) for name, key in self.keys.items()}

  def leaves(self, drafter: Any) -> dict[str, nnx.Param]:
    """See `Method`."""
    return drafter.leaves()

  def saved(self, drafter: Any) -> dict[str, Array]:
    """See `Method`."""
    return drafter.saved()

  def make(
    self,
    config: Any,
    loss_config: Any | None,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ) -> Any:
    """See `Method`."""
    return self.drafter_class(
      config, loss_config or self.loss_class(), arrays, key
    )


def read(
  raw: Mapping[str, Any],
  keys: Mapping[str, str],
  needed: Collection[str],
  name: str,
  where: str,
) -> dict[str, Any]:
  """Fields of a config, from the keys of config.json.

  Args:
    raw: the keys; what belongs to the folder and not to the drafter is gone.
    keys: field -> key, of all there may be.
    needed: keys that must be there.
    name: of the method, for messages.
    where: the file.

  Raises:
    UserError: a key is missing or unknown.
  """
  missing = sorted(set(needed) - raw.keys())
  if missing:
    raise errors.UserError(
      f'{where} does not say {", ".join(missing)}; add the keys, as the drafter'
      ' was trained (no default is safe)'
    )
  unknown = sorted(raw.keys() - set(keys.values()))
  if unknown:
    raise errors.UserError(
      f'{where}: unknown keys {", ".join(unknown)} for a {name} drafter'
    )
  fields = {
    field: tuple(raw[key]) if isinstance(raw[key], list) else raw[key]
    for field, key in keys.items()
    if key in raw
  }
  size = fields.get('draft_vocab_size')
  if size is not None and size == fields.get('vocab_size'):
    fields['draft_vocab_size'] = None
  return fields
