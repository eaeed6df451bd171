# SPDX-License-Identifier: MIT
"""What a compiled step computes carries the name of its part."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.testing import toy
from jspec.train import optim, step
from tests.evals import unchecked
from tests.train import tiny

SCOPES = ('target', 'draft', 'loss', 'optimizer')


def compiled_step(**changes):
  """The text of a step of a toy drafter, its target in the step."""
  target = tiny.loaded().model
  drafter = toy.drafter(target, taps=(0, 2), **changes)
  parts = step.split(drafter)
  optimizer = optim.optimizer(optim.OptimConfig(warmup_steps=1), 10)
  graphdef, arrays = nnx.split(target)
  rows = np.ones((2, 16), np.int32)
  batch = {
    'tokens': jnp.asarray(rows),
    'positions': jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32), (2, 16)),
    'segments': jnp.asarray(rows),
    'is_answer': jnp.asarray(rows, bool),
  }
  state = step.init(parts, optimizer, jax.random.key(0))
  taps_of = step.online_taps(graphdef, tuple(drafter.taps), needs_last=False)
  function = functools.partial(
    step.train_step, parts.merge, taps_of, optimizer, None
  )
  with unchecked.constructors():
    lowered = jax.jit(function).lower(state, parts.frozen, arrays, batch)
  return lowered.compile().as_text()


def names(text, operation):
  """The paths of scopes of an operation's instances."""
  found = []
  for line in text.splitlines():
    if re.search(rf' {operation}\(', line):
      path = re.search(r'op_name="([^"]*)"', line)
      found.append(path.group(1) if path else '')
  return found


def scopes(path):
  """The scopes in a path such as `jit(f)/transpose(jvp(draft))/loss/dot`."""
  words = re.findall(r'\w+', path)
  return [scope for scope in SCOPES if scope in words]


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def text():
  return compiled_step()


def test_every_matmul_lies_in_a_scope(text):
  counts = collections.Counter()
  # What the compiler makes by itself has no name.
  for path in filter(None, names(text, 'dot')):
    found = scopes(path)
    assert found, path
    counts[found[-1]] += 1
  assert set(counts) == {'target', 'draft', 'loss'}


def test_optimizer_has_a_scope(text):
  assert 'optimizer' in {
    scope
    for operation in ('multiply', 'add', 'sqrt', 'fusion')
    for path in names(text, operation)
    for scope in scopes(path)
  }


def test_nothing_goes_back_through_the_target(text):
  paths = [path for path in names(text, 'dot') if 'transpose' in path]
  assert any('draft' in scopes(path) for path in paths)
  assert not any('target' in scopes(path) for path in paths)


def test_scopes_are_not_found_where_there_are_none():
  def plain(x):
    return x @ x

  lowered = jax.jit(plain).lower(jnp.ones((4, 4)))
  paths = names(lowered.compile().as_text(), 'dot')
  assert paths and not any(scopes(path) for path in paths)
