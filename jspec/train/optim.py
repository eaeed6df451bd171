# SPDX-License-Identifier: MIT
"""AdamW, or Muon with AdamW beside it; no weight decay where it hurts.

Parameters are a flat dict of path to array, so which of them decay is a regex
over the paths: vectors (norm gains, biases, gates) and whatever `no_decay`
names stay out.
"""

import dataclasses
import re

import optax

from jspec import errors
from jspec.train import muon, schedules
from jspec.typing import Array

NAMES = ('adamw', 'muon')
# Root mean square of the entries of an AdamW step (arXiv 2502.16982).
_ADAMW_RMS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
  """Everything the optimiser reads.

  Attributes:
    name: 'adamw', or 'muon' for matrices and AdamW for all else.
    learning_rate: the peak, after warm-up.
    schedule: how it goes on: one of `schedules.SCHEDULES`.
    min_ratio: a decay ends at this share of the peak.
    warmup_steps: steps of linear warm-up.
    decay_share: share of the run that schedule 'wsd' decays for, at its end.
    decay_style: how it does: one of `schedules.DECAYS`.
    weight_decay: decoupled decay, times the learning rate.
    num_micro_batches: a batch goes through in so many portions, whose gradients
      add up to that of the whole: less memory, the same step.
    clip_norm: global gradient norm is cut to this.
    beta1: decay of the mean of gradients.
    beta2: decay of the mean of squares.
    momentum: decay of the mean of gradients of Muon.
    ema_decay: of an average of the parameters, which then is what is evaluated
      and exported; 0 for none.
    no_decay: regex; a parameter whose path it finds has no weight decay.
    others: regex; Muon leaves a matrix whose path it finds to AdamW: tables,
      heads, convolutions, routers.
  """

  name: str = 'adamw'
  learning_rate: float = 6e-4
  schedule: str = 'cosine'
  min_ratio: float = 0.1
  warmup_steps: int = 50
  decay_share: float = 0.2
  decay_style: str = 'linear'
  num_micro_batches: int = 1
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  beta1: float = 0.9
  beta2: float = 0.95
  momentum: float = 0.95
  ema_decay: float = 0.0
  no_decay: str = r'norm|bias|fusion\.mix|conv_base|router'
  others: str = (
    r'norm|bias|fusion\.mix|conv|(^|\.)head$|embed|markov|router|queries'
    r'|selector\.(prev|next)|rank_|confidence'
  )

  def __post_init__(self):
    choices = {
      'name': NAMES,
      'schedule': schedules.SCHEDULES,
      'decay_style': schedules.DECAYS,
    }
    for key, known in choices.items():
      value = getattr(self, key)
      if value not in known:
        raise errors.UserError(
          f'optim.{key} is {value}: choose one of {", ".join(known)}'
        )
    if self.num_micro_batches < 1:
      raise errors.UserError(
        f'optim.num_micro_batches is {self.num_micro_batches}: give 1 or more'
      )
    shares = {
      'min_ratio': 0 <= self.min_ratio <= 1,
      'decay_share': 0 < self.decay_share <= 1,
      'beta1': 0 <= self.beta1 < 1,
      'beta2': 0 <= self.beta2 < 1,
      'momentum': 0 <= self.momentum < 1,
      'ema_decay': 0 <= self.ema_decay < 1,
    }
    for key, holds in shares.items():
      if not holds:
        raise errors.UserError(
          f'optim.{key} is {getattr(self, key)}: give a share between 0 and 1'
        )
    if self.decay_style == 'exponential' and not self.min_ratio:
      raise errors.UserError(
        'optim.min_ratio is 0, which decay_style exponential never reaches:'
        ' raise it, or choose another style'
      )
    for key in ('no_decay', 'others'):
      try:
        re.compile(getattr(self, key))
      except re.error as error:
        raise errors.UserError(
          f'optim.{key} is no regular expression: {error}'
        ) from error


def schedule(config: OptimConfig, num_steps: int) -> optax.Schedule:
  """The learning rate of every step; see `schedules`."""
  return schedules.schedule(
    config.schedule,
    peak=config.learning_rate,
    num_steps=num_steps,
    warmup_steps=config.warmup_steps,
    min_ratio=config.min_ratio,
    decay_share=config.decay_share,
    decay_style=config.decay_style,
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
  rates = schedule(config, num_steps)

  def mask(params):
    return decays(config, params)

  adamw = optax.adamw(
    rates,
    b1=config.beta1,
    b2=config.beta2,
    weight_decay=config.weight_decay,
    mask=mask,
  )
  if config.name == 'adamw':
    chosen = adamw
  else:
    matrices = optax.contrib.muon(
      rates,
      beta=config.momentum,
      weight_decay=config.weight_decay,
      weight_decay_mask=mask,
      muon_weight_dimension_numbers=muon.dimension_numbers,
      consistent_rms=_ADAMW_RMS,
    )
    chosen = muon.optimizer(matrices, adamw, config.others)
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), chosen)
