# SPDX-License-Identifier: MIT
"""How the processes of a mesh find each other, before they load anything."""

import jax

from jspec import rendezvous
from jspec.serve import followers, following


def meet(host: str) -> followers.Leader | following.Follower:
  """Connects the processes of `jax.distributed`; all call it at once.

  The leader is process 0.

  Args:
    host: address of the leader, by which the others reach it; only the leader's
      own counts.

  Raises:
    UserError: the port cannot be opened, or not all came in time.
  """
  found = rendezvous.meet(host)
  if jax.process_index():
    return following.Follower(found[0])
  return followers.Leader(found)
