# SPDX-License-Identifier: MIT
"""The only shape vocabulary: array aliases and the axis letters of jspec.

  B  batch rows             T  nodes (tokens) in a row
  S  cached tokens          D / F  model width / feed-forward width
  N / K  query / key-value heads      H  head width
  V  vocabulary             L / C  layers / captured layers
  P  pages                  R  rows in a page
  M  pages in a row's table W  32-bit words of a node's ancestor mask
  G  draft depth            A  anchors
  Q  support of a sparse draft law

Annotations are two-argument jaxtyping strings, `Float[Array, 'B T D']`; the
tests execute them.
"""

from jaxtyping import (
  Array,
  BFloat16,
  Bool,
  Float,
  Int,
  Key,
  PyTree,
  Shaped,
  UInt32,
)

__all__ = [
  'Array',
  'BFloat16',
  'Bool',
  'Float',
  'Int',
  'Key',
  'PyTree',
  'Shaped',
  'UInt32',
]
