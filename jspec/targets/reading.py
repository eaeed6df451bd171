# SPDX-License-Identifier: MIT
"""A target straight from its files to where it lies: no copy of it in between.

An empty model says which arrays there are; each is read shard by shard, in the
dtype asked for, with the columns in the order of shards (`nn.fused`). A shard
that several devices hold is read once. Host memory holds one shard beside what
lies on devices, and on a CPU, whose device is the host, the shard becomes the
array.
"""

import hashlib
import json
from collections.abc import Callable, Collection

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from jspec import errors
from jspec.checkpoints import conversions, lazy, names
from jspec.nn import fused
from jspec.targets import architecture, sharding, transformer
from jspec.typing import Array

DTYPES = ('float32', 'bfloat16')
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

  def read(self, name: str, box: conversions.Box, out: np.ndarray) -> None:
    """Reads a part of an array, as `lazy.Leaves.read`."""
    if name == 'head' and self.config.tied:
      # Materialised [in, out]: on a CPU the transposed matmul is slower.
      self._leaves.read('embedding', box[::-1], out.T)
      return
    self._leaves.read(name, box, out)
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


def read(
  reader: Reader,
  *,
  dtype: str = 'float32',
  mesh: Mesh | None = None,
  is_split: bool = False,
  on_array: Callable[[int, int], None] | None = None,
) -> transformer.Transformer:
  """Reads a target to its place.

  Args:
    reader: of its files.
    dtype: of the arrays, one of `DTYPES`; what the files hold is rounded.
    mesh: with an axis `sharding.AXIS`; None: the first device.
    is_split: keep every layer's weights apart, see `nn.stack`.
    on_array: called with (numbers placed, numbers in all), for a progress bar.

  Raises:
    errors.UserError: another dtype, or sizes that do not share out evenly.
  """
  if dtype not in DTYPES:
    raise errors.UserError(f'dtype {dtype!r}: use one of {", ".join(DTYPES)}')
  target = _empty(reader.config, is_split)
  layout = None
  if mesh is not None:
    layout = sharding.arrange(target, sharding.checked(mesh))
  found = nnx.to_flat_state(nnx.state(target))
  total = sum(variable.size for _, variable in found)
  done = 0
  for path, variable in found:
    name, size = path[-1], variable.size
    rows = _rows(reader.config, target, path)
    of = _dtype(name, dtype)
    variable.set_value(_array(reader, name, rows, of, layout))
    done += size
    if on_array is not None:
      on_array(done, total)
  return target


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
  target = _empty(config, is_split=False)
  layout = None
  if mesh is not None:
    layout = sharding.arrange(target, sharding.checked(mesh))
  for path, variable in nnx.to_flat_state(nnx.state(target)):
    name = path[-1]
    lies = None if layout is None else layout.sharding(name, is_row=False)
    variable.set_value(
      jax.ShapeDtypeStruct(variable.shape, _dtype(name, dtype), sharding=lies)
    )
  return target


def _dtype(name, dtype):
  return jax.numpy.dtype('float32' if name in _FLOAT32 else dtype)


def _empty(config, is_split):
  """The target without values."""

  def make():
    shapes = architecture.array_shapes(config)
    zeros = {name: jax.numpy.zeros(shape) for name, shape in shapes.items()}
    return transformer.Transformer(config, zeros, is_split=is_split)

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


def _array(reader, name, rows, dtype, layout) -> Array:
  """Reads one array of the model, shard by shard."""
  shape = reader.shapes[name]
  if isinstance(rows, int):
    shape = shape[1:]
  elif rows is not None:
    shape = (len(rows), *shape[1:])
  widths, num_shards = (shape[-1:], 1)
  lies, places = None, [(tuple(slice(0, size) for size in shape), [None])]
  if layout is not None:
    lies = layout.sharding(name, isinstance(rows, int))
    widths, num_shards = layout.order.get(name, (widths, num_shards))
    places = _places(lies, shape)
  shards = []
  for index, devices in places:
    sizes = tuple(part.stop - part.start for part in index)
    host = lazy.empty(sizes, dtype)
    at = 0
    last = index[-1]
    for start, stop in fused.spans(widths, num_shards, last.start, last.stop):
      out = host[..., at : at + stop - start]
      box = (*index[:-1], slice(start, stop))
      _read_rows(reader, name, rows, box, out)
      at += stop - start
    placed = [jax.device_put(host, device) for device in devices]
    # Until then, the host's copy is there too.
    shards += jax.block_until_ready(placed)
  if lies is None:
    return shards[0]
  return jax.make_array_from_single_device_arrays(shape, lies, shards)


def _places(lies: NamedSharding, shape):
  """The parts of an array that devices of this process hold, and which do."""
  places = {}
  for device, index in lies.addressable_devices_indices_map(shape).items():
    ends = tuple(
      part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
    )
    places.setdefault(ends, []).append(device)
  return [
    (tuple(slice(*end) for end in ends), devices)
    for ends, devices in places.items()
  ]


def _read_rows(reader, name, rows, box, out):
  """Reads a part of a variable that holds some rows of an array."""
  if rows is None:
    reader.read(name, box, out)
  elif isinstance(rows, int):
    reader.read(name, (slice(rows, rows + 1), *box), out[None])
  elif rows == list(range(rows[0], rows[0] + len(rows))):
    part = slice(rows[0] + box[0].start, rows[0] + box[0].stop)
    reader.read(name, (part, *box[1:]), out)
  else:
    for i, row in enumerate(rows[box[0]]):
      reader.read(name, (slice(row, row + 1), *box[1:]), out[i : i + 1])
