# SPDX-License-Identifier: MIT
"""Where activations lie while a training step is traced on a mesh.

Models know no mesh; the trainer says it around what it traces (`over`), and
models name what they hold:

  stream   [B, T, ...]      rows and tokens shared out, the rest whole
  context  [B, S, K, ...]   rows shared out, all tokens of a row together
  weights  of a layer       gathered from where they are stored, but for what
  columns  of a matrix      columns, heads and experts share out
  lookup   in a table       columns share out, then tokens

Outside of `over`, all of them give back what they were given. XLA would place
activations too, but where a weight and a batch are shared out over the same
devices it may move the batch, which is larger.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec.typing import Array, PyTree

FREE = PartitionSpec.UNCONSTRAINED
_INSIDE = ('value', 'values')


@dataclasses.dataclass(frozen=True)
class Spread:
  """The axes of a mesh by what they share out.

  Attributes:
    mesh: the devices.
    rows: axes of the rows of a batch.
    tokens: axis of the tokens of a row; None: they lie together.
    heads: axis of heads and of feed-forward columns; None likewise.
    experts: axis of the experts of a mixture; None likewise.
    weight: where a weight of that name and shape lies when it is used.
  """

  mesh: Mesh
  rows: tuple[str, ...]
  tokens: str | None
  heads: str | None
  experts: str | None
  weight: Callable[[str, tuple[int, ...]], PartitionSpec]

  def shared(self, axis: str | None, size: int) -> str | None:
    """The axis, where so many of something share out over it evenly."""
    return axis if axis and size % self.mesh.shape[axis] == 0 else None

  def batch(self, shape: Sequence[int], *, has_tokens: bool = True) -> tuple:
    """Axes of the first two dimensions of an activation [B, T, ...]."""
    size = 1
    for axis in self.rows:
      size *= self.mesh.shape[axis]
    rows = self.rows if self.rows and shape[0] % size == 0 else None
    if not has_tokens or len(shape) < 2:
      return (rows,)
    return rows, self.shared(self.tokens, shape[1])


_NOW: contextvars.ContextVar[Spread | None] = contextvars.ContextVar(
  'spread', default=None
)


@contextlib.contextmanager
def over(spread: Spread) -> Iterator[None]:
  """What is traced inside is for that mesh."""
  token = _NOW.set(spread)
  try:
    yield
  finally:
    _NOW.reset(token)


def now() -> Spread | None:
  """What is traced now is for this; None: for one device, or for nobody."""
  return _NOW.get()


def stream(x: Array) -> Array:
  """Rows and tokens over the mesh, all else whole."""
  spread = now()
  if spread is None:
    return x
  return _put(x, spread, PartitionSpec(*spread.batch(x.shape)))


def context(x: Array) -> Array:
  """Rows over the mesh, all tokens together; heads where they are."""
  spread = now()
  if spread is None:
    return x
  rows = spread.batch(x.shape, has_tokens=False)
  rest = (FREE,) * (x.ndim - 2)
  return _put(x, spread, PartitionSpec(*rows, None, *rest))


def lookup(table: Array, tokens: Array) -> Array:
  """Rows of a table [V, D] at tokens [B, T, ...], as [B, T, ..., D].

  Where the mesh shares out tokens a device looks all of them up in columns of
  its own, and takes whole rows of its own tokens for those of others. By rows
  of the table each device would have a summand of all that is looked up.
  """
  spread = now()
  axis = (
    None if spread is None else spread.shared(spread.tokens, table.shape[1])
  )
  if axis is None:
    return table[tokens]
  lies = PartitionSpec(spread.shared(spread.heads, table.shape[0]), axis)
  rows = spread.batch(tokens.shape, has_tokens=False)
  whole = (None,) * (tokens.ndim - 1)
  found = _put(table, spread, lies)[tokens]
  return stream(_put(found, spread, PartitionSpec(*rows, *whole, axis)))


def flat(x: Array) -> Array:
  """[B, A, G, ...] as [B, A G, ...], for a loop over pieces of the second axis.

  Where the mesh shares out A it gives [B, shards, A G / shards, ...], so that
  every device loops over its own.
  """
  spread, rest = now(), x.shape[3:]
  axis = None if spread is None else spread.shared(spread.tokens, x.shape[1])
  if axis is None:
    return x.reshape(x.shape[0], -1, *rest)
  pieces = x.reshape(x.shape[0], spread.mesh.shape[axis], -1, *rest)
  return stream(pieces)


def columns(weight: Array, num_units: int) -> Array:
  """A matrix [D, F] by columns, of which so many units stay whole."""
  spread = now()
  if spread is None:
    return weight
  axis = spread.shared(spread.heads, num_units)
  return _put(weight, spread, PartitionSpec(None, axis))


def weights(layer: PyTree) -> PyTree:
  """The weights of one layer as they are used, by their names."""
  spread = now()
  if spread is None:
    return layer

  def use(path, array):
    return _put(array, spread, spread.weight(name(path), array.shape))

  return jax.tree_util.tree_map_with_path(use, layer)


def name(path: Sequence) -> str:
  """The name of an array, by its path in a module, a state or a dict."""
  text = jax.tree_util.keystr(tuple(path), simple=True, separator='.')
  # Of a weight of eight bits the values go by its name; scales are `scale`.
  parts = [part for part in text.split('.') if part not in _INSIDE]
  # Numbers are of layers that lie apart, and of the parts of a fused matrix.
  while len(parts) > 1 and parts[-1].isdigit():
    parts.pop()
  return parts[-1] if parts else ''


def _put(x, spread, spec):
  return jax.lax.with_sharding_constraint(x, NamedSharding(spread.mesh, spec))
