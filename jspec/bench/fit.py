# SPDX-License-Identifier: MIT
"""Whether a target fits a slice of TPUs, and how fast it could be there.

Its programs (`fit_programs`) are compiled for the slice with shapes in place of
weights. The compiler says what a device holds and what a program computes; what
it has to read is counted here. Nothing runs, so the seconds are the least there
can be, not those of a measurement.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jspec import opening, slices
from jspec.bench import fit_programs
from jspec.targets import architecture, sharding


def run(
  spec: str,
  topology: str,
  load: fit_programs.Load,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Compiles the programs of a target for a slice, behind `slices.prepare`.

  Args:
    spec: as of `opening.architecture_of`.
    topology: as of `slices.find`.
    load: what is served.
    on_progress: called with (programs compiled, all of them).

  Returns:
    For JSON; bytes, FLOPs and seconds of a device.

  Raises:
    UserError: no such target or slice, sizes that do not share out over it, or
      memory that does not do.
  """
  config = opening.architecture_of(spec)
  where = slices.find(topology)
  mesh = sharding.checked(Mesh(np.array(where.devices), (sharding.AXIS,)))
  programs = fit_programs.all_programs(config, mesh, load)
  cache, target = programs[0].arguments[:2]
  held = {
    'weights': slices.bytes_on_device(target),
    'cache': slices.bytes_on_device(cache.pages),
  }
  slices.check(spec, topology, where.chip, held)
  found = {}
  for program in programs:
    what = f'{spec}: {program.name}'
    compiled = slices.compiled(program.lower(mesh), what, topology)
    outside = slices.compiled(program.lower_outside(mesh), what, topology)
    cost = slices.Cost(
      flops=slices.whole_flops(compiled, outside, config.num_layers),
      bytes=fit_programs.read_bytes(config, program, load),
    )
    found[program.name] = {
      'tokens': program.tokens,
      **_measured(slices.memory(compiled), cost, where.chip),
    }
    if on_progress is not None:
      on_progress(len(found), len(programs))
  return {
    'target': spec,
    'dtype': fit_programs.DTYPE,
    'topology': topology,
    'num_devices': len(where.devices),
    'hbm_bytes': where.chip.hbm_bytes,
    'rows': load.rows,
    'nodes': load.nodes,
    'context': load.context,
    'page_size': load.page_size,
    'held_bytes': held,
    'whole': whole_on_each(config, mesh),
    'programs': found,
  }


def whole_on_each(
  config: architecture.TransformerConfig, mesh: Mesh
) -> list[str]:
  """What does not share out, so that every device holds all of it."""
  heads, _ = architecture.cached_row(config)
  if sharding.attention_axis(heads, mesh) is not None:
    return []
  return ['attention', 'pages']


def _measured(memory, cost, chip):
  return {
    'argument_bytes': memory.arguments,
    'temporary_bytes': memory.temporary,
    'code_bytes': memory.code,
    'total_bytes': memory.total,
    'flops': cost.flops,
    'read_bytes': cost.bytes,
    'roofline_s': cost.seconds(chip),
    'bound': cost.bound(chip),
  }


def table(result: dict[str, Any]) -> str:
  """The result for people."""
  held, hbm = result['held_bytes'], result['hbm_bytes']
  whole = ' and '.join(result['whole'])
  lines = [
    f'{result["target"]}, {result["dtype"]}, on {result["topology"]}:'
    f' {result["num_devices"]} devices of {slices.size(hbm)};'
    f' {result["rows"]} rows of {result["context"]} tokens',
    f'a device holds {slices.size(held["weights"])} of weights and'
    f' {slices.size(held["cache"])} of pages'
    + (f' ({whole} whole on each)' if whole else ''),
    '',
    f'{"program":8} {"tokens":>6} {"temporary":>10} {"in all":>9}'
    f' {"of memory":>9} {"GFLOP":>8} {"GB read":>8} {"ms":>7} bound',
  ]
  for name, one in result['programs'].items():
    lines.append(
      f'{name:8} {one["tokens"]:6} {slices.size(one["temporary_bytes"]):>10}'
      f' {slices.size(one["total_bytes"]):>9}'
      f' {one["total_bytes"] / hbm:9.0%} {one["flops"] / 1e9:8.1f}'
      f' {one["read_bytes"] / 1e9:8.2f} {1e3 * one["roofline_s"]:7.2f}'
      f' {one["bound"]}'
    )
  return '\n'.join(lines)
