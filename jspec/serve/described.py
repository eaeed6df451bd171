# SPDX-License-Identifier: MIT
"""Values as text that says all of them, or a refusal.

  ('walk', 2)                   ->  builtins.tuple(str 'walk', int 2)
  Float[Array, '2 3'] argument  ->  float32[2, 3] on cpu:0

Two values of the same text make the same program, so that a program can be
looked up without tracing it (`executables`). What a text cannot say whole is
refused, not guessed: a function made inside another, an object that says
nothing of itself, and whatever a class or function from outside takes part in,
since nobody hashes its source.
"""

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Packages whose version or source is part of every key (`program_key`).
KNOWN = {'jspec', 'jax', 'jaxlib', 'flax', 'numpy', 'ml_dtypes', 'builtins'}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


class Indescribable(ValueError):
  """A value that no text says whole."""


def value(x: Any) -> str:
  """Describes what a program is made with, such as a policy.

  Raises:
    Indescribable: it cannot be done.
  """
  kind = type(x)
  if kind in _PLAIN:
    return f'{kind.__name__} {x!r}'
  if isinstance(x, type):
    return _owned(x)
  if isinstance(x, types.FunctionType | types.BuiltinFunctionType):
    return _function(x)
  if isinstance(x, types.MethodType):
    return f'{value(x.__func__)} of {value(x.__self__)}'
  name = _owned(kind)
  if isinstance(x, enum.Enum):
    return f'{name}.{x.name}'
  if isinstance(x, np.dtype):
    return f'dtype {x.name}'
  if isinstance(x, np.ndarray | np.generic):
    return _constant(np.asarray(x))
  if isinstance(x, functools.partial):
    return f'{name}{_all([x.func, x.args, x.keywords])}'
  if isinstance(x, set | frozenset):
    return f'{name}{sorted(map(value, x))}'
  if isinstance(x, jax.tree_util.PyTreeDef):
    return _structure(x)
  if isinstance(x, Mapping):
    return f'{name}{_all([part for item in x.items() for part in item])}'
  if isinstance(x, tuple | list):
    return f'{name}{_all(x)}'
  if isinstance(x, PartitionSpec | jax.sharding.Sharding | Mesh):
    return f'{name} {_lies(x)}'
  if dataclasses.is_dataclass(x):
    fields = {field.name for field in dataclasses.fields(x)}
    fields |= set(getattr(x, '__dict__', ()))
    parts = (f'{field}={value(getattr(x, field))}' for field in sorted(fields))
    return f'{name}({", ".join(parts)})'
  raise Indescribable(f'a {kind.__module__}.{kind.__qualname__}')


def argument(tree: Any) -> str:
  """Describes an argument by its form and its arrays' types, not their values.

  Raises:
    Indescribable: it cannot be done.
  """
  leaves, structure = jax.tree.flatten(tree)
  return f'{_structure(structure)} {" ".join(map(_leaf, leaves))}'


def _structure(structure):
  found = structure.node_data()
  if found is None:
    return '*'
  inner = ''.join(map(_structure, structure.children()))
  return f'{_owned(found[0])} {value(found[1])}[{inner}]'


def _leaf(leaf):
  if isinstance(leaf, jax.Array):
    weak = ' weak' if leaf.weak_type else ''
    where = f'{leaf.format.layout} {_lies(leaf.sharding)}'
    return f'{leaf.dtype}{list(leaf.shape)}{weak} {where}'
  if isinstance(leaf, jax.ShapeDtypeStruct):
    where = None if leaf.sharding is None else _lies(leaf.sharding)
    return f'{leaf.dtype}{list(leaf.shape)}{leaf.weak_type} {where}'
  return value(leaf)


def _lies(x):
  """Where something lies: its devices by number, in order."""
  if isinstance(x, jax.sharding.SingleDeviceSharding):
    (device,) = x.device_set
    return f'{device.platform}:{device.id} {x.memory_kind}'
  if isinstance(x, NamedSharding):
    return f'{_lies(x.spec)} {_lies(x.mesh)} {x.memory_kind}'
  if isinstance(x, PartitionSpec):
    # Its other parts have no names to ask for.
    return repr(x)
  if isinstance(x, Mesh):
    devices = [f'{device.platform}:{device.id}' for device in x.devices.flat]
    return f'{devices}{x.devices.shape}{x.axis_names}{x.axis_types}'
  raise Indescribable(f'where an array lies: a {type(x).__qualname__}')


def _constant(array):
  if array.dtype.hasobject:
    raise Indescribable('an array of Python objects')
  digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
  return f'{array.dtype}{list(array.shape)} {digest}'


def _function(function):
  """A function by name, where that name leads to it and to nothing else."""
  found = sys.modules.get(function.__module__)
  for part in function.__qualname__.split('.'):
    found = getattr(found, part, None)
  if found is not function:
    raise Indescribable(f'the function {function.__qualname__}, made at run')
  return _owned(function)


def _owned(named):
  """The full name of a class or function, whose source or version is known."""
  first = named.__module__.split('.')[0]
  if first not in KNOWN and first not in sys.stdlib_module_names:
    raise Indescribable(
      f'{named.__module__}.{named.__qualname__}, from outside jspec'
    )
  if '<' in named.__qualname__:
    raise Indescribable(f'{named.__qualname__}, which is made at run')
  return f'{named.__module__}.{named.__qualname__}'


def _all(parts):
  return f'({", ".join(map(value, parts))})'
