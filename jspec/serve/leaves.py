# SPDX-License-Identifier: MIT
"""Models travel to programs as their leaves.

To call a compiled program, its arguments are taken apart. For a module of 30
layers that takes Python milliseconds at every launch, for a tuple microseconds.
"""

from collections.abc import Callable
from typing import Any

import jax

from jspec.typing import Array


def of(model: Any) -> tuple[Array, ...]:
  """The arrays of a model, or of None, in order."""
  return tuple(jax.tree.leaves(model))


def taking(function: Callable[..., Any], *models: Any) -> Callable[..., Any]:
  """`function` that takes the leaves of its first arguments, `models`."""
  trees = [jax.tree.structure(model) for model in models]

  def run(*arguments):
    whole = map(jax.tree.unflatten, trees, arguments)
    return function(*whole, *arguments[len(trees) :])

  return run
