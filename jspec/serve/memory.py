# SPDX-License-Identifier: MIT
"""How many pages a device has room for, told before they are allocated.

  needed = pages x bytes a page + bytes of the rows
  fit    = (free - bytes of the rows) / bytes a page

Both are read off the shapes of the state, so whatever a drafter keeps counts,
and weights do not: they lie on the device already. What the programs need while
they run is known once they are compiled (`programs_bytes`).

An estimate can be wrong, and a backend may not say what is free; then the
allocation itself fails, and `explained` says the same of it.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from jspec import errors
from jspec.serve import container
from jspec.typing import PyTree

MEMINFO = pathlib.Path('/proc/meminfo')
EXHAUSTED = 'RESOURCE_EXHAUSTED'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
  """Bytes of an engine's state.

  Attributes:
    page_bytes: of a page, in all pools that share the page ids: the target's
      and the drafter's.
    rest_bytes: of everything else, which does not grow with the pages.
    num_pages: that are wanted.
    free_bytes: on the devices; None where nobody knows.
  """

  page_bytes: int
  rest_bytes: int
  num_pages: int
  free_bytes: int | None

  def check(self, more_bytes: int = 0) -> None:
    """Refuses what does not fit, with `more_bytes` for something else.

    Raises:
      UserError: in one line, with the number of pages that fit.
    """
    needed = self.page_bytes * self.num_pages + self.rest_bytes + more_bytes
    if self.free_bytes is not None and needed > self.free_bytes:
      raise self.error(more_bytes)

  def error(self, more_bytes: int = 0) -> errors.UserError:
    """Says how many pages fit."""
    text = (
      f'{self.num_pages} pages of {_size(self.page_bytes)} and'
      f' {_size(self.rest_bytes + more_bytes)} beside them do not fit into the'
      " device's memory"
    )
    if self.free_bytes is None:
      return errors.UserError(
        f'{text}: lower num_pages, or max_rows or max_len which it follows from'
      )
    room = self.free_bytes - self.rest_bytes - more_bytes
    fit = max(room // self.page_bytes, 0)
    mend = (
      f'set num_pages={fit} or less, or lower max_rows or max_len'
      if fit
      else 'free some, or lower max_rows'
    )
    return errors.UserError(
      f'{text}, of which {_size(self.free_bytes)} are free: {fit} pages fit;'
      f' {mend}'
    )


def allocated(
  make_state: Callable[..., PyTree], num_pages: int, model: PyTree
) -> tuple[PyTree, Needs]:
  """The state, if there is room for it, and what it needs.

  Args:
    make_state: makes the state over `num_pages` pages.
    num_pages: that are wanted.
    model: lies where the state will.

  Raises:
    UserError: there is too little memory, by the estimate or in fact.
  """
  one, two = (
    _bytes(jax.eval_shape(lambda num=num: make_state(num_pages=num)))
    for num in (1, 2)
  )
  needs = Needs(
    page_bytes=two - one,
    rest_bytes=2 * one - two,
    num_pages=num_pages,
    free_bytes=free(model),
  )
  needs.check()
  with explained(needs):
    return jax.block_until_ready(make_state(num_pages=num_pages)), needs


def free(model: PyTree) -> int | None:
  """Bytes that nobody uses where a model's arrays lie; None if unknown.

  A pool is spread over the devices of a mesh, so they are added up; the CPU's
  devices share one memory.
  """
  devices = {
    device
    for leaf in jax.tree.leaves(model)
    if isinstance(leaf, jax.Array)
    for device in leaf.devices()
  }
  if all(device.platform == 'cpu' for device in devices):
    return _available()
  if any(device.process_index != jax.process_index() for device in devices):
    return None  # Those of other processes say nothing here.
  stats = [device.memory_stats() or {} for device in devices]
  if not all('bytes_limit' in one for one in stats):
    return None
  return sum(one['bytes_limit'] - one['bytes_in_use'] for one in stats)


def programs_bytes(programs: Iterable[Any]) -> int:
  """What the hungriest of compiled programs needs beside its arguments.

  One runs at a time. Outputs that take the place of a donated argument are
  no more memory; backends that do not say count for nothing.
  """
  found = [program.memory_analysis() for program in programs]
  return max(
    (
      one.temp_size_in_bytes
      + max(one.output_size_in_bytes - one.alias_size_in_bytes, 0)
      for one in found
      if one is not None
    ),
    default=0,
  )


@contextlib.contextmanager
def explained(needs: Needs) -> Iterator[None]:
  """Tells memory that runs out inside as `Needs.check` would.

  Raises:
    UserError: the memory of the device was exhausted.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if EXHAUSTED not in str(error):
      raise
    raise needs.error() from error


def _bytes(state):
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def _available():
  """Bytes that Linux could give to this process without swapping."""
  known = [room for room in (container.room(),) if room is not None]
  try:
    text = MEMINFO.read_text(encoding='utf-8')
  except OSError:
    text = ''
  for line in text.splitlines():
    name, _, value = line.partition(':')
    if name == 'MemAvailable':
      known.append(int(value.split()[0]) * 1024)
  return min(known, default=None)


def _size(num_bytes):
  for unit in ('B', 'kB', 'MB', 'GB'):
    if num_bytes < 1000 or unit == 'GB':
      break
    num_bytes /= 1000
  return f'{num_bytes:.{0 if unit == "B" else 1}f} {unit}'
