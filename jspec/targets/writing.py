# SPDX-License-Identifier: MIT
"""A target as a Hugging Face folder: the way of `reading` back.

  config.json, model-00001-of-0000N.safetensors, ..., and their index

Every tensor of the family's table is taken out of its array and turned back
into what the file held, under its name and in the dtype the array has. What was
read from such a folder and written again is read as the same arrays, bit for
bit. One layer of one array at a time is in host memory.

Tensors that are not the target's (drafting layers, images) are not written, and
the config does not speak of them.
"""

import json
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from flax import nnx

from jspec import errors
from jspec.checkpoints import conversions, names, safetensors
from jspec.nn import fused, stack
from jspec.targets import architecture, transformer

# Bytes of a file, as transformers cuts them.
SHARD_BYTES = 5_000_000_000


def write(
  folder: str | pathlib.Path,
  target: transformer.Transformer,
  rules: Collection[names.Rule],
  fields: Mapping[str, Any],
  *,
  shard_bytes: int = SHARD_BYTES,
) -> list[pathlib.Path]:
  """Writes a target; the index lands last.

  Args:
    folder: made if it is absent.
    target: all of it in reach of this process, on a mesh or not.
    rules: the rename table of its family.
    fields: its config.json, as the family's `written` gives it.
    shard_bytes: no file gets larger, but for one tensor that is.

  Returns:
    The files with tensors.

  Raises:
    errors.UserError: the table has a way there and none back, or would not give
      the same numbers again.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  arrays = Arrays(target)
  dtype = np.dtype(target.embedding[...].dtype)
  found = {}
  for rule in rules:
    if not isinstance(rule.convert, conversions.Conversion):
      raise errors.UserError(
        f'tensor {rule.source} cannot be written: its conversion has no way'
        ' back; write targets of Hugging Face folders'
      )
    found[rule.source] = rule, _stored_dtype(arrays, rule, dtype)
  config = architecture.array_shapes(target.config)
  shapes = {name: _shape(rule, config) for name, (rule, _) in found.items()}
  groups = _grouped(found, shapes, shard_bytes)
  files = [folder / name for name in _file_names(len(groups))]
  # As the version of transformers that wrote the config calls it.
  said = 'torch_dtype' if 'torch_dtype' in fields else 'dtype'
  text = json.dumps({**fields, said: dtype.name}, indent=2, sort_keys=True)
  safetensors.write_bytes(folder / 'config.json', (text + '\n').encode())
  for file, group in zip(files, groups, strict=True):
    held = {name: (found[name][1], shapes[name]) for name in group}
    values = (_values(arrays, *found[name]) for name in group)
    safetensors.write_file(file, held, values)
  if len(files) > 1:
    where = {
      name: file.name
      for file, group in zip(files, groups, strict=True)
      for name in group
    }
    total = sum(
      int(np.prod(shapes[name])) * kept.itemsize
      for name, (_, kept) in found.items()
    )
    index = {'metadata': {'total_size': total}, 'weight_map': where}
    text = json.dumps(index, indent=2, sort_keys=True) + '\n'
    safetensors.write_bytes(folder / safetensors.INDEX, text.encode())
  return files


class Arrays:
  """The arrays of a target as `architecture.array_shapes` has them, by row."""

  def __init__(self, target: transformer.Transformer):
    """Finds where each array, or each row of it, is."""
    self._config, self._target = target.config, target
    self._variables: dict[tuple, Any] = dict(
      nnx.to_flat_state(nnx.state(target))
    )
    self._at = architecture.layers_with(target.config)
    self._held: dict[str, tuple[int | None, np.ndarray]] = {}

  def part(self, name: str, box: tuple[int | slice, ...]) -> np.ndarray:
    """The values of a box of a rule, on the host."""
    if name == 'embedding':
      return self._embedding()[box]
    if name not in self._at:
      return np.asarray(self._one((name,)))[box]
    row, *rest = box
    if self._held.get(name, (None,))[0] != row:
      self._held[name] = row, self._row(name, self._at[name][row])
    return self._held[name][1][tuple(rest)]

  def _embedding(self):
    """As it is on disk, without its factor."""
    scale = self._config.embedding_scale
    if scale == 1:
      return np.asarray(self._one(('embedding',)))
    if not self._config.tied:
      raise errors.UserError(
        'an embedding with a factor in it and a head of its own cannot be'
        ' written bit for bit'
      )
    return np.asarray(self._one(('head',))).T

  def _one(self, path):
    return self._variables[path][...]

  def _row(self, name, layer):
    """One layer of a stacked array, its columns in the order of one device."""
    layers, own = self._target.layers, (name,)
    if ('moe', name) in {path[-2:] for path in self._variables}:
      own = ('moe', name)
    if isinstance(layers, nnx.List):
      values = self._one(('layers', layer, *own))
    elif isinstance(layers, stack.Mixed):
      group, row = layers.kinds[layer], layers.rows[layer]
      values = self._one(('layers', 'groups', group, *own))[row]
    else:
      values = self._one(('layers', *own))[self._at[name].index(layer)]
    return _side_by_side(np.asarray(values), *self._order(name))

  def _order(self, name):
    """Widths and shards of an array's columns (`nn.fused`)."""
    config, first = self._config, stack.parts(self._target.layers)[0]
    if name in ('qkv', 'qkv_bias'):
      widths = architecture.qkv_widths(config)
      return widths, self._target.num_attention_shards
    if name == 'gate_up':
      return (config.ff_width,) * 2, first.num_mlp_shards
    if name == 'shared_gate_up':
      width = config.experts.shared_ff_width
      return (width,) * 2, first.num_mlp_shards
    return (), 1


def _side_by_side(values, widths, num_shards):
  """Undoes `fused.interleave`."""
  if num_shards == 1:
    return values
  order = fused.interleave(np.arange(sum(widths)), widths, num_shards)
  return values[..., np.argsort(order)]


def _shape(rule, shapes):
  """The shape on disk."""
  if rule.shape is not None:
    return rule.shape
  _, shape = names.bounds_of(rule.box, shapes[rule.leaf])
  return shape[::-1] if rule.convert.is_turned else shape


def _stored_dtype(arrays, rule, dtype) -> np.dtype:
  """In what a tensor is the same when it is read again."""
  if dtype == np.float32:
    return dtype
  values = arrays.part(rule.leaf, rule.box)
  if values.dtype != dtype:  # What no target rounds, such as expert biases.
    return values.dtype
  if rule.convert.only_moves:
    return dtype
  again = rule.convert(rule.convert.to_file(values).astype(dtype))
  is_same = np.array_equal(again.astype(dtype), values)
  return dtype if is_same else np.dtype(np.float32)


def _values(arrays, rule, dtype) -> np.ndarray:
  values = rule.convert.to_file(arrays.part(rule.leaf, rule.box))
  return values.astype(dtype, copy=False)


def _grouped(found, shapes, limit) -> list[list[str]]:
  """The tensors of each file."""
  groups, size = [[]], 0
  for name, (_, dtype) in found.items():
    own = int(np.prod(shapes[name])) * dtype.itemsize
    if groups[-1] and size + own > limit:
      groups.append([])
      size = 0
    groups[-1].append(name)
    size += own
  return groups


def _file_names(count: int) -> Iterator[str]:
  if count == 1:
    yield safetensors.FILE
    return
  for i in range(1, count + 1):
    yield f'model-{i:05d}-of-{count:05d}.safetensors'
