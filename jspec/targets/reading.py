# SPDX-License-Identifier: MIT
"""A target straight from its files to where it lies: no copy of it in between.

An empty model says which arrays there are; each is read shard by shard, in the
dtype asked for, with the columns in the order of shards (`nn.fused`). A shard
that several devices hold is read once. Host memory holds one shard beside what
lies on devices; threads share the work on it. On a CPU, whose device is the
host, the shard becomes the array, so each thread reads an array of its own.
`quantising` does the same for weights of eight bits.
"""

import concurrent.futures
import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jspec import errors
from jspec.checkpoints import conversions, host_memory, lazy, names
from jspec.targets import (
  architecture,
  quantised,
  quantising,
  sharding,
  transformer,
  variables,
)
from jspec.typing import Array

DTYPES = ('float32', 'bfloat16')
# From a target without values to itself, told how it lies, and its layout: what
# `sharding.Layout` has.
Arrange = Callable[
  [transformer.Transformer], tuple[transformer.Transformer, Any]
]
# Chooses experts, which no rounding may change.
_FLOAT32 = ('expert_bias',)
# Rows and columns of an array that enter a fingerprint.
_FINGERPRINT_ROWS = 16


class Reader:
  """The arrays of a target by name, read in parts."""

  def __init__(
    self,
    config: architecture.TransformerConfig,
    rules: Collection[names.Rule],
    source: names.Source,
    *,
    ignored: Collection[str] = (),
  ):
    """Checks the table against files and architecture.

    Args:
      config: of the target.
      rules: the rename table.
      source: the files.
      ignored: tensors that hold nothing to load.

    Raises:
      errors.UserError: they do not fit, see `names.fill`.
    """
    self.config = config
    self.shapes = architecture.array_shapes(config)
    shapes = dict(self.shapes)
    if config.tied:
      del shapes['head']
    self._leaves = lazy.Leaves(rules, source, shapes, ignored=ignored)

  def read(
    self,
    name: str,
    box: conversions.Box,
    out: np.ndarray,
    num_threads: int | None = None,
  ) -> None:
    """Reads a part of an array, as `lazy.Leaves.read`."""
    read = functools.partial(self._leaves.read, num_threads=num_threads)
    if name == 'head' and self.config.tied:
      # Materialised [in, out]: on a CPU the transposed matmul is slower.
      read('embedding', box[::-1], out.T)
      return
    read(name, box, out)
    scale = self.config.embedding_scale
    if name == 'embedding' and scale != 1:
      if out.dtype == np.float32:
        out *= scale
      else:
        out[...] = out.astype(np.float32) * np.float32(scale)

  def fingerprint(self) -> str:
    """16 hex digits over the architecture and a corner of each array."""
    corners = {}
    for name, shape in self.shapes.items():
      box = tuple(slice(0, min(size, _FINGERPRINT_ROWS)) for size in shape)
      corners[name] = np.empty([part.stop for part in box], np.float32)
      self.read(name, box, corners[name])
    return fingerprint(self.config, corners)


def fingerprint(
  config: architecture.TransformerConfig, arrays: dict[str, np.ndarray]
) -> str:
  """Returns 16 hex digits over the architecture and a corner of each array."""
  digest = hashlib.sha256()
  shape = {
    'num_layers': config.num_layers,
    'width': config.width,
    'ff_width': config.ff_width,
    'num_heads': config.num_heads,
    'num_kv_heads': config.num_kv_heads,
    'head_width': config.head_width,
    'vocab_size': config.vocab_size,
    'rope': [config.rope.kind, config.rope.base, config.rope.factor],
    'tied': config.tied,
    **architecture.deviations(config),
  }
  digest.update(json.dumps(shape, sort_keys=True).encode())
  for name in sorted(arrays):
    corner = arrays[name][(slice(0, _FINGERPRINT_ROWS),) * arrays[name].ndim]
    values = np.ascontiguousarray(corner, dtype='<f4')
    digest.update(name.encode())
    digest.update(values.tobytes())
  return digest.hexdigest()[:16]


def checked(dtype: object) -> str:
  """The dtype of a target's arrays.

  Raises:
    UserError: no target is read in it.
  """
  if dtype not in DTYPES:
    raise errors.UserError(
      f'dtype={dtype!r}: expected one of {", ".join(DTYPES)}'
    )
  return dtype


def read(
  reader: Reader,
  *,
  dtype: str = DTYPES[0],
  weights: str | None = None,
  cache_form: str | None = None,
  mesh: Mesh | None = None,
  arrange: Arrange | None = None,
  is_split: bool = False,
  has_layers: bool = True,
  on_array: Callable[[int, int], None] | None = None,
) -> transformer.Transformer:
  """Reads a target to its place.

  Args:
    reader: of its files.
    dtype: of the arrays, one of `DTYPES`; what the files hold is rounded.
    weights: form of the matrices of layers (`targets.quantised`); None: of
      `dtype`. What is rounded to it is what the files hold, not `dtype`.
    cache_form: of the target's cache (`cache.forms`).
    mesh: with an axis `sharding.AXIS`; None: the first device.
    arrange: says how arrays lie where `mesh` does not, by `sharding.arrange`.
    is_split: keep every layer's weights apart, see `nn.stack`.
    has_layers: False gives an outline, whose layers hold `ShapeDtypeStruct`s:
      for who borrows the embedding and the head.
    on_array: called with (numbers placed, numbers in all), for a progress bar.

  Raises:
    errors.UserError: another dtype or form, or sizes that do not share out
      evenly.
  """
  checked(dtype)
  quantised.checked(weights)
  target = _empty(reader.config, weights, cache_form, is_split)
  layout = None
  if mesh is not None:
    layout = sharding.arrange(target, sharding.checked(mesh))
  elif arrange is not None:
    target, layout = arrange(target)
  found = [
    (path, param)
    for path, param in nnx.to_flat_state(nnx.state(target))
    if has_layers or path[0] != 'layers'
  ]
  total = sum(math.prod(param.shape) for _, param in found)
  is_host = _platform(layout) == 'cpu'
  width = jax.numpy.dtype(dtype).itemsize
  arena = host_memory.Arena(
    sum(
      leaf.size * min(width, leaf.dtype.itemsize)
      for leaf in jax.tree.leaves([param for _, param in found])
    )
  )
  empty = arena.empty if is_host else host_memory.empty

  def one(path):
    name = path[-1]
    variable = variables.Variable(
      reader,
      name,
      _rows(reader.config, target, path),
      layout,
      empty,
      1 if is_host else None,
    )
    if weights is not None and name in quantised.AXES:
      return quantising.read(variable, weights)
    return _array(variable, _dtype(name, dtype))

  done, paths = 0, [path for path, _ in found]
  with concurrent.futures.ThreadPoolExecutor(host_memory.threads()) as pool:
    # Who placed arrays elsewhere by a context (`jax.default_device`) did so for
    # this thread alone.
    arrays = (pool.map if is_host else map)(one, paths)
    for (_, param), array in zip(found, arrays, strict=True):
      param.set_value(array)
      done += array.size
      if on_array is not None:
        on_array(done, total)
  return target


def _platform(layout):
  if layout is None:
    return jax.default_backend()
  return layout.mesh.devices.flat[0].platform


def is_outline(target: nnx.Module) -> bool:
  """Whether layers are shapes alone; see `has_layers` of `read`."""
  return any(
    isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(target)
  )


def layer(reader: Reader, index: int) -> dict[str, np.ndarray]:
  """The arrays of one layer in float32, by name.

  Args:
    reader: of the files.
    index: 0-based, of a layer there is.
  """
  found = {}
  for name, has in architecture.layers_with(reader.config).items():
    if index not in has:
      continue
    row, shape = has.index(index), reader.shapes[name][1:]
    found[name] = np.empty(shape, np.float32)
    box = (slice(row, row + 1), *(slice(0, size) for size in shape))
    reader.read(name, box, found[name][None])
  return found


def abstract(
  config: architecture.TransformerConfig,
  *,
  dtype: str = 'float32',
  mesh: Mesh | None = None,
) -> transformer.Transformer:
  """The target that `read` would give, by the shapes of its arrays alone.

  For programs that are compiled where neither weights nor devices are.

  Args:
    config: of the target.
    dtype: as of `read`.
    mesh: as of `read`; every shape says how it lies there.

  Raises:
    errors.UserError: sizes that do not share out evenly.
  """
  target = _empty(config, None, None, is_split=False)
  layout = None
  if mesh is not None:
    layout = sharding.arrange(target, sharding.checked(mesh))
  for path, variable in nnx.to_flat_state(nnx.state(target)):
    name = path[-1]
    shape, lies = variable.shape, None
    if layout is not None:
      lies = layout.sharding(name, shape, is_row=False)
    variable.set_value(
      jax.ShapeDtypeStruct(shape, _dtype(name, dtype), sharding=lies)
    )
  return target


def _dtype(name, dtype):
  return jax.numpy.dtype('float32' if name in _FLOAT32 else dtype)


def _empty(config, weights, cache_form, is_split):
  """The target without values."""

  def make():
    shapes = architecture.array_shapes(config)
    zeros = {name: jax.numpy.zeros(shape) for name, shape in shapes.items()}
    return transformer.Transformer(
      config,
      quantised.arrays(zeros, weights),
      is_split=is_split,
      cache_form=cache_form,
    )

  return jax.eval_shape(make)


def _rows(config, target, path) -> list[int] | int | None:
  """Which rows of the stacked array a variable holds.

  A number for one layer without the axis, None for an array outside layers.
  """
  if path[0] != 'layers':
    return None
  has = architecture.layers_with(config)[path[-1]]
  if isinstance(target.layers, nnx.List):
    return has.index(path[1])
  if path[1] != 'groups':
    return list(range(len(has)))
  kinds = target.layers.kinds
  return [has.index(i) for i, kind in enumerate(kinds) if kind == path[2]]


def _array(variable: variables.Variable, dtype: np.dtype) -> Array:
  """Reads one array of the model, shard by shard."""
  shape = variable.shape
  lies, shards = variable.lies(shape), []
  for box, devices in variables.places(shape, lies):
    host = variable.empty(variables.sizes(box), dtype)
    variable.read(box, host)
    shards += variables.put(host, devices)
  return variables.assembled(shape, lies, shards)
