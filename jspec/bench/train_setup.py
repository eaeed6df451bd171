# SPDX-License-Identifier: MIT
"""A training run up to its first step, on one device, and its step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.data import examples, pipeline
from jspec.train import optim, prepare, settings, step


@dataclasses.dataclass
class Setup:
  """What a step needs; `found` are the documents."""

  found: list[examples.Document]
  drafter: Any
  parts: step.Parts
  taps_of: Callable[..., Any]
  target: Any
  judge: Any
  optimizer: Any
  state: step.TrainState
  batches: Any


def prepared(config: settings.TrainConfig, loaded: Any) -> Setup:
  """What `train.loop` has before its first step, on one device."""
  found = prepare.documents(config, loaded, _silent)
  train, _ = prepare.split(
    found, config.eval.held_out, config.data.domains, config.data.weights
  )
  drafter = prepare.drafter(config, loaded, [found[n] for n in train])
  graphdef, target = nnx.split(loaded.model)
  taps_of = step.online_taps(
    graphdef, tuple(drafter.taps), needs_last=drafter.needs_last
  )
  batches = pipeline.training(
    pipeline.Documents(found),
    train,
    seed=config.seed,
    domains=[found[n].domain for n in train],
    weights=config.data.weights,
    row_len=config.data.row_len,
    num_rows=config.data.num_rows,
  )
  first = jax.device_put(next(batches))
  drafter.calibrate(step.as_draft_batch(first, *taps_of(target, first)))
  parts = step.split(drafter)
  optimizer = optim.optimizer(config.optim, config.num_steps)
  state = step.init(
    parts,
    optimizer,
    jax.random.key(config.seed),
    has_average=config.optim.ema_decay > 0,
  )
  needs_judge = getattr(drafter, 'needs_judge', False)
  judge = step.judge_of(graphdef) if needs_judge else None
  return Setup(
    found, drafter, parts, taps_of, target, judge, optimizer, state, batches
  )


def _silent(line):
  """Takes a message and says nothing."""


class Stepper:
  """Makes steps one behind the other; `function` donates the state."""

  def __init__(self, config, setup):
    self._setup = setup
    # A copy: parts are timed on the state of the start.
    self._state = jax.tree.map(jnp.array, setup.state)
    self.function = functools.partial(
      step.train_step,
      setup.parts.merge,
      setup.taps_of,
      setup.optimizer,
      setup.judge,
      ema_decay=config.optim.ema_decay,
      num_micro_batches=config.optim.num_micro_batches,
    )
    self._jitted = jax.jit(self.function, donate_argnums=0)

  def __call__(self, batch):
    setup = self._setup
    self._state, values = self._jitted(
      self._state, setup.parts.frozen, setup.target, batch
    )
    return values
