# SPDX-License-Identifier: MIT
"""FLOPs of a traced program: its matmuls, every turn of its loops.

  [M, D] x [D, F]               2 M D F
  rows by expert (ragged_dot)   2 rows D F: a row meets one matrix
  scan                          its length times its body
  cond                          its largest branch
  while                         once: nobody knows its turns
  a Pallas kernel               what its cost estimate says

A compiler counts a loop once, whatever its length. Here nothing but matmuls is
counted, which is nearly all that a network computes; and nothing that no result
needs.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval


def count(function: Callable[..., Any], *args: Any) -> int:
  """FLOPs of `function(*args)`, on all devices together.

  Args:
    function: to be traced.
    *args: arrays or shapes.
  """
  return of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def of_jaxpr(jaxpr: core.Jaxpr) -> int:
  """FLOPs of a traced program."""
  needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return _of_all(needed)


def _of_all(jaxpr):
  return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(eqn):
  name = eqn.primitive.name
  if name == 'dot_general':
    (contracted, _), _ = eqn.params['dimension_numbers']
    return _matmul(eqn, contracted)
  if name == 'ragged_dot_general':
    numbers = eqn.params['ragged_dot_dimension_numbers']
    (contracted, _), _ = numbers.dot_dimension_numbers
    ragged = numbers.lhs_ragged_dimensions
    # Where rows are summed by expert (the gradient of the matrices) every row
    # still meets one matrix.
    if ragged[0] in contracted:
      rows = eqn.invars[0].aval.shape[ragged[0]]
      per_expert = math.prod(eqn.outvars[0].aval.shape[1:])
      return 2 * rows * per_expert
    return _matmul(eqn, contracted)
  if name == 'pallas_call':
    estimate = eqn.params.get('cost_estimate')
    return 0 if estimate is None else estimate.flops
  inside = [_of_all(jaxpr) for jaxpr in _inside(eqn)]
  if name == 'cond':
    return max(inside)
  turns = eqn.params['length'] if name == 'scan' else 1
  # The body of a `shard_map` is what one device does.
  devices = eqn.params['mesh'].size if name == 'shard_map' else 1
  return turns * devices * sum(inside)


def _matmul(eqn, contracted):
  left = eqn.invars[0].aval.shape
  summed = math.prod(left[axis] for axis in contracted)
  return 2 * math.prod(eqn.outvars[0].aval.shape) * summed


def _inside(eqn):
  """Programs among an equation's parameters."""
  for value in eqn.params.values():
    for one in value if isinstance(value, (tuple, list)) else (value,):
      if isinstance(one, core.ClosedJaxpr):
        yield one.jaxpr
      elif isinstance(one, core.Jaxpr):
        yield one
