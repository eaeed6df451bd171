# SPDX-License-Identifier: MIT
"""`Accepted`: what every rule returns."""

import dataclasses

import jax

from jspec.typing import Array, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accepted:
  """What a round keeps.

  Attributes:
    path: node indices from the anchor down; the first num_accepted + 1 are kept
      (they become cache rows), the rest is 0.
    num_accepted: draft tokens kept, without the bonus.
    tokens: the accepted draft tokens, then the bonus (num_accepted + 1 tokens
      to commit), then zeros.
  """

  path: Int[Array, 'B T']
  num_accepted: Int[Array, 'B']
  tokens: Int[Array, 'B T']
