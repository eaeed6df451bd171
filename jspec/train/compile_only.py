# SPDX-License-Identifier: MIT
"""Compiles a run's train step for a slice of TPUs, and trains nothing.

Target, drafter, optimiser and batch are shapes that lie as the run would lay
them out (`layout`); no array is made, no document read. The compiler says what
a device holds (`jspec.slices`). FLOPs are counted in what was traced, as the
compiler counts one turn of a loop (`jspec.flops`). The roofline is

  seconds = max(FLOPs of a device / FLOP/s, bytes it holds / (bytes/s))

and the least there can be: matmuls without a pause, everything read once,
nothing sent.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jspec import errors, slices
from jspec import flops as flops_lib
from jspec.kernels import choose
from jspec.targets import architecture, reading
from jspec.train import (
  build,
  layout,
  mesh,
  optim,
  placing,
  programs,
  settings,
  step,
)
from jspec.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Unread:
  """Stands for a loaded target (`loading.LoadedTarget`) of which nothing is.

  Attributes:
    model: by its shapes.
    name: as the config has it.
    tokenizer: none is read.
    stop_ids: none are known.
    opened: no files are.
  """

  model: Any
  name: str
  tokenizer: Any = None
  stop_ids: tuple[int, ...] = ()
  opened: Any = None


@dataclasses.dataclass(frozen=True)
class Traceable:
  """A step and the shapes of its arguments, which say how they lie.

  Attributes:
    function: jitted: state, frozen, target and batch to state and metrics.
    arguments: the four.
    num_params: that are trained.
  """

  function: Any
  arguments: tuple[PyTree, PyTree, PyTree, PyTree]
  num_params: int


def run(
  config: settings.TrainConfig,
  target: architecture.TransformerConfig,
  topology: str,
) -> dict[str, Any]:
  """Compiles the step of a config for a slice, behind `slices.prepare`.

  Args:
    config: of the run.
    target: the architecture that `config.target` names.
    topology: as of `slices.find`.

  Returns:
    For JSON; bytes, FLOPs and seconds of a device.

  Raises:
    UserError: a config that fits no run or no such slice, or memory that does
      not do.
  """
  where = slices.find(topology)
  over = mesh.make(
    config.mesh, config.data, config.optim.num_micro_batches, where.devices
  )
  traceable = traceable_of(config, target, over)
  held = held_bytes(traceable)
  what = f'the train step of {config.drafter.build} for {config.target}'
  slices.check(what, topology, where.chip, held)
  with choose.compiling_for(where.devices[0].platform, over.size):
    traced = traceable.function.trace(*traceable.arguments)
    lowered = traced.lower()
  flops = flops_lib.of_jaxpr(traced.jaxpr.jaxpr) / over.size
  program = slices.compiled(lowered, what, topology)
  memory = slices.memory(program)
  cost = slices.Cost(flops=flops, bytes=float(memory.arguments))
  return {
    'target': config.target,
    'drafter': config.drafter.build,
    'num_params': traceable.num_params,
    'topology': topology,
    'num_devices': over.size,
    'hbm_bytes': where.chip.hbm_bytes,
    'mesh': {axis: n for axis, n in over.shape.items() if n > 1},
    'tokens': config.data.num_rows * config.data.row_len,
    'held_bytes': held,
    'argument_bytes': memory.arguments,
    'temporary_bytes': memory.temporary,
    'code_bytes': memory.code,
    'total_bytes': memory.total,
    'flops': flops,
    'compiler_flops': slices.cost(program).flops,
    'compiler_bytes': slices.cost(program).bytes,
    'roofline_s': cost.seconds(where.chip),
    'bound': cost.bound(where.chip),
  }


def traceable_of(
  config: settings.TrainConfig,
  target: architecture.TransformerConfig,
  over: Mesh,
) -> Traceable:
  """The step of a config on a mesh, as `loop` builds it, ready to be traced.

  Args:
    config: of the run.
    target: the architecture of its target.
    over: of `mesh.make`.

  Raises:
    UserError: a config that fits no run.
  """
  drafter = _drafter(config, reading.abstract(target))
  made, _ = placing.arranged(
    reading.abstract(target, dtype=config.compute_dtype), over
  )
  together = placing.together(made, over)
  graphdef, arrays = nnx.split(made)
  taps, judge, num_taps = tuple(drafter.taps), None, None
  if config.data.mode == 'store':
    last = target.num_layers - 1 if drafter.needs_last else None
    taps_of = step.stored_taps(taps, last)
    num_taps = len(step.captured(drafter, target.num_layers))
    arrays, together = (), frozenset()
  else:
    taps_of = step.online_taps(graphdef, taps, needs_last=drafter.needs_last)
    if getattr(drafter, 'needs_judge', False):
      judge = step.judge_of(graphdef)
  parts = step.split(drafter)
  layout.check(over, parts.params, arrays)
  frozen = jax.eval_shape(
    lambda held: placing.cast(held, config.compute_dtype), parts.frozen
  )
  optimizer = optim.optimizer(config.optim, config.num_steps)
  state = jax.eval_shape(
    lambda params: step.init(
      step.Parts(params, parts.frozen, parts.merge),
      optimizer,
      jax.random.key(config.seed),
      has_average=config.optim.ema_decay > 0,
    ),
    parts.params,
  )
  given = state, frozen, arrays, _batch(config.data, num_taps, target.width)
  built = programs.build(
    parts,
    taps_of,
    judge,
    optimizer,
    state,
    over,
    together=together,
    compute_dtype=config.compute_dtype,
    policy=config.remat,
    ema_decay=config.optim.ema_decay,
    num_micro_batches=config.optim.num_micro_batches,
  )
  return Traceable(
    built.train,
    tuple(map(_lying, given, layout.shardings(over, *given))),
    sum(x.size for x in parts.params.values()),
  )


def held_bytes(traceable: Traceable) -> dict[str, int]:
  """What a device holds before a step, by name."""
  state, frozen, target, batch = traceable.arguments
  parts = {
    'target': target,
    'borrowed': frozen,
    'drafter': state.params,
    'optimiser': (state.opt_state, state.average),
    'batch': batch,
  }
  return {name: slices.bytes_on_device(part) for name, part in parts.items()}


def table(result: dict[str, Any]) -> str:
  """The result for people."""
  hbm = result['hbm_bytes']
  axes = ', '.join(f'{axis} {n}' for axis, n in result['mesh'].items())
  held = ', '.join(
    f'{name} {slices.size(n)}' for name, n in result['held_bytes'].items()
  )
  return '\n'.join(
    (
      f'train: {result["drafter"]}, {result["num_params"] / 1e6:.1f} M'
      f' parameters, for {result["target"]}; {result["tokens"]} tokens a step',
      f'{result["topology"]}: {result["num_devices"]} devices of'
      f' {slices.size(hbm)} ({axes or "one"})',
      f'a device holds {held}',
      f'and {slices.size(result["temporary_bytes"])} while a step runs; in all'
      f' {slices.size(result["total_bytes"])},'
      f' {result["total_bytes"] / hbm:.0%} of its memory',
      f'a step takes {result["flops"] / 1e12:.2f} TFLOP of a device and'
      f' {1e3 * result["roofline_s"]:.1f} ms at least ({result["bound"]})',
    )
  )


def _drafter(config, model):
  """The drafter by its shapes."""
  if model.config.logit_cap is not None:
    raise errors.UserError(
      f'{config.target} caps its logits (final_logit_softcapping): training for'
      ' such a target is not supported'
    )
  make = build.resolve(config.drafter.build)
  size = config.drafter.draft_vocab_size
  ids = None if size is None else np.arange(size)

  def made(model):
    loaded = Unread(model, config.target)
    key = jax.random.key(config.seed)
    return make(loaded, config.drafter.options, ids, key)

  return jax.eval_shape(made, model)


def _batch(data, num_taps, width):
  """Shapes of a batch, as `data.pipeline` gives them."""
  shape = (data.num_rows, data.row_len)
  whole = jax.ShapeDtypeStruct(shape, jnp.int32)
  found = dict.fromkeys(('tokens', 'positions', 'segments'), whole)
  found['is_answer'] = jax.ShapeDtypeStruct(shape, jnp.bool_)
  if num_taps is not None:
    # Bytes are read as bfloat16.
    dtype = jnp.dtype(data.store_dtype.replace('int8', 'bfloat16'))
    found['taps'] = jax.ShapeDtypeStruct((*shape, num_taps, width), dtype)
  return found


def _lying(shapes, lies):
  return jax.tree.map(
    lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
    shapes,
    lies,
  )
