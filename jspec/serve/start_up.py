# SPDX-License-Identifier: MIT
"""Before traffic: memory is taken and every program compiled.

  room for the pages?  state on the device  programs compiled  room for those?

What does not fit is refused before it is taken, with the pages that would fit
(`memory`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh

from jspec import errors, tree
from jspec.drafters import on_host
from jspec.serve import device as device_lib
from jspec.serve import (
  empty,
  executables,
  fingerprint,
  followers,
  host_drafts,
  memory,
  placement,
  programs,
)
from jspec.serve import settings as settings_lib


class Parts(NamedTuple):
  """What an engine is made of.

  Attributes:
    settings: as they were given, or the defaults.
    host: asks a drafter on the host; None: there is none.
    given: who drafts on the device, as it was given; None decodes plainly.
    drafter: the same with what the settings add to it.
    sizes: what the settings come to.
  """

  settings: settings_lib.Settings
  host: host_drafts.HostDrafts | None
  given: Any
  drafter: Any
  sizes: settings_lib.Sizes


def parts(target, drafter, settings: settings_lib.Settings | None) -> Parts:
  """What follows from what a user gives to an engine.

  Raises:
    UserError: sizes the target or the drafter cannot have, or a policy that is
      not lossless with such drafts.
  """
  host = None
  if isinstance(drafter, on_host.OnHost):
    host = host_drafts.HostDrafts(drafter.host)
    drafter = on_host.Place(drafter.num_draft_tokens)
  settings = settings_lib.Settings() if settings is None else settings
  extended = settings_lib.extended(settings, drafter)
  tree.check_size(1 if extended is None else extended.num_draft_tokens + 1)
  sizes = settings_lib.resolve(settings, target, extended)
  return Parts(settings, host, drafter, extended, sizes)


def prepare(
  target,
  drafter,
  sizes: settings_lib.Sizes,
  *,
  is_split: bool,
  mesh: Mesh | None = None,
  link: Any = None,
  kept: executables.Folder | None = None,
  on_progress: Callable[[int, int, str], None] | None = None,
) -> tuple[device_lib.Device, programs.Programs]:
  """A device with empty rows, and all that it can run.

  Args:
    target: the model.
    drafter: who drafts on the device; None decodes plainly.
    sizes: of the engine.
    is_split: whether the host may have a part in a round.
    mesh: what they are shared out over; None: they stay where they are.
    link: to the other processes of the mesh (`meeting.meet`); None: there are
      none.
    kept: where programs are kept between starts; None: nowhere.
    on_progress: called with (programs done, all of them, the key just done).

  Raises:
    UserError: the mesh does not fit the target, there is too little memory, or
      other processes would run something else.
  """
  if mesh is not None:
    mesh = placement.checked(mesh)
    if placement.is_shared(mesh) != (link is not None):
      raise errors.UserError(
        'the devices of the mesh belong to several processes, which were not'
        ' connected: give what `meeting.meet` returns'
        if link is None
        else 'processes were connected whose devices are not in the mesh'
      )
    if link is not None:
      link.agree(
        fingerprint.facts(target, drafter, sizes, mesh, is_split=is_split)
      )
    target, drafter = placement.models(target, drafter, mesh)
  pool = sizes.scheduler
  shapes = programs.Shapes(
    row_buckets=sizes.row_buckets,
    chunk_sizes=pool.chunk_sizes,
    num_rounds=pool.num_rounds,
    num_budgets=sizes.num_budgets,
    policies=sizes.policies,
    rule=sizes.rule,
    is_split=is_split,
  )
  make_state = functools.partial(
    empty.init_state,
    target,
    drafter,
    num_rows=pool.max_rows,
    page_size=pool.page_size,
    capacity=sizes.capacity,
  )
  if mesh is not None:
    make_state = functools.partial(placement.state, make_state, mesh)
  state, needs = memory.allocated(make_state, pool.num_pages, target)
  found = programs.sources(target, drafter, state, shapes, pool.max_len, mesh)
  with memory.explained(needs):
    compiled = programs.compile_all(found, on_progress, kept)
  needs.check(memory.programs_bytes(compiled[key] for key in compiled))
  if link is not None:
    link.ready()
  leads = isinstance(link, followers.Leader)
  device = device_lib.Device(
    target,
    drafter,
    state,
    compiled,
    shapes,
    pool.max_len,
    leader=link if leads else None,
    policy_names=sizes.policy_names,
  )
  return device, compiled
