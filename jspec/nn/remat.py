# SPDX-License-Identifier: MIT
"""What a layer keeps for its gradient, and what is computed again.

  none   everything its gradient needs
  dots   inputs, and what matmuls with weights gave; attention, norms and gates
         are computed again
  full   inputs alone

The trainer says which around what it traces (`over`), models wrap what is one
layer (`layer`). Values and gradients are the same. A frozen target keeps
nothing, whatever is said here: no gradient goes through it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax

POLICIES = ('none', 'dots', 'full')

_NOW: contextvars.ContextVar[str] = contextvars.ContextVar(
  'remat', default='none'
)


@contextlib.contextmanager
def over(policy: str) -> Iterator[None]:
  """What is traced inside has that policy, one of `POLICIES`."""
  token = _NOW.set(policy)
  try:
    yield
  finally:
    _NOW.reset(token)


def layer(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, as the policy says; arguments and results are arrays."""
  policy = _NOW.get()
  if policy == 'none':
    return function
  saved = None
  if policy == 'dots':
    saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
  return jax.checkpoint(function, policy=saved)
