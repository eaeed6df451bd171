# SPDX-License-Identifier: MIT
"""What can decide about a round in a simulation.

  plain             never proposes
  static,depth=4    a policy of `depth.api`, with its options
  dcut+guard        a policy under `depth.guard`, which may decode plainly or
                    verify the whole block instead, by the rates it measured
  oracle            knows what will be accepted (`depth.oracle`): the best of
                    this round, plain decoding included, not of all rounds

A plan is compiled once for each policy and padded number of rows.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.depth import api, base, oracle, static

PLAIN, ORACLE = 'plain', 'oracle'
_GUARD = '+guard'
_DEPTH_0 = static.Static(depth=0)


@dataclasses.dataclass(frozen=True)
class Contender:
  """A rule of rounds; `policy` is None for the oracle and for plain rounds."""

  name: str
  policy: base.DepthPolicy | None
  is_guarded: bool = False

  @property
  def is_plain(self) -> bool:
    return self.name == PLAIN

  @property
  def is_oracle(self) -> bool:
    return self.name == ORACLE


def make(spec: str) -> Contender:
  """Reads a contender.

  Raises:
    UserError: an unknown policy or option, or a guard over what needs none.
  """
  if spec in (PLAIN, ORACLE):
    return Contender(spec, None)
  name = spec.removesuffix(_GUARD)
  if name in (PLAIN, ORACLE):
    raise errors.UserError(
      f'{spec!r}: the guard stands over a policy; write dcut{_GUARD}'
    )
  policy = api.make(name)
  if policy == _DEPTH_0:
    # The engine has a program without proposing for it.
    return Contender(PLAIN, None)
  return Contender(spec, policy, name != spec)


@functools.cache
def planner(policy: base.DepthPolicy) -> Callable:
  """The compiled plan: scores, is_active, limits, costs -> counts.

  It takes numpy arrays: to call it is most of what a simulated round takes.
  """

  def plan(scores, is_active, limits, costs):
    return policy.plan(scores, base.Load(is_active, limits), costs)

  return jax.jit(plan)


@functools.cache
def hindsight() -> Callable:
  """The compiled plan of the oracle: is_accepted, then as of `planner`."""

  def plan(is_accepted, is_active, limits, costs):
    accepted = jnp.minimum(jnp.sum(is_accepted, axis=1, dtype=int), limits)
    load = base.Load(is_active, limits)
    return oracle.plan(accepted, load, costs, is_accepted.shape[1])

  return jax.jit(plan)
