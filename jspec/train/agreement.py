# SPDX-License-Identifier: MIT
"""What the processes of a run have to agree on.

All of them run the same program, step by step, on their own devices; process 0
alone writes what is not arrays. So nothing may depend on what only one of them
knows: a signal, a clock, a file that differs.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jspec import errors
from jspec.train import layout


def is_first() -> bool:
  """Whether this process writes for all of them."""
  return jax.process_index() == 0


def told(on_message: Callable[[str], None]) -> Callable[[str], None]:
  """Takes messages in the first process and drops those of the others."""
  return on_message if is_first() else lambda message: None


def check_same(ours: Mapping[str, Any]) -> None:
  """Refuses processes that would train something else.

  Args:
    ours: of `workdir.check`: sections, as JSON.

  Raises:
    UserError: in all of them, naming one and what is different there.
  """
  if jax.process_count() == 1:
    return
  sections = {'config': ours['config'], **ours['inputs']}
  digests = [
    np.frombuffer(
      hashlib.sha256(json.dumps(part, sort_keys=True).encode()).digest()[:8],
      np.uint32,
    )
    for part in sections.values()
  ]
  found = multihost_utils.process_allgather(np.stack(digests))
  for process, theirs in enumerate(np.asarray(found)):
    is_same = np.all(theirs == found[0], axis=-1)
    for name, same in zip(sections, is_same, strict=True):
      if not same:
        raise errors.UserError(
          f'process {process} has another {name} than process 0: start all with'
          ' the same command, on the same files'
        )


class Votes:
  """Flags that count for all processes as soon as they count for one.

  Where there are several, a flag counts one step after it was raised: what the
  others say comes with the step before, so that nobody waits.
  """

  def __init__(self, mesh: Mesh):
    """Takes the mesh of the run."""
    self._last = None
    self._is_alone = jax.process_count() == 1
    self._whole = layout.whole(mesh)
    self._any = jax.jit(
      lambda votes: votes.max(axis=0), out_shardings=self._whole
    )
    self._lies = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(mesh.axis_names)
    )

  def count(self, *flags: bool) -> tuple[bool, ...]:
    """Which of the flags count now."""
    if self._is_alone:
      return flags
    mine = np.array([flags], np.int32)
    votes = jax.make_array_from_callback(
      (self._whole.mesh.size, len(flags)), self._lies, lambda index: mine
    )
    before, self._last = self._last, self._any(votes)
    if before is None:
      return (False,) * len(flags)
    return tuple(bool(x) for x in np.asarray(before))
