# SPDX-License-Identifier: MIT
"""AdamW with warm-up, cosine decay, clipping, and no decay where it hurts.

Parameters are a flat dict of path to array, so which of them decay is a regex
over the paths: vectors (norm gains, biases) and whatever `no_decay` names stay
out.
"""

import dataclasses
import re

import optax

from jspec import errors
from jspec.typing import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
  """Everything the optimiser reads.

  Attributes:
    learning_rate: the peak, after warm-up.
    min_ratio: the cosine ends at this share of the peak.
    warmup_steps: steps of linear warm-up.
    weight_decay: decoupled decay, times the learning rate.
    clip_norm: global gradient norm is cut to this.
    beta1: decay of the mean of gradients.
    beta2: decay of the mean of squares.
    no_decay: regex; a parameter whose path it finds has no weight decay.
  """

  learning_rate: float = 6e-4
  min_ratio: float = 0.1
  warmup_steps: int = 50
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  beta1: float = 0.9
  beta2: float = 0.95
  no_decay: str = r'norm|bias|fusion\.mix|conv_base'


def schedule(config: OptimConfig, num_steps: int) -> optax.Schedule:
  """Linear warm-up, then half a cosine down to `min_ratio`."""
  if config.warmup_steps >= num_steps:
    raise errors.UserError(
      f'optim.warmup_steps is {config.warmup_steps} but num_steps is '
      f'{num_steps}: warm up for fewer steps'
    )
  return optax.warmup_cosine_decay_schedule(
    init_value=config.learning_rate / max(config.warmup_steps, 1),
    peak_value=config.learning_rate,
    warmup_steps=config.warmup_steps,
    decay_steps=num_steps,
    end_value=config.learning_rate * config.min_ratio,
  )


def decays(config: OptimConfig, params: dict[str, Array]) -> dict[str, bool]:
  """Says of each parameter whether weight decay applies."""
  return {
    path: value.ndim > 1 and re.search(config.no_decay, path) is None
    for path, value in params.items()
  }


def optimizer(
  config: OptimConfig, num_steps: int
) -> optax.GradientTransformation:
  """Builds the transformation; its state counts the steps it made."""
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule(config, num_steps),
      b1=config.beta1,
      b2=config.beta2,
      weight_decay=config.weight_decay,
      mask=lambda params: decays(config, params),
    ),
  )
