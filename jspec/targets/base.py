# SPDX-License-Identifier: MIT
"""The `Target` interface: what drafters, decoding and training ask of a model.

A target is a flax nnx module that holds parameters only. Everything that
changes while decoding (the paged cache, lengths) is a value passed in; scoring
reads it and never writes it.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax

from jspec import packing as packing_lib
from jspec.cache import paged
from jspec.typing import Array, Float, Int, UInt32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scored:
  """What one pass over a row's nodes yields.

  Attributes:
    hidden: states after the final norm; `Target.logits` turns them into logits.
    taps: residual stream after each captured layer (0-based ids, before any
      final norm), in the order asked for.
    k, v: the key (rotated) and value rows of the nodes, to be committed if they
      are accepted; as the cache will give them back, so that keeping them
      changes nothing.
  """

  hidden: Float[Array, 'B T D']
  taps: Float[Array, 'B T C D']
  k: Float[Array, 'L B T K H']
  v: Float[Array, 'L B T K H']


@runtime_checkable
class Target(Protocol):
  """A frozen decoder-only language model.

  Attributes:
    num_layers: L.
    num_kv_heads: K, of a row in the cache.
    head_width: H, of a row in the cache.
    width: D.
    vocab_size: V.
    max_len: positions the model was made for.
    cache_form: in which the cache keeps its rows (`cache.forms`); None: as they
      are computed.
  """

  num_layers: int
  num_kv_heads: int
  head_width: int
  width: int
  vocab_size: int
  max_len: int
  cache_form: str | None

  def embed(self, tokens: Int[Array, '*batch']) -> Float[Array, '*batch D']:
    """Input embeddings, scaled as the model scales them."""

  def logits(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch V']:
    """The LM head on states that went through the final norm; float32."""

  def score(
    self,
    tokens: Int[Array, 'B T'],
    positions: Int[Array, 'B T'],
    ancestors: UInt32[Array, 'B T W'],
    cache: paged.PagedCache,
    taps: tuple[int, ...],
    packing: packing_lib.Packing | None = None,
  ) -> Scored:
    """Runs the nodes over the committed prefix and their own ancestors.

    With `packing` all rows' nodes lie on one axis: everything but the cache is
    of one row of Q nodes ([1, Q, ...]), which of them form which row of the
    cache `packing` says, and ancestors are counted within each row.
    """

  def encode(
    self,
    tokens: Int[Array, 'B S'],
    positions: Int[Array, 'B S'],
    segments: Int[Array, 'B S'],
    taps: tuple[int, ...],
  ) -> tuple[Float[Array, 'B S D'], Float[Array, 'B S C D']]:
    """Runs whole sequences without a cache (training, capture).

    Token s sees the tokens at or before s of its own segment; segment 0 is
    padding. Returns the states after the final norm and the taps.
    """
