# SPDX-License-Identifier: MIT
"""The metadata of a GGUF file that describe the model, each asked for once."""

from collections.abc import Collection, Mapping
from typing import Any

from jspec import errors

# Namespaces that say nothing about the architecture.
_OTHER_NAMESPACES = ('general.', 'tokenizer.', 'quantize.')

_IGNORED = (
  # Whether the scaling was trained or added later.
  'rope.scaling.finetuned',
  'tensor_data_layout',
)


class Fields:
  """The keys under the architecture's name, such as `llama.block_count`."""

  def __init__(self, metadata: Mapping[str, Any], where: str, arch: str):
    """Holds the keys; `where` names the file in messages."""
    self._left = {
      key: value
      for key, value in metadata.items()
      if not key.startswith(_OTHER_NAMESPACES)
    }
    self.where, self.arch = where, arch

  def take(self, key: str, default: Any = None) -> Any:
    """A value; one without a default must be there."""
    value = self._left.pop(f'{self.arch}.{key}', default)
    if value is None:
      raise errors.UserError(f'{self.where}: {self.arch}.{key} is missing')
    return value

  def count(self, key: str, default: int | None = None) -> int:
    """A whole number above 0."""
    value = self.take(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
      raise errors.UserError(
        f'{self.where}: {self.arch}.{key} is {value!r}, not a count (one value'
        ' for all layers)'
      )
    return value

  def optional_count(self, key: str) -> int | None:
    """As `count`; absent and 0 are None."""
    if self._left.get(f'{self.arch}.{key}', 0) == 0:
      self._left.pop(f'{self.arch}.{key}', None)
      return None
    return self.count(key)

  def number(self, key: str, default: float | None = None) -> float:
    """A number."""
    value = self.take(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise errors.UserError(
        f'{self.where}: {self.arch}.{key} is {value!r}, not a number'
      )
    return float(value)

  def expect(self, key: str, expected: Any) -> None:
    """Takes a value that must be this one where it is there."""
    value = self.take(key, expected)
    if value != expected:
      raise errors.UserError(
        f'{self.where}: {self.arch}.{key} {value!r} is not supported here,'
        f' only {expected!r}'
      )

  def finish(self, ignored: Collection[str] = ()) -> None:
    """Refuses, by name, what nobody asked for."""
    # A file in one piece may carry the split keys of its origin.
    if self._left.pop('split.count', 0) > 1:
      raise errors.UserError(
        f'{self.where} is one of several pieces; merge them with llama.cpp'
        ' gguf-split --merge'
      )
    known = {f'{self.arch}.{key}' for key in (*_IGNORED, *ignored)}
    rest = sorted(
      key
      for key in self._left
      if key not in known and not key.startswith('split.')
    )
    if rest:
      raise errors.UserError(
        f'{self.where}: metadata {", ".join(rest)} is not known to jspec and'
        ' may change the model'
      )
