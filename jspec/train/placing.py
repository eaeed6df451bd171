# SPDX-License-Identifier: MIT
"""Brings what a run holds to its mesh, and back.

Every process has the same weights of the drafter and the same held-out batches,
and a part of the rows of a training batch; each hands over what its own devices
are to hold, and of the target reads no more than that.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from jspec import errors
from jspec.nn import fused, qarray, spread
from jspec.targets import reading, sharding, transformer
from jspec.train import layout, step
from jspec.train import mesh as mesh_lib
from jspec.typing import Array, Key, PyTree

_ATTENTION = frozenset({'qkv', 'qkv_bias', 'out'})


def tree(arrays: PyTree, mesh: Mesh) -> PyTree:
  """Arrays that every process has whole, stored as `layout` says."""
  lies = layout.Rules(mesh).tree(arrays)
  return jax.tree.map(sharding.put, arrays, lies)


def target_of(loaded: Any, mesh: Mesh, compute_dtype: str) -> nnx.Module:
  """The target on the mesh: a copy, or read from its files if it is an outline.

  Args:
    loaded: the target as `jspec.loading.load_target` returns it.
    mesh: of the run.
    compute_dtype: of `cast`.

  Raises:
    UserError: see `arranged`.
  """
  if reading.is_outline(loaded.model):
    return read(loaded.opened, mesh, compute_dtype)
  return target(loaded.model, mesh, compute_dtype)


def read(opened: Any, mesh: Mesh, compute_dtype: str = 'float32') -> nnx.Module:
  """What `target` gives, straight from the files.

  A process reads what its devices hold and no more, and its host holds one
  device's part of one array at a time.

  Args:
    opened: the target as `jspec.opening.open_target` returns it.
    mesh: of the run.
    compute_dtype: of `cast`.

  Raises:
    UserError: see `arranged`.
  """
  forms = opened.forms()
  if compute_dtype == 'bfloat16':
    forms['dtype'] = compute_dtype  # As `cast` rounds: to the nearest, once.

  def arrange(model):
    made, order = arranged(model, mesh)
    return made, _Lying(mesh, order)

  made = reading.read(
    opened.reader(),
    **forms,
    arrange=arrange,
    is_split=mesh.devices.flat[0].platform == 'cpu',
  )
  for _, variable in nnx.to_flat_state(nnx.state(made)):
    array = variable[...]
    if isinstance(array, qarray.QArray):
      # It came beside its values; in the table it is whole.
      scale = sharding.put(array.scale, layout.whole(mesh))
      variable.set_value(dataclasses.replace(array, scale=scale))
  return made


class _Lying(NamedTuple):
  """A `sharding.Layout` by the table of `layout`."""

  mesh: Mesh
  order: Mapping[str, Any]

  def sharding(self, name, shape, *, is_row):
    del is_row  # The table counts axes from the end.
    return layout.Rules(self.mesh).sharding(name, shape)


def target(
  model: nnx.Module, mesh: Mesh, compute_dtype: str = 'float32'
) -> nnx.Module:
  """A copy of the target, stored as `layout` says.

  Args:
    model: the target; stays as it is.
    mesh: of the run.
    compute_dtype: of `cast`.

  Raises:
    UserError: see `arranged`.
  """
  made, order = arranged(cast(model, compute_dtype), mesh)
  rules = layout.Rules(mesh)
  for path, variable in nnx.to_flat_state(nnx.state(made)):
    name, array = path[-1], variable[...]
    if name in order:
      array = fused.interleave(array, *order[name])
    lies = rules.tree({name: array})[name]
    variable.set_value(jax.tree.map(sharding.put, array, lies))
  return made


def arranged(
  model: nnx.Module, mesh: Mesh
) -> tuple[nnx.Module, Mapping[str, Any]]:
  """The target as programs on this mesh are traced, its arrays as given.

  With an axis `model` the columns of fused matrices are to lie in another order
  (`targets.sharding.Layout.order`, by name), which `target` gives them.

  Raises:
    UserError: a target, or sizes of it, that `model` cannot share out.
  """
  made = jax.tree.map(lambda array: array, model)  # The module anew.
  if isinstance(made, transformer.Transformer):
    made.tiled, made.tiled_head = nnx.data(None), nnx.data(None)
  if mesh.shape['model'] == 1:
    return made, {}
  if not isinstance(made, transformer.Transformer):
    raise errors.UserError(
      f'{type(made).__name__} has no layout for mesh.model='
      f'{mesh.shape["model"]}: take preset fsdp'
    )
  return made, sharding.arrange(made, mesh).order


def together(model: nnx.Module, mesh: Mesh) -> frozenset[str]:
  """Names that `model` does not share out, of an arranged target."""
  if mesh.shape['model'] == 1 or model.num_attention_shards > 1:
    return frozenset()
  return _ATTENTION


def cast(arrays: PyTree, dtype: Any) -> PyTree:
  """The arrays as a step computes with them, in bfloat16 or in float32.

  float32 leaves them as they are. So does bfloat16 the bias of a router, that
  would choose other experts if it was rounded, whole numbers, and weights of
  eight bits with their scales.
  """
  if jnp.dtype(dtype) == jnp.float32:
    return arrays

  is_small = lambda x: isinstance(x, qarray.QArray)  # noqa: E731

  def of(path, x):
    if is_small(x) or spread.name(path) == 'expert_bias':
      return x
    is_whole = not jnp.issubdtype(x.dtype, jnp.floating)
    return x if is_whole else x.astype(dtype)

  return jax.tree_util.tree_map_with_path(of, arrays, is_leaf=is_small)


def batch(
  arrays: Mapping[str, np.ndarray], mesh: Mesh, *, is_whole: bool = False
) -> dict[str, Array]:
  """A batch on the mesh.

  Args:
    arrays: [rows, S, ...]; the rows of this process.
    mesh: of the run.
    is_whole: every process has all rows.
  """
  lies = layout.batch_sharding(mesh)
  if lies.is_fully_addressable:
    return jax.device_put(dict(arrays), lies)
  share, num_shares = (0, 1) if is_whole else mesh_lib.share_of_rows(mesh)

  def put(x):
    first = share * x.shape[0]

    def part(index):
      rows = index[0].indices(num_shares * x.shape[0])
      return x[(slice(rows[0] - first, rows[1] - first), *index[1:])]

    shape = (num_shares * x.shape[0], *x.shape[1:])
    return jax.make_array_from_callback(shape, lies, part)

  return {name: put(np.asarray(x)) for name, x in arrays.items()}


def state(
  parts: step.Parts,
  optimizer: optax.GradientTransformation,
  key: Key[Array, ''],
  mesh: Mesh,
  *,
  has_average: bool,
) -> step.TrainState:
  """`step.init` on the mesh; no device holds all of the optimiser's state."""

  def make(params, data):
    return step.init(
      step.Parts(params, parts.frozen, parts.merge),
      optimizer,
      jax.random.wrap_key_data(data, impl=jax.random.key_impl(key)),
      has_average=has_average,
    )

  given = (tree(parts.params, mesh), np.asarray(jax.random.key_data(key)))
  lies = layout.Rules(mesh).tree(jax.eval_shape(make, *given))
  return jax.jit(make, out_shardings=lies)(*given)


def key(seed: int, number: int, mesh: Mesh) -> Key[Array, '']:
  """The key of a seed and a number, on every device."""
  run = jax.jit(_key, out_shardings=layout.whole(mesh))
  return run(np.uint32(seed), np.uint32(number))


def local(arrays: PyTree, mesh: Mesh) -> PyTree:
  """Copies on the first device of this process; all processes call it."""
  gather = jax.jit(_same, out_shardings=layout.whole(mesh))

  def copy(x):
    # One by one: the others need not be there too.
    return jnp.asarray(np.asarray(gather(x)))

  return jax.tree.map(copy, arrays)


# At the top of the module, so that JAX knows them again.
def _same(x):
  return x


def _key(seed, number):
  return jax.random.fold_in(jax.random.key(seed), number)
