# SPDX-License-Identifier: MIT
"""The arrays of a training state by name, as a checkpoint holds them.

`{'params': {'a.b': w}, 'key': key}` is `{'params.a.b': w, 'key': its data}`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.typing import PyTree


def detached(array: jax.Array) -> jax.Array:
  """Copies what lies in the host's memory.

  Of that orbax keeps a view, which a step that is given the state overwrites.
  From other devices it copies before it returns.
  """
  if all(device.platform == 'cpu' for device in array.devices()):
    return jax.jit(jnp.copy)(array)
  return array


def named(tree: PyTree) -> dict[str, Any]:
  """Flattens a tree to path -> array; typed keys become their data."""
  found = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    found[jax.tree_util.keystr(path, simple=True, separator='.')] = leaf
  return found


def unnamed(arrays: dict[str, Any], like: PyTree) -> PyTree:
  """Puts named arrays into the form of `like`, the other way round."""
  leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
  restored = []
  for path, leaf in leaves:
    value = arrays[jax.tree_util.keystr(path, simple=True, separator='.')]
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    restored.append(value)
  return jax.tree_util.tree_unflatten(treedef, restored)


def shapes(arrays: dict[str, Any]) -> dict[str, str]:
  """Dtype and shape of each, as `float32[3, 4]`."""
  return {name: f'{x.dtype}{list(x.shape)}' for name, x in arrays.items()}


def check(saved: dict[str, str], wanted: dict[str, str], where: str) -> None:
  """Refuses other names or shapes than are wanted; takes what `shapes` gives.

  Raises:
    UserError: naming what differs, `where`.
  """
  missing = sorted(set(wanted) - set(saved))
  extra = sorted(set(saved) - set(wanted))
  if missing or extra:
    raise errors.UserError(
      f'{where} does not fit this drafter: missing {missing[:3]}, not expected '
      f'{extra[:3]}; use another --workdir'
    )
  for name, shape in wanted.items():
    if saved[name] != shape:
      raise errors.UserError(
        f'{where} does not fit this drafter: {name} is {saved[name]}, expected '
        f'{shape}; use another --workdir'
      )
