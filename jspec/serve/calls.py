# SPDX-License-Identifier: MIT
"""Every call of a program goes through here, on one host or on several.

  state, result = programs[key](*models, state, *said)

`said` is what the host says, in plain containers (`bare`). Where the devices of
a mesh belong to several processes, all of them have to make the same calls in
the same order. So the leader tells the others first (`followers`), and they
call what it calls, on their share of the state:

  leader     send k | call k | read the report of k - 1
  follower            call k | drop the report

Reports are whole on every device, so nothing comes back over the network.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jspec import errors, tree
from jspec.decode import round as round_lib
from jspec.serve import bare, followers, leaves, placement, programs
from jspec.targets import sharding

# Which models a program takes, of target and drafter.
_TAKES = {
  programs.ADMIT: (1,),
  programs.START: (),
  programs.PREFILL: (0, 1),
  programs.PROPOSE: (1,),
  programs.FUSED: (0, 1),
  programs.PLAIN: (0, 1),
}


class Calls:
  """The state, and the programs that change it.

  Attributes:
    state: as the last call leaves it.
    proposed: the drafts proposed last.
  """

  def __init__(
    self,
    target,
    drafter,
    state: round_lib.State,
    compiled: programs.Programs,
    shapes: programs.Shapes,
    leader: followers.Leader | None = None,
  ):
    self.state, self.proposed = state, None
    self._given = target, drafter
    self._models = leaves.of(target), leaves.of(drafter)
    self._programs, self._shapes, self._leader = compiled, shapes, leader
    pool = state.cache.pages.sharding
    self._mesh = None if pool is None else pool.mesh
    self._is_shared = placement.is_shared(self._mesh)
    # CPUs deadlock with many programs of several processes on their way.
    self._is_one_by_one = self._is_shared and _is_cpu(self._mesh)
    self._nothing, self._no_drafts = {}, {}

  def __call__(self, key: programs.Key, *said: Any) -> Any:
    """Sends work and returns at once what comes out beside the state.

    Raises:
      Lost: a follower is gone.
    """
    program = self._programs[key]
    if self._leader is not None:
      said = jax.tree.map(_on_host, said)
      self._leader.send(list(key), said)
    if self._is_one_by_one:
      self.wait(self.state.remaining)
    if key.form in (programs.FUSED, programs.PLAIN):
      said = jax.tree.map(lambda leaf: self._here(key, leaf), said)
    models = [self._models[i] for i in _TAKES[key.form]]
    found = program(*models, self.state, *said)
    if key.form in (programs.ADMIT, programs.START):
      self.state, found = found, None
    elif key.form == programs.PROPOSE:
      self.proposed = found
    else:
      self.state, found = found
    return found

  def follow(self, receive: Callable[[], Any]) -> None:
    """Makes the calls that `receive` tells of, until that says None."""
    while (told := receive()) is not None:
      (form, size), said = told
      self(programs.Key(form, size), *said)

  def wait(self, found: Any) -> None:
    """Until arrays that are on their way are there.

    Raises:
      Lost: a follower is gone, so that they may never come.
    """
    if self._leader is None:
      jax.block_until_ready(found)
    else:
      self._leader.wait(lambda: jax.block_until_ready(found))

  def close(self) -> None:
    """Tells followers that nothing more comes."""
    if self._leader is not None:
      self._leader.close()

  def set_drafter(self, drafter) -> None:
    """Lets another one draft, of the same form.

    Raises:
      UserError: other processes would still draft with the one before.
    """
    if self._is_shared:
      raise errors.UserError(
        'the drafter of an engine on several hosts cannot be swapped: start all'
        ' of them again with the new one'
      )
    if self._mesh is not None:
      drafter = jax.device_put(drafter, placement.whole(self._mesh))
    self._given = self._given[0], drafter
    self._models = self._models[0], leaves.of(drafter)

  def no_draft(self, num_rows: int) -> tree.Draft:
    """The draft of a round of `num_rows` that is given none."""
    if num_rows not in self._no_drafts:
      nothing = self._unsaid(programs.Key(programs.PLAIN, num_rows))
      self._no_drafts[num_rows] = tree.Draft(**nothing['draft'])
    return self._no_drafts[num_rows]

  def _here(self, key, leaf):
    if not isinstance(leaf, bare.Held):
      return leaf
    if leaf == bare.PROPOSED:
      return bare.of(self.proposed)
    nothing = self._unsaid(key)
    return nothing if leaf == bare.NOTHING else nothing['draft']

  def _unsaid(self, key):
    """What is given where the host says nothing."""
    if key not in self._nothing:
      shapes = programs.given(
        *self._given, self.state, key.size, key.form, self._shapes
      )
      lies = None if self._mesh is None else placement.whole(self._mesh)
      # On the device once and for all: it may be megabytes of masks.
      self._nothing[key] = jax.tree.map(
        lambda leaf: sharding.put(np.zeros(leaf.shape, leaf.dtype), lies),
        bare.of(shapes),
      )
    return self._nothing[key]


def _on_host(leaf):
  """Arrays of this process as numpy, for the others."""
  return leaf if isinstance(leaf, bare.Held) else np.asarray(leaf)


def _is_cpu(mesh):
  return mesh.devices.flat[0].platform == 'cpu'
