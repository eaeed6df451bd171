# SPDX-License-Identifier: MIT
"""Where every array of a run lies on its mesh: one table for all presets.

  what                          axis of the array      axis of the mesh
  rows of a batch               first                  data, fsdp, expert
  tokens of a row               second                 sequence
  q, kv, qkv, gate_up, head     last (columns)         model
  out, down, embedding          last but one (rows)    model
  experts_*                     that of the experts    expert, or else model
  any other matrix, and what    the largest of its     fsdp, expert, sequence,
  is left of those above        last two               model: what is not taken

The first lines say how a weight is used, all of them how it is stored: what the
last one shares out is gathered where it is used, and gradients are reduced to
it. Optimiser state and average lie as their parameter does. Whole on every
device stay vectors (norms, biases, gains), mixes of a few numbers (`WHOLE`),
and what no axis divides; `report` says which.

Leading axes of stacked layers are never shared out: a loop over layers takes
one at a time. Axes of size 1 do not show, so with preset 'dp' all is whole.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.nn import spread
from jspec.train import mesh as mesh_lib
from jspec.typing import PyTree

# Name of an array -> which of its axes, from the end, `model` shares out.
MODEL_DIMS = {
  **dict.fromkeys(('q', 'kv', 'qkv', 'context_kv', 'qkv_bias'), -1),
  **dict.fromkeys(('gate_up', 'shared_gate_up', 'head', 'target_head'), -1),
  **dict.fromkeys(('out', 'down', 'shared_down', 'embedding'), -2),
}
# The same for `expert`.
EXPERT_DIMS = {
  'experts_gate_up': -3,
  'experts_down': -3,
  'experts_gate_up_bias': -2,
  'experts_down_bias': -2,
}
# Of names; with vectors, what stays whole.
WHOLE = re.compile(r'norm|bias|sinks|scale|^mix$|conv_base')
_STORED = ('fsdp', 'expert', 'sequence', 'model')


class Rules(NamedTuple):
  """The table for one model.

  Attributes:
    mesh: of `mesh.make`.
    together: names that `model` does not share out, whatever the table says.
  """

  mesh: Mesh
  together: frozenset[str] = frozenset()

  def used(self, name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Where an array lies when a step computes with it."""
    return _spec(self._used(name, shape))

  def stored(self, name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Where it lies between steps.

    Raises:
      UserError: experts that do not share out over the axis for them.
    """
    axes = self._used(name, shape)
    if len(shape) < 2 or WHOLE.search(name):
      return _spec(axes)
    taken = {axis for axis in axes if axis}
    free = [a for a in _STORED if self.mesh.shape[a] > 1 and a not in taken]
    places = [d for d in (-1, -2) if axes[d] is None]
    # The larger one, the last of equals; together, or else the largest axis.
    places.sort(key=lambda d: shape[d], reverse=True)
    singles = sorted(free, key=lambda a: self.mesh.shape[a], reverse=True)
    for some in (tuple(free), *((axis,) for axis in singles)):
      for d in places if some else ():
        if shape[d] % math.prod(self.mesh.shape[a] for a in some) == 0:
          axes[d] = some if len(some) > 1 else some[0]
          return _spec(axes)
    return _spec(axes)

  def sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """`stored` on the mesh."""
    return NamedSharding(self.mesh, self.stored(name, shape))

  def tree(self, arrays: PyTree) -> PyTree:
    """The shardings of all arrays of a tree; they may be abstract."""
    return jax.tree_util.tree_map_with_path(
      lambda path, x: self.sharding(spread.name(path), x.shape), arrays
    )

  def gathered(self, arrays: PyTree) -> PyTree:
    """The arrays as a step uses them, while it is traced.

    The embedding stays where it is: only the rows looked up are moved.
    """

    def use(path, x):
      name = spread.name(path)
      if name == 'embedding':
        return x
      lies = NamedSharding(self.mesh, self.used(name, x.shape))
      return jax.lax.with_sharding_constraint(x, lies)

    return jax.tree_util.tree_map_with_path(use, arrays)

  def _used(self, name, shape):
    axes = [None] * len(shape)
    size = self.mesh.shape
    if name in EXPERT_DIMS:
      d = EXPERT_DIMS[name]
      if shape[d] % size['expert']:
        raise errors.UserError(
          f'{shape[d]} experts do not share out over mesh.expert='
          f'{size["expert"]}: give a size that divides them'
        )
      axis = 'expert' if size['expert'] > 1 else 'model'
    else:
      d, axis = MODEL_DIMS.get(name), 'model'
      if name in self.together:
        d = None
    if d is None or len(shape) < -d or size[axis] == 1:
      return axes
    if shape[d] % size[axis] == 0:
      axes[d] = axis
    return axes


class Shardings(NamedTuple):
  """Where all that a step takes lies.

  Attributes:
    state: of a `step.TrainState`.
    frozen: of what the drafter borrows.
    target: of the target's arrays.
    batch: of the arrays of a batch.
  """

  state: PyTree
  frozen: PyTree
  target: PyTree
  batch: PyTree


def shardings(
  mesh: Mesh, state: PyTree, frozen: PyTree, target: PyTree, batch: PyTree
) -> Shardings:
  """The same for trees of arrays or of `jax.ShapeDtypeStruct`s.

  Args:
    mesh: of `mesh.make`, also of devices that are not there.
    state: of a `step.TrainState`.
    frozen: what the drafter borrows.
    target: arrays of a target that `placing.arranged` gave, or an empty tree.
    batch: arrays [B, S, ...].
  """
  rules, lies = Rules(mesh), batch_sharding(mesh)
  return Shardings(
    rules.tree(state),
    rules.tree(frozen),
    rules.tree(target),
    jax.tree.map(lambda _: lies, batch),
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Of the arrays [B, S, ...] of a batch."""
  rows = tuple(axis for axis in mesh_lib.ROWS if mesh.shape[axis] > 1)
  tokens = 'sequence' if mesh.shape['sequence'] > 1 else None
  return NamedSharding(mesh, _spec([rows or None, tokens]))


def whole(mesh: Mesh) -> NamedSharding:
  """On every device all of it."""
  return NamedSharding(mesh, PartitionSpec())


def within(
  mesh: Mesh,
  function: Callable[..., Any],
  together: frozenset[str] = frozenset(),
) -> Callable[..., Any]:
  """The function, traced for the mesh (`nn.spread`).

  Args:
    mesh: of `mesh.make`.
    function: to be jitted.
    together: of `Rules`, for the target.
  """
  sizes = mesh.shape

  def axis(name):
    return name if sizes[name] > 1 else None

  found = spread.Spread(
    mesh,
    rows=tuple(a for a in mesh_lib.ROWS if sizes[a] > 1),
    tokens=axis('sequence'),
    heads=axis('model'),
    experts=axis('expert') or axis('model'),
    weight=Rules(mesh, together).used,
  )

  def run(*args, **named):
    with spread.over(found):
      return function(*args, **named)

  return run if mesh.size > 1 else function


def check(mesh: Mesh, *trees: PyTree) -> None:
  """Refuses an axis for experts where no tree has any.

  Raises:
    UserError: so it is.
  """
  paths = jax.tree_util.tree_flatten_with_path(trees)[0]
  has_experts = any(spread.name(path) in EXPERT_DIMS for path, _ in paths)
  if mesh.shape['expert'] > 1 and not has_experts:
    raise errors.UserError(
      f'mesh.expert is {mesh.shape["expert"]}, but no experts run in the step,'
      ' of the drafter or of a target online: take mesh.preset fsdp'
    )


def report(mesh: Mesh, tree: PyTree) -> dict[str, dict[str, Any]]:
  """By path: shape, axes, and the share of it that a device holds."""
  rules, found = Rules(mesh), {}
  for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
    text = jax.tree_util.keystr(path, simple=True, separator='.')
    spec = rules.stored(spread.name(path), x.shape)
    axes = [a for part in spec if part for a in np.ravel(part).tolist()]
    found[text.removesuffix('.value')] = {
      'shape': list(x.shape),
      'spec': [list(p) if isinstance(p, tuple) else p for p in spec],
      'share': 1 / math.prod(mesh.shape[axis] for axis in axes),
    }
  return found


def dump(mesh: Mesh, tree: PyTree) -> str:
  """`report` as JSON, a line for every array."""
  found = report(mesh, tree)
  lines = (f'  {json.dumps(k)}: {json.dumps(v)}' for k, v in found.items())
  return '{\n' + ',\n'.join(lines) + '\n}\n'


def whole_share(mesh: Mesh, tree: PyTree) -> float:
  """The share of a tree's numbers that lie whole on every device."""
  found = report(mesh, tree).values()
  sizes = [(math.prod(x['shape']), x['share']) for x in found]
  total = sum(size for size, _ in sizes)
  return sum(size for size, share in sizes if share == 1) / max(total, 1)


def _spec(axes):
  while axes and axes[-1] is None:
    axes = axes[:-1]
  return PartitionSpec(*axes)
