# SPDX-License-Identifier: MIT
"""A published shape with random weights and few layers, to measure its steps.

Widths, heads and kinds of layers are those of the model; layers are taken from
both ends, so that those without experts, with a window and with none are there.
What such a target says is noise: it is good for milliseconds alone.
"""

import dataclasses
import math
import zlib
from typing import Any

import jax
import numpy as np

from jspec import errors, opening
from jspec.checkpoints import conversions
from jspec.targets import architecture, reading, transformer

# Random numbers are repeated after so many, which no width divides.
_PERIOD = 1_000_003


@dataclasses.dataclass(frozen=True)
class RandomTarget:
  """What `bench.step` wants of a target.

  Attributes:
    name: of the shape.
    label: says what was cut and that weights are random.
    model: the model.
  """

  name: str
  label: str
  model: transformer.Transformer


def load(
  spec: str,
  num_layers: int,
  num_experts: int | None = None,
  vocab_size: int | None = None,
) -> RandomTarget:
  """Makes a target as `loading` does from files.

  Args:
    spec: a shape (`opening.architecture_of`) with options of a target.
    num_layers: as of `cut`.
    num_experts: as of `cut`.
    vocab_size: as of `cut`.

  Raises:
    UserError: unknown shape or option, or sizes that the shape has not.
  """
  name, options = opening.read_options(spec, 'target')
  forms = opening.read_forms(options)
  config = cut(
    opening.architecture_of(name), name, num_layers, num_experts, vocab_size
  )
  is_cpu = jax.default_backend() == 'cpu'
  model = reading.read(
    RandomReader(config),
    dtype=forms['dtype'],
    weights=forms['weights'],
    cache_form=forms['cache'],
    is_split=is_cpu,
  )
  if is_cpu:
    model.add_tiles()
  said = [f'{spec} with random weights', f'{num_layers} layers']
  if num_experts is not None:
    said.append(f'{num_experts} experts')
  if vocab_size is not None:
    said.append(f'{vocab_size} ids')
  return RandomTarget(name, ', '.join(said), model)


def cut(
  config: architecture.TransformerConfig,
  name: str,
  num_layers: int,
  num_experts: int | None = None,
  vocab_size: int | None = None,
) -> architecture.TransformerConfig:
  """The shape with fewer layers, experts and ids.

  Args:
    config: the whole shape.
    name: of it, for messages.
    num_layers: half of them from either end; the first of an odd number more.
    num_experts: of a layer; None: all of them.
    vocab_size: None: all ids.

  Raises:
    UserError: it has not so many, no experts, or too few are left.
  """
  sizes = {
    'layers': (num_layers, config.num_layers),
    'ids': (vocab_size, config.vocab_size),
  }
  experts = config.experts
  if num_experts is not None:
    if experts is None:
      raise errors.UserError(f'{name} has no experts: leave their number out')
    sizes['experts'] = num_experts, experts.num_experts
    if num_experts <= experts.num_experts:
      experts = dataclasses.replace(experts, num_experts=num_experts)
  for what, (wanted, most) in sizes.items():
    if wanted is not None and wanted > most:
      raise errors.UserError(
        f'{name} has {most} {what}, not {wanted}: lower the number'
      )
  kept = range(config.num_layers)
  kept = [
    *kept[: num_layers - num_layers // 2],
    *kept[config.num_layers - num_layers // 2 :],
  ]
  return dataclasses.replace(
    config,
    num_layers=num_layers,
    vocab_size=vocab_size or config.vocab_size,
    windows=tuple(config.windows[i] for i in kept) if config.windows else (),
    dense_layers=tuple(
      i for i, old in enumerate(kept) if old in config.dense_layers
    ),
    experts=experts,
  )


class RandomReader:
  """Stands in for `reading.Reader` where there are no files."""

  def __init__(self, config: architecture.TransformerConfig):
    """Draws the numbers of all arrays.

    Args:
      config: of the target.
    """
    self.config = config
    self.shapes = architecture.array_shapes(config)
    draws = np.random.default_rng(0).standard_normal(_PERIOD, np.float32)
    self._draws: Any = draws

  def read(
    self,
    name: str,
    box: conversions.Box,
    out: np.ndarray,
    num_threads: int | None = None,
  ) -> None:
    """Fills a part of an array; norms near 1, else rows of unit size."""
    del num_threads
    fan_in = 1
    if not name.endswith(('norm', 'bias', 'sinks', 'embedding')):
      fan_in = self.shapes[name][-2]
    offset = zlib.crc32(repr((name, box)).encode()) % _PERIOD
    values = np.resize(np.roll(self._draws, offset), out.shape)
    if name.endswith('norm'):
      values *= 0.1
      values += 1
    else:
      values /= math.sqrt(fan_in)
    out[...] = values
