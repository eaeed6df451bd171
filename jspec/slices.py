# SPDX-License-Identifier: MIT
"""Slices of TPU chips that need not be there: compiled for, never run on.

XLA's compiler for TPUs comes with libtpu and needs no chip. It says what each
device of a slice holds, computes and moves; with the figures of its chip that
gives the least seconds a program can take (the roofline):

  seconds = max(FLOPs / FLOP/s, bytes / (bytes/s))

What devices send one another is not in it. A loop is counted by the compiler as
one turn of it: `whole_flops` mends that.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from jspec import errors

# The one that belongs to the jax of setup.py; the Makefile has it too.
LIBTPU = 'libtpu==0.0.42.1'
_NAME = re.compile(r'(\w+):\d+(x\d+){1,2}')
# As the compiler says it of all that is held, and of temporaries alone.
_OUT_OF_HBM = (
  re.compile(r'Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm'),
  re.compile(
    r'temporaries \(([\d.]+)([KMG])\) exceeds available HBM'
    r' \(([\d.]+)([KMG])\)'
  ),
)
_UNITS = {'K': 2**10, 'M': 2**20, 'G': 2**30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """A device of a slice: a chip, and in `tpu7x` one of its two halves.

  Attributes:
    hbm_bytes: of memory that a program may have.
    bytes_per_s: between memory and chip.
    flops_per_s: of matmuls in bfloat16.
  """

  hbm_bytes: int
  bytes_per_s: float
  flops_per_s: float


def _gib(number):
  return int(number * 2**30)


# Memory as the compiler gives it away, speeds as Cloud TPU's documentation of
# the generation has them.
CHIPS = {
  'v4': Chip(hbm_bytes=_gib(30.75), bytes_per_s=1.228e12, flops_per_s=2.75e14),
  'v5e': Chip(hbm_bytes=_gib(15.75), bytes_per_s=8.19e11, flops_per_s=1.97e14),
  'v5p': Chip(hbm_bytes=_gib(95.74), bytes_per_s=2.765e12, flops_per_s=4.59e14),
  'v6e': Chip(hbm_bytes=_gib(31.25), bytes_per_s=1.64e12, flops_per_s=9.18e14),
  'tpu7x': Chip(
    hbm_bytes=_gib(94.75), bytes_per_s=3.69e12, flops_per_s=1.15e15
  ),
}


@dataclasses.dataclass(frozen=True)
class Slice:
  """Devices that programs are compiled for.

  Attributes:
    name: as libtpu reads it, such as 'v5e:4x4'.
    chip: what one of them has.
    devices: all of them.
  """

  name: str
  chip: Chip
  devices: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
  """Bytes of a program on a device.

  Attributes:
    arguments: what it is called with.
    temporary: while it runs, results that take no argument's place included.
    code: the program itself.
  """

  arguments: int
  temporary: int
  code: int

  @property
  def total(self) -> int:
    return self.arguments + self.temporary + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
  """What a device computes and moves in one call."""

  flops: float
  bytes: float

  def seconds(self, chip: Chip) -> float:
    """The roofline."""
    return max(self.flops / chip.flops_per_s, self.bytes / chip.bytes_per_s)

  def bound(self, chip: Chip) -> str:
    """What takes that long."""
    times = self.flops / chip.flops_per_s, self.bytes / chip.bytes_per_s
    return 'FLOPs' if times[0] > times[1] else 'bytes'


def whole_flops(program: Any, outside: Any, num_turns: int) -> float:
  """FLOPs of a program with a loop, of which the compiler counts one turn.

  Bytes are not counted like this: what is fetched ahead of its use may lie
  within the loop, and be done once.

  Args:
    program: compiled.
    outside: the same without its loop.
    num_turns: of the loop.
  """
  once, rest = cost(program).flops, cost(outside).flops
  return rest + num_turns * max(once - rest, 0.0)


def prepare() -> None:
  """Tells libtpu that there is no chip, and JAX to run on the CPU.

  Comes before JAX is used.

  Raises:
    UserError: libtpu is not installed.
  """
  os.environ.update(variables())


def variables() -> dict[str, str]:
  """Environment variables of a process that compiles for slices.

  libtpu would look for chips, and for the metadata server of a cloud machine.

  Raises:
    UserError: libtpu is not installed.
  """
  spec = importlib.util.find_spec('libtpu')
  if spec is None or spec.origin is None:
    raise errors.UserError(
      'the compiler for TPUs is not installed: run `pip install'
      f" '{LIBTPU}'` (0.7 GB)"
    )
  return {
    'JAX_PLATFORMS': 'cpu',
    'TPU_LIBRARY_PATH': str(pathlib.Path(spec.origin).parent / 'libtpu.so'),
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    # No chip is held, so two processes may compile at the same time.
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_STDERR_LOG_LEVEL': '3',
    'TPU_MIN_LOG_LEVEL': '3',
  }


def chip_of(name: str) -> Chip:
  """The chip of a slice, by the slice's name.

  Raises:
    UserError: the name is none, or of a generation that is not known.
  """
  found = _NAME.fullmatch(name)
  if found is None or found[1] not in CHIPS:
    raise errors.UserError(
      f'topology {name!r}: write a generation and its shape, as v5e:4x4 or'
      f' v5p:4x4x4; there are {", ".join(CHIPS)}'
    )
  return CHIPS[found[1]]


def find(name: str) -> Slice:
  """The slice of that name; `prepare` comes before.

  Raises:
    UserError: there is none.
  """
  chip = chip_of(name)
  from jax.experimental import topologies

  try:
    devices = topologies.get_topology_desc(name, platform='tpu').devices
  # The compiler's own, of several kinds.
  except Exception as error:
    first = str(error).strip().split('\n')[0]
    raise errors.UserError(
      f'topology {name!r} is none that the compiler knows ({first}): take a'
      ' shape that Cloud TPU has'
    ) from error
  return Slice(name, chip, tuple(devices))


def check(what: str, where: str, chip: Chip, needed: Mapping[str, int]) -> None:
  """Refuses arrays that do not fit, before anything is compiled.

  Args:
    what: is to lie there.
    where: the slice's name.
    chip: of the slice.
    needed: bytes of a device, by what they hold.

  Raises:
    UserError: in one line, with the bytes needed and the bytes there are.
  """
  if sum(needed.values()) > chip.hbm_bytes:
    raise too_small(what, where, sum(needed.values()), chip.hbm_bytes, needed)


def too_small(
  what: str,
  where: str,
  needed: int,
  there: int,
  parts: Mapping[str, int] | None = None,
) -> errors.UserError:
  """Says that a slice is too small.

  Args:
    what: is to lie there.
    where: the slice's name.
    needed: bytes of a device.
    there: bytes that a device has.
    parts: of `needed`, by name.
  """
  listed = ', '.join(f'{name} {size(n)}' for name, n in (parts or {}).items())
  return errors.UserError(
    f'{what} needs {size(needed)} on every device of {where}, which has'
    f' {size(there)}{f" ({listed})" if listed else ""}: take a larger slice, or'
    ' less of what grows (rows, context, batch)'
  )


def compiled(lowered: Any, what: str, where: str) -> Any:
  """Compiles a program for a slice.

  Args:
    lowered: of `jax.jit(...).lower`, its arguments lying on the slice.
    what: is compiled.
    where: the slice's name.

  Raises:
    UserError: it needs more memory than a device has.
  """
  import jax

  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    said = [pattern.search(str(error)) for pattern in _OUT_OF_HBM]
    found = next(filter(None, said), None)
    if found is None:
      raise
    needed, there = (
      int(float(number) * _UNITS[unit])
      for number, unit in (found.groups()[:2], found.groups()[2:])
    )
    raise too_small(what, where, needed, there) from error


def memory(program: Any) -> Memory:
  """What a compiled program needs on a device."""
  found = program.memory_analysis()
  results = max(found.output_size_in_bytes - found.alias_size_in_bytes, 0)
  return Memory(
    arguments=found.argument_size_in_bytes,
    temporary=found.temp_size_in_bytes + results,
    code=found.generated_code_size_in_bytes,
  )


def cost(program: Any) -> Cost:
  """What the compiler counts of a program, one turn of every loop."""
  found = program.cost_analysis()
  return Cost(
    flops=found.get('flops', 0.0), bytes=found.get('bytes accessed', 0.0)
  )


def bytes_on_device(tree: Any) -> int:
  """Bytes of a tree of shapes on one device, by how each of them lies."""
  import jax

  total = 0
  for leaf in jax.tree.leaves(tree):
    shape = leaf.shape
    if leaf.sharding is not None:
      shape = leaf.sharding.shard_shape(shape)
    num = leaf.dtype.itemsize
    for extent in shape:
      num *= extent
    total += num
  return total


def size(num_bytes: int | float) -> str:
  """Bytes for people."""
  return f'{num_bytes / 1e9:.2f} GB'
