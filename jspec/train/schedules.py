# SPDX-License-Identifier: MIT
"""The learning rate over a run, as a share of its peak.

  share
  1.0 |    ____________          wsd: warm up, stay, decay
      |   /            :.        cosine, linear: decay from the peak on
      |  /               :.      constant, inverse_sqrt: no end is planned for
  min | /                  :     (inverse_sqrt stops at `min_ratio`)
      +---+------------+----+-> step
     warm-up        decay_share

With x from 0 to 1 over the decay and m = `min_ratio`, the styles of decay are

  linear       1 - (1 - m) x
  cosine       m + (1 - m) (1 + cos(pi x)) / 2
  sqrt         1 - (1 - m) sqrt(x)              (arXiv 2405.18392, section 3)
  exponential  m ** x                           (arXiv 2404.06395, section 4)

The count is that of steps made: a skipped step does not use any of it up.
"""

import jax.numpy as jnp
import optax

from jspec import errors

SCHEDULES = ('constant', 'linear', 'cosine', 'inverse_sqrt', 'wsd')
DECAYS = ('linear', 'cosine', 'sqrt', 'exponential')


def schedule(
  name: str,
  *,
  peak: float,
  num_steps: int,
  warmup_steps: int,
  min_ratio: float,
  decay_share: float,
  decay_style: str,
) -> optax.Schedule:
  """Builds the learning rate of every step.

  Args:
    name: one of `SCHEDULES`.
    peak: learning rate after warm-up.
    num_steps: of the run.
    warmup_steps: of linear warm-up.
    min_ratio: share of the peak at the end of a decay.
    decay_share: share of the run that 'wsd' decays for, at its end.
    decay_style: how 'wsd' decays, one of `DECAYS`.

  Raises:
    UserError: warm-up (and decay) are longer than the run.
  """
  if warmup_steps >= num_steps:
    raise errors.UserError(
      f'optim.warmup_steps is {warmup_steps} but num_steps is '
      f'{num_steps}: warm up for fewer steps'
    )
  first = peak / max(warmup_steps, 1)
  rest = num_steps - warmup_steps
  if name == 'cosine':
    return optax.warmup_cosine_decay_schedule(
      init_value=first,
      peak_value=peak,
      warmup_steps=warmup_steps,
      decay_steps=num_steps,
      end_value=peak * min_ratio,
    )
  if name == 'wsd':
    num_decay = max(round(decay_share * num_steps), 1)
    if num_decay > rest:
      raise errors.UserError(
        f'optim.decay_share is {decay_share}, {num_decay} of {num_steps} steps,'
        f' and optim.warmup_steps {warmup_steps}: together more than the run'
      )
    after = _decay(decay_style, peak, min_ratio, rest - num_decay, num_decay)
  elif name == 'linear':
    after = _decay('linear', peak, min_ratio, 0, rest)
  elif name == 'inverse_sqrt':
    after = _inverse_sqrt(peak, min_ratio, max(warmup_steps, 1))
  else:
    after = optax.constant_schedule(peak)
  warmup = optax.linear_schedule(first, peak, max(warmup_steps, 1))
  return optax.join_schedules([warmup, after], [warmup_steps])


def _decay(style, peak, min_ratio, start, num_steps):
  """The peak for `start` steps, then down to the floor in `num_steps`."""

  def rate(count):
    x = jnp.clip((count - start) / num_steps, 0.0, 1.0)
    if style == 'exponential':
      return peak * min_ratio**x
    falls = {
      'linear': x,
      'cosine': (1 - jnp.cos(jnp.pi * x)) / 2,
      'sqrt': jnp.sqrt(x),
    }
    return peak * (1 - (1 - min_ratio) * falls[style])

  return rate


def _inverse_sqrt(peak, min_ratio, scale):
  """peak sqrt(scale / (scale + count)), not below the floor."""

  def rate(count):
    # `join_schedules` asks for counts below 0 as well, and drops the answers.
    share = jnp.sqrt(scale / (scale + jnp.maximum(count, 0)))
    return peak * jnp.maximum(share, min_ratio)

  return rate
