# SPDX-License-Identifier: MIT
"""What a target runs while it is served, by shapes alone, on a mesh.

  decode    the next token of every row
  verify    the nodes of every row, as behind a draft
  prefill   a chunk of one prompt, which needs no logits

Each scores, takes the likeliest tokens and writes the rows of the cache, which
is donated; the target and its pages are shared out as a server shares them out
(`targets.sharding`, `serve.placement`). Sampling, plans and drafters, which a
server has besides, are small beside them and left out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import errors, slices, tree
from jspec.cache import paged
from jspec.kernels import choose
from jspec.targets import architecture, reading, sharding

DTYPE = 'bfloat16'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
  """What is served at once.

  Attributes:
    rows: B.
    nodes: T of a row that is verified.
    context: cached tokens of a row.
    chunk: tokens of a prompt that go through at once.
    page_size: R; it divides `context`.
  """

  rows: int = 16
  nodes: int = 8
  context: int = 4096
  chunk: int = 256
  page_size: int = 128

  def __post_init__(self):
    if self.context % self.page_size:
      raise errors.UserError(
        f'context {self.context} is no number of pages of {self.page_size}'
        ' tokens: make it a multiple'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A function and the shapes it is called with, on a mesh.

  Attributes:
    name: of the module docstring.
    tokens: that go through.
    function: takes `arguments`.
    arguments: shapes that say how they lie; the first is donated.
    outside: the same for what is not in the loop over layers.
    has_logits: whether the head is used.
  """

  name: str
  tokens: int
  function: Callable[..., Any]
  arguments: tuple[Any, ...]
  outside: tuple[Any, ...]
  has_logits: bool

  def lower(self, mesh: Mesh) -> Any:
    """Traces and lowers it as a server does."""
    return _lower(self.function, self.arguments, mesh)

  def lower_outside(self, mesh: Mesh) -> Any:
    """The same without the layers, which are given what they give."""
    return _lower(_outside, self.outside, mesh)


def cache(
  config: architecture.TransformerConfig, mesh: Mesh, load: Load
) -> paged.PagedCache:
  """The cache of all rows, with a page for every token they may have."""
  heads, width = architecture.cached_row(config)
  lies = _on(mesh, None, None, sharding.attention_axis(heads, mesh))
  num_pages = load.rows * load.context // load.page_size
  pool = jax.ShapeDtypeStruct(
    (config.num_layers, num_pages, heads, load.page_size, width),
    jnp.dtype(DTYPE),
    sharding=lies,
  )
  return paged.PagedCache(
    paged.Pages(pool, pool, sharding=lies), _table(mesh, load, load.rows)
  )


def all_programs(
  config: architecture.TransformerConfig, mesh: Mesh, load: Load
) -> list[Program]:
  """The programs of the module docstring.

  Args:
    config: of the target.
    mesh: of `sharding.checked`.
    load: what is served.

  Raises:
    UserError: the target does not share out over the mesh.
  """
  target = reading.abstract(config, dtype=DTYPE, mesh=mesh)
  pool = cache(config, mesh, load)

  def program(name, rows, nodes, *, has_logits=True):
    table = _table(mesh, load, rows)
    state = dataclasses.replace(pool, table=table)
    tokens = _integers(mesh, rows, nodes)
    counts = _integers(mesh, rows)
    row = _rows(config, mesh, rows, nodes)
    hidden = jax.ShapeDtypeStruct(
      (rows, nodes, config.width), jnp.dtype(DTYPE), sharding=_on(mesh)
    )
    head = target if has_logits else None
    return Program(
      name=name,
      tokens=rows * nodes,
      function=_score if has_logits else _read,
      arguments=(state, target, tokens, counts),
      outside=(state, head, hidden, row, row, counts),
      has_logits=has_logits,
    )

  return [
    program('decode', load.rows, 1),
    program('verify', load.rows, load.nodes),
    program('prefill', 1, load.chunk, has_logits=False),
  ]


def read_bytes(
  config: architecture.TransformerConfig, program: Program, load: Load
) -> int:
  """Bytes of a device that a program has to read: weights, and what rows see.

  Of the embedding it reads a few rows, which do not count. Weights of experts
  that no token chose do.
  """
  state, target = program.arguments[:2]
  weights = [target.layers, target.final_norm]
  if program.has_logits:
    weights.append(target.head)
  seen = sum(
    min(window or load.context, load.context)
    for window in architecture.windows(config)
  )
  pages = slices.bytes_on_device(state.pages)
  all_rows = config.num_layers * load.rows * load.context
  rows = state.table.lengths.shape[0]
  return slices.bytes_on_device(weights) + pages * rows * seen // all_rows


# --- What is compiled --------------------------------------------------------


def _score(cache, target, tokens, num_rows):
  """A round: the cache with the committed rows, and the likeliest tokens."""
  cache, hidden = _read(cache, target, tokens, num_rows)
  return cache, _likeliest(target, hidden)


def _read(cache, target, tokens, num_rows):
  """The nodes of every row go through; the cache, and their normed states."""
  rows, nodes = tokens.shape
  steps = jnp.arange(nodes, dtype=jnp.int32)
  scored = target.score(
    tokens,
    cache.table.lengths[:, None] + steps,
    tree.chain_words(rows, nodes),
    cache,
    (),
  )
  return _commit(cache, scored.k, scored.v, num_rows), scored.hidden


def _outside(cache, target, hidden, k, v, num_rows):
  """What `_score` does when the layers are done."""
  cache = _commit(cache, k, v, num_rows)
  return cache, None if target is None else _likeliest(target, hidden)


def _commit(cache, k, v, num_rows):
  rows, nodes = k.shape[1:3]
  path = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), (rows, nodes))
  return cache.commit(k, v, path, num_rows)


def _likeliest(target, hidden):
  return jnp.argmax(target.logits(hidden), axis=-1)


def _lower(function, arguments, mesh):
  pages = arguments[0].pages
  given = jax.tree.map(lambda _: _on(mesh), arguments[0])
  given = dataclasses.replace(
    given,
    pages=dataclasses.replace(
      given.pages, k=pages.k.sharding, v=pages.v.sharding
    ),
  )
  jitted = jax.jit(function, donate_argnums=0, out_shardings=(given, _on(mesh)))
  # As `serve.programs` lowers them.
  with (
    choose.compiling_for(mesh.devices.flat[0].platform, mesh.size),
    jax.default_matmul_precision('highest'),
  ):
    return jitted.lower(*arguments)


# --- Shapes ------------------------------------------------------------------


def _on(mesh, *spec):
  return NamedSharding(mesh, PartitionSpec(*spec))


def _integers(mesh, *sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.int32, sharding=_on(mesh))


def _table(mesh, load, rows):
  return paged.PageTable(
    page_ids=_integers(mesh, rows, load.context // load.page_size),
    lengths=_integers(mesh, rows),
    dropped=jax.ShapeDtypeStruct((), jnp.bool_, sharding=_on(mesh)),
  )


def _rows(config, mesh, rows, nodes):
  """Keys, or values, of the nodes of all layers."""
  heads, width = architecture.cached_row(config)
  axis = sharding.attention_axis(heads, mesh)
  return jax.ShapeDtypeStruct(
    (config.num_layers, rows, nodes, heads, width),
    jnp.dtype(DTYPE),
    sharding=_on(mesh, None, None, None, axis),
  )
