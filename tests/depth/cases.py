# SPDX-License-Identifier: MIT
"""Random rounds, and the best plan by trying all of them."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jspec.depth import base, costs


def load(is_active, limits):
  return base.Load(jnp.asarray(is_active, bool), jnp.asarray(limits, jnp.int32))


def full_load(rows, depth):
  return load(np.ones(rows), np.full(rows, depth))


def scores_of(confidence):
  return jnp.asarray(np.cumprod(np.asarray(confidence, float), 1), jnp.float32)


def make(nodes, seconds, draft_s):
  """A table from numpy arrays."""
  return costs.make(
    np.asarray(nodes).tolist(), np.asarray(seconds).tolist(), float(draft_s)
  )


def even_costs(most, base_s=1.0, node_s=0.1, draft_s=0.2):
  """One budget for every number of nodes: an affine cost."""
  nodes = np.arange(1, most + 1)
  return make(nodes, base_s + node_s * nodes, draft_s)


def random_staircase(rng, most, steps=4):
  """Steps of unequal width and height, the last one at `most` nodes."""
  nodes = rng.choice(np.arange(1, most), size=steps - 1, replace=False)
  nodes = np.sort([*nodes, most])
  seconds = np.cumsum(rng.choice([0.02, 0.3, 1.0], size=steps)) + 0.5
  return make(nodes, seconds, rng.uniform(0, 0.5))


def random_round(rng, rows=3, depth=3):
  scores = scores_of(rng.beta(3, rng.uniform(0.3, 3), (rows, depth)))
  is_active = rng.random(rows) < 0.8
  is_active[rng.integers(rows)] = True
  limits = rng.integers(0, depth + 2, rows)
  return scores, load(is_active, limits)


def jitted(function):
  """Compiled once a test run: eagerly every operation compiles by itself."""
  # Methods of equal policies are one program, though not equal themselves.
  owner = getattr(function, '__self__', None)
  return _jitted(owner, function.__name__, _Uncompared(function))


@dataclasses.dataclass(frozen=True)
class _Uncompared:
  function: Callable = dataclasses.field(compare=False)


@functools.cache
def _jitted(owner, name, uncompared):
  return jax.jit(uncompared.function)


def plan(policy, scores, who, table):
  return np.asarray(jitted(policy.plan)(scores, who, table))


def rate(plan, scores, who, table):
  """Expected tokens per second of a plan, in float64; -inf if impossible."""
  active = int(np.sum(np.asarray(who.is_active)))
  nodes = active + int(np.sum(plan))
  budgets = np.asarray(table.nodes)
  if nodes > budgets[-1]:
    return -np.inf
  step = int(np.argmax(budgets >= nodes))
  seconds = float(table.draft_s) + float(table.verify_s[step])
  kept = np.asarray(scores, float)
  gained = sum(kept[row, :count].sum() for row, count in enumerate(plan))
  return (active + gained) / seconds


def all_plans(who, depth):
  most = np.where(who.is_active, np.minimum(who.limits, depth), 0)
  return itertools.product(*(range(m + 1) for m in most))


def best_rate(scores, who, table):
  return max(
    rate(plan, scores, who, table) for plan in all_plans(who, scores.shape[1])
  )
