# SPDX-License-Identifier: MIT
"""Where training blocks start, and which of their tokens are labels.

An anchor at token a has the labels a + 1, a + 2, ... in both slot conventions,
so one rule serves all block drafters: an anchor needs its first label, nothing
more. The anchor itself may be the last prompt token (in decoding it is), and a
block may hang over the end of an answer: what counts is the contiguous run of
labels behind the anchor.

  tokens      p p p a a a a .        p prompt, a answer, . padding
  can anchor  - - x x x x - -
  depth 1..3  of the anchor at the last x:  1 label, then none

Shapes are static: always A anchors a row, of which `keep` says the real ones.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Int, Key


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Anchors:
  """Start tokens of the blocks of each sequence.

  Attributes:
    index: token index of each anchor, ascending; 0 where there is none.
    keep: whether the anchor is real.
    is_every: every token is an anchor, in its order; known when traced.
  """

  index: Int[Array, 'B A']
  keep: Bool[Array, 'B A']
  is_every: bool = dataclasses.field(default=False, metadata={'static': True})


def candidates(
  is_label: Bool[Array, 'B S'], segments: Int[Array, 'B S']
) -> Bool[Array, 'B S']:
  """Tokens followed by a label of their own document."""
  follows = is_label[:, 1:] & (segments[:, 1:] == segments[:, :-1])
  follows &= segments[:, 1:] > 0
  return jnp.pad(follows, ((0, 0), (0, 1)))


def sample(
  is_label: Bool[Array, 'B S'],
  segments: Int[Array, 'B S'],
  num_anchors: int,
  key: Key[Array, ''],
) -> Anchors:
  """Draws anchors uniformly without replacement; all of them if they are few.

  A row without candidates gets no anchor; nothing downstream divides by zero.
  """
  return draw(candidates(is_label, segments), num_anchors, key)


def draw(
  allowed: Bool[Array, 'B S'], num_anchors: int, key: Key[Array, '']
) -> Anchors:
  """The drawing of `sample`, from any tokens."""
  rows, length = allowed.shape
  scores = jax.random.uniform(key, (rows, length))
  scores = jnp.where(allowed, scores, -1.0)
  num_drawn = min(num_anchors, length)
  drawn, index = jax.lax.top_k(scores, num_drawn)
  keep = drawn >= 0
  # Ascending, the missing ones last.
  index = jnp.sort(jnp.where(keep, index, length), axis=1)
  padding = ((0, 0), (0, num_anchors - num_drawn))
  index = jnp.pad(index, padding, constant_values=length)
  keep = index < length
  return Anchors(jnp.where(keep, index, 0).astype(jnp.int32), keep)


def label_index(
  anchors: Anchors, num_labels: int, length: int
) -> tuple[Int[Array, 'B A G'], Bool[Array, 'B A G']]:
  """Token index of the labels at depth 1..G, clipped; whether they exist."""
  index = anchors.index[..., None] + jnp.arange(1, num_labels + 1)
  exists = anchors.keep[..., None] & (index < length)
  return jnp.minimum(index, length - 1), exists


def label_run(
  anchors: Anchors,
  is_label: Bool[Array, 'B S'],
  segments: Int[Array, 'B S'],
  num_labels: int,
) -> tuple[Int[Array, 'B A G'], Bool[Array, 'B A G']]:
  """Index and mask of the contiguous run of labels behind every anchor.

  The run ends at the first token that is no label, at the end of the anchor's
  document and at the end of the sequence.
  """
  index, exists = label_index(anchors, num_labels, is_label.shape[1])
  own = gather(segments, anchors.index)
  exists &= gather(is_label, index)
  exists &= gather(segments, index) == own[..., None]
  return index, jnp.cumprod(exists, axis=-1).astype(bool)


def rows(anchors: Anchors) -> Int[Array, 'B A']:
  """The anchors as attention takes them: -1 where there is none."""
  return jnp.where(anchors.keep, anchors.index, -1)


def near(values: Array, anchors: Anchors, distances: Sequence[int]) -> Array:
  """`values` [B, S, ...] at distances from anchors, as [B, A, distances, ...].

  What is before the first token or behind the last is something finite. Where
  every token is an anchor the sequence is moved as a whole: over devices that
  share out tokens only what passes their borders goes from one to another.
  """
  if anchors.is_every:
    return jnp.stack([moved(values, d) for d in distances], axis=2)
  index = anchors.index[..., None] + jnp.asarray(distances)
  return gather(values, jnp.clip(index, 0, values.shape[1] - 1))


def moved(values: Array, distance: int) -> Array:
  """`values` [B, S, ...] of the tokens so far behind each; 0 for none."""
  others = [(0, 0, 0)] * (values.ndim - 2)
  ends = [(0, 0, 0), (-distance, distance, 0), *others]
  return jax.lax.pad(values, jnp.zeros((), values.dtype), ends)


def gather(values: Array, index: Int[Array, 'B *any']) -> Array:
  """`values` [B, S, ...] at the tokens `index`, as [B, *any, ...]."""
  rest = values.shape[2:]
  flat = index.reshape(index.shape[0], -1, *(1,) * len(rest))
  found = jnp.take_along_axis(values, flat, axis=1)
  return found.reshape(*index.shape, *rest)
