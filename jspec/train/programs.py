# SPDX-License-Identifier: MIT
"""The jitted steps of a run, for its mesh.

One program a step (`step`), shardings given for what goes in and comes out
(`layout`); in between XLA places what `nn.spread` says nothing of. The state is
donated: its new value lies where the old one did.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jspec.drafters import base
from jspec.nn import remat
from jspec.train import layout, placing, step
from jspec.typing import Array, PyTree

TapsOf = Callable[..., tuple[Array, base.LastHidden | None]]


class Programs(NamedTuple):
  """The programs of a run.

  Attributes:
    train: `train(state, frozen, target, batch)`, see `step.train_step`.
    evaluate: `evaluate(params, frozen, target, batch, key)`, see
      `step.eval_step`.
  """

  train: Any
  evaluate: Any


def build(
  parts: step.Parts,
  taps_of: TapsOf,
  judge: step.Judge | None,
  optimizer: optax.GradientTransformation,
  state: PyTree,
  mesh: Mesh,
  *,
  together: frozenset[str] = frozenset(),
  compute_dtype: str = 'float32',
  policy: str = 'none',
  **settings: Any,
) -> Programs:
  """Both programs; nothing is compiled yet.

  Args:
    parts: the drafter, taken apart.
    taps_of: from `step.online_taps` or `step.stored_taps`.
    judge: from `step.judge_of`, or None.
    optimizer: from `optim.optimizer`.
    state: a `step.TrainState`, of arrays or abstract.
    mesh: of `mesh.make`.
    together: of `placing.together`.
    compute_dtype: of the drafter's forward and backward pass; parameters,
      optimiser state, sums and losses stay in float32.
    policy: of `nn.remat`.
    **settings: of `step.train_step`.
  """
  dtype = jnp.dtype(compute_dtype)
  merge = merging(parts, mesh, dtype)
  train = _kept(
    policy,
    functools.partial(
      step.train_step, merge, taps_of, optimizer, judge, dtype=dtype, **settings
    ),
  )
  evaluate = functools.partial(
    step.eval_step, merge, taps_of, judge, dtype=dtype
  )
  whole = layout.whole(mesh)
  return Programs(
    jax.jit(
      layout.within(mesh, train, together),
      donate_argnums=0,
      out_shardings=(layout.Rules(mesh).tree(state), whole),
    ),
    jax.jit(layout.within(mesh, evaluate, together), out_shardings=whole),
  )


def merging(
  parts: step.Parts, mesh: Mesh, dtype: Any = jnp.float32
) -> Callable[[PyTree, PyTree], Any]:
  """`parts.merge` of arrays that are cast and gathered as a step uses them.

  Cast first: half the bytes are moved.
  """
  rules = layout.Rules(mesh)

  def use(arrays):
    cast = placing.cast(arrays, dtype)
    return cast if mesh.size == 1 else rules.gathered(cast)

  def merge(params, frozen):
    return parts.merge(use(params), use(frozen))

  return merge


def draft_batch(
  taps_of: TapsOf,
  target: PyTree,
  batch: dict[str, np.ndarray],
  mesh: Mesh,
  together: frozenset[str] = frozenset(),
) -> base.DraftBatch:
  """A batch with its taps, where this process can read all of it.

  Args:
    taps_of: as of `build`.
    target: its arrays, on the mesh.
    batch: packed rows, all of them in every process.
    mesh: of the run.
    together: as of `build`.
  """

  def make(target, batch):
    return step.as_draft_batch(batch, *taps_of(target, batch))

  placed = placing.batch(batch, mesh, is_whole=True)
  run = layout.within(mesh, make, together)
  if layout.whole(mesh).is_fully_addressable:
    return jax.jit(run)(target, placed)
  found = jax.jit(run, out_shardings=layout.whole(mesh))(target, placed)
  return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), found)


def _kept(policy, function):
  def run(*args):
    with remat.over(policy):
      return function(*args)

  return run
