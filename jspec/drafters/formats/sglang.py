# SPDX-License-Identifier: MIT
"""EAGLE-3 heads as servers name them: the layer is `layers.0`.

Otherwise SafeAILab's, see `eagle`; the embedding is the server's and is not
written.
"""

from typing import Any

from jspec.drafters.formats import copies, eagle, shapes

_THEIRS, _OURS = 'layers.0.', 'midlayer.'


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  new = {name: _swap(name, _THEIRS, _OURS) for name in tensors}
  called = {ours: name for name, ours in new.items()}
  renamed = {new[name]: values for name, values in tensors.items()}
  return eagle.read(config, renamed, extra, target, called)


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  del target  # Nothing of it is copied.
  out, tensors = eagle.write(config, tensors)
  return out, {_swap(name, _OURS, _THEIRS): v for name, v in tensors.items()}


def _swap(name, old, new):
  return new + name.removeprefix(old) if name.startswith(old) else name
