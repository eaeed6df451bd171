# SPDX-License-Identifier: MIT
"""The matrix products of a program, and what they take alone.

  floor = sum over products of times run * seconds of one

Products are read from the traced program, with how often loops repeat them; of
branches the one with most work counts. What nothing uses is left out, as the
compiler does. Alone, a product runs some times in a loop whose barrier keeps
the compiler from running it once.

Not seen: products inside Pallas kernels and those with ragged groups, and loops
whose length the program does not know; `uncounted` says how many there are.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

# A loop takes about so many operations, so that starting it does not show.
_FLOP = 1.5e9
_MOST_REPEATS = 256
_OPAQUE = ('pallas_call', 'ragged_dot_general', 'ragged_dot')


@dataclasses.dataclass(frozen=True)
class Matmul:
  """A product by all that its time depends on.

  Attributes:
    lhs: shape of the left side.
    rhs: shape of the right side.
    dtypes: of both sides and of the result.
    dims: (contracted, batch) axes, each of both sides.
    precision: as the program asks for it.
  """

  lhs: tuple[int, ...]
  rhs: tuple[int, ...]
  dtypes: tuple[str, str, str]
  dims: tuple
  precision: Any

  @property
  def flop(self) -> int:
    """Operations of one product."""
    (_, contracted), (_, batch) = self.dims
    given = {*contracted, *batch}
    free = [x for axis, x in enumerate(self.rhs) if axis not in given]
    return 2 * math.prod(self.lhs) * math.prod(free)

  @property
  def repeats(self) -> int:
    """How often a loop runs it."""
    return max(1, min(_MOST_REPEATS, int(_FLOP / max(self.flop, 1))))


@dataclasses.dataclass
class Found:
  """Products of a program.

  Attributes:
    counts: how often each is run.
    uncounted: operations that may hold products which are not among them.
  """

  counts: collections.Counter[Matmul] = dataclasses.field(
    default_factory=collections.Counter
  )
  uncounted: int = 0

  @property
  def flop(self) -> int:
    """Operations of all of them."""
    return sum(matmul.flop * num for matmul, num in self.counts.items())

  def floor(self, seconds: dict[Matmul, float]) -> float:
    """Seconds of all of them, from those of one run of each."""
    times = (num * seconds[matmul] for matmul, num in self.counts.items())
    return sum(times, 0.0)


def find(function: Callable[..., Any], *args: Any) -> Found:
  """The products that a call makes; `args` are arrays or their shapes."""
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, True, True)
  found = Found()
  _visit(jaxpr, 1, found)
  return found


def program(matmul: Matmul, seed: int = 0) -> Callable[[], jax.Array]:
  """Runs a product `matmul.repeats` times; compiled when first called."""
  rng = np.random.default_rng(seed)
  sides = [
    jnp.asarray(rng.standard_normal(shape, np.float32), dtype)
    for shape, dtype in zip(
      (matmul.lhs, matmul.rhs), matmul.dtypes[:2], strict=True
    )
  ]

  def product(lhs, rhs):
    return jax.lax.dot_general(
      lhs,
      rhs,
      matmul.dims,
      precision=matmul.precision,
      preferred_element_type=matmul.dtypes[2],
    )

  @jax.jit
  def loop(lhs, rhs):
    def body(_, out):
      lhs_, rhs_, _ = jax.lax.optimization_barrier((lhs, rhs, out))
      return product(lhs_, rhs_)

    shape = jax.eval_shape(product, lhs, rhs)
    first = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.fori_loop(0, matmul.repeats, body, first)

  return functools.partial(loop, *sides)


def _visit(jaxpr, times, found):
  for equation in jaxpr.eqns:
    name, params = equation.primitive.name, equation.params
    if name == 'dot_general':
      found.counts[_matmul(equation)] += times
    elif name in _OPAQUE:
      found.uncounted += 1
    elif name == 'scan':
      _visit(params['jaxpr'].jaxpr, times * params['length'], found)
    elif name == 'while':
      body = Found()
      _visit(params['body_jaxpr'].jaxpr, times, body)
      found.uncounted += body.uncounted + bool(body.counts)
    elif name == 'cond':
      branches = [Found() for _ in params['branches']]
      for branch, inside in zip(params['branches'], branches, strict=True):
        _visit(branch.jaxpr, times, inside)
      most = max(branches, key=lambda inside: inside.flop)
      found.counts += most.counts
      found.uncounted += most.uncounted
    else:
      for inner in _inner(params):
        _visit(inner, times, found)


def _inner(params):
  """Programs that an operation such as a call of a jitted function holds."""
  for value in params.values():
    inner = getattr(value, 'jaxpr', value)
    if hasattr(inner, 'eqns'):
      yield inner


def _matmul(equation):
  lhs, rhs = (x.aval for x in equation.invars)
  (out,) = (x.aval for x in equation.outvars)
  return Matmul(
    lhs=tuple(lhs.shape),
    rhs=tuple(rhs.shape),
    dtypes=(str(lhs.dtype), str(rhs.dtype), str(out.dtype)),
    dims=jax.tree.map(
      int,
      tuple(
        tuple(tuple(axes) for axes in pair)
        for pair in equation.params['dimension_numbers']
      ),
    ),
    precision=equation.params['precision'],
  )
