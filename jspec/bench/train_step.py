# SPDX-License-Identifier: MIT
"""What a training step takes, beside its parts and beside their matmuls alone.

  step       the whole, as `jspec train` runs it, on a batch held fixed
  parts      target | drafter and loss forward | both ways | optimizer, each a
             program of its own; loss both ways, where the drafter can tell it
  floor      the same matrix products alone on this machine (`matmuls`)
  data       steps with batches from the pipeline over steps without
  memory     scratch of drafter and loss, both ways, by the draft vocabulary

All of one repeat is timed in turns, so that ratios hold where times do not. It
runs on one device, and the target in the step.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jspec import errors
from jspec.bench import matmuls, timing, train_parts, train_setup
from jspec.train import settings

LABELS = {
  'step': 'step',
  'target': 'target',
  'forward': 'draft and loss, forward',
  'forward_backward': 'draft and loss, both ways',
  'loss': 'head and loss, both ways',
  'optimizer': 'optimizer',
}
# What makes up a step.
SUMMED = ('target', 'forward_backward', 'optimizer')


def run(
  config: settings.TrainConfig,
  loaded: Any,
  *,
  num_steps: int,
  repeats: int,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Measures; see the module docstring.

  Args:
    config: of a run with `data.mode` 'online'.
    loaded: the target.
    num_steps: steps of a turn with and of a turn without the pipeline.
    repeats: turns of everything.
    on_progress: called with (figures done, figures in all).

  Returns:
    JSON values; `table` shows them.

  Raises:
    UserError: the config keeps a store, or does not fit.
  """
  if config.data.mode != 'online':
    raise errors.UserError(
      'bench train times the target in the step: give a config with'
      ' data.mode=online (CONFIG.py:online)'
    )
  if config.compute_dtype != 'float32' or config.remat != 'none':
    raise errors.UserError(
      'bench train times steps in float32 that keep what they compute: set'
      ' compute_dtype to float32 and remat to none'
    )
  total, done = 4, 0

  def tick():
    nonlocal done
    done += 1
    if on_progress is not None:
      on_progress(done, total)

  setup = train_setup.prepared(config, loaded)
  try:
    batch = jax.device_put(next(setup.batches))
    stepper = train_setup.Stepper(config, setup)
    tick()
    times = _times(config, setup, stepper, batch, repeats)
    tick()
    data = _data(stepper, setup.batches, batch, num_steps, repeats)
    tick()
  finally:
    setup.batches.close()
  memory = train_parts.loss_memory(config, loaded, batch, setup)
  tick()
  num_tokens = int(np.count_nonzero(batch['segments']))
  whole = times['step']
  return {
    'benchmark': 'train',
    'target': loaded.label,
    'drafter': config.drafter.build,
    'device': jax.devices()[0].device_kind,
    'num_rows': config.data.num_rows,
    'row_len': config.data.row_len,
    'num_tokens': num_tokens,
    'tokens_per_s': num_tokens / whole['seconds'],
    'over_floor': whole['seconds'] / whole['floor_s'],
    'over_parts': whole['seconds'] / sum(times[n]['seconds'] for n in SUMMED),
    'times': times,
    'data': data,
    'loss_memory': memory,
  }


def table(result: dict[str, Any]) -> str:
  """The result as text."""
  lines = [
    f'{result["target"]}, {result["drafter"]}, {result["num_rows"]} rows of'
    f' {result["row_len"]} tokens on one {result["device"]}:'
    f' {result["tokens_per_s"]:,.0f} tokens/s',
    f'  {"ms":<28}{"measured":>10}{"matmuls":>10}{"ratio":>8}',
  ]
  for name, entry in result['times'].items():
    measured, floor = (1e3 * entry[key] for key in ('seconds', 'floor_s'))
    ratio = f'{measured / floor:8.2f}' if floor else ''
    lines.append(f'  {LABELS[name]:<28}{measured:10.1f}{floor:10.1f}{ratio}')
  whole = result['times']['step']
  lines.append(
    f'The step is {result["over_parts"]:.2f} times its parts; its matmuls are'
    f' {whole["gflop"]:.1f} GFLOP.'
  )
  if whole['uncounted']:
    lines.append(
      f'{whole["uncounted"]} operations may hold matmuls that are not among'
      ' them, so the ratio says too much.'
    )
  data = result['data']
  lines += [
    f'A step takes {1e3 * data["with_s"]:.1f} ms with the pipeline and'
    f' {1e3 * data["without_s"]:.1f} ms without: {data["ratio"]:.3f}.',
    'Scratch of draft and loss: '
    + ', '.join(_memory(entry) for entry in result['loss_memory'])
    + '.',
  ]
  return '\n'.join(lines)


def _memory(entry):
  text = f'{entry["temp_bytes"] / 1e6:.1f} MB at {entry["vocab_size"]:,} tokens'
  if entry['logits_bytes'] is not None:
    text += f' (all logits: {entry["logits_bytes"] / 1e6:.0f} MB)'
  return text


def _times(config, setup, stepper, batch, repeats):
  """Seconds and matmuls of the step and of its parts."""
  args = (setup.state, setup.parts.frozen, setup.target, batch)
  found = {'step': matmuls.find(stepper.function, *args)}
  runs = {'step': functools.partial(stepper, batch)}
  for name, (function, *given) in train_parts.programs(
    config, setup, batch
  ).items():
    found[name] = matmuls.find(function, *given)
    runs[name] = functools.partial(jax.jit(function), *given)
  products = sorted(
    {product for of in found.values() for product in of.counts},
    key=lambda product: product.flop,
  )
  named = {f'product {index}': x for index, x in enumerate(products)}
  runs |= {name: matmuls.program(x) for name, x in named.items()}
  measured = timing.in_turns(runs, repeats)
  each = {x: measured[name] / x.repeats for name, x in named.items()}
  return {
    name: {
      'seconds': measured[name],
      'floor_s': of.floor(each),
      'gflop': of.flop / 1e9,
      'uncounted': of.uncounted,
    }
    for name, of in found.items()
  }


def _data(stepper, batches, batch, num_steps, repeats):
  """Seconds of a step with batches from the pipeline, and without.

  A step is waited for when the next one is on its way, as in training.
  """

  def turn(next_batch):
    before = None
    began = time.perf_counter()
    for _ in range(num_steps):
      values = stepper(next_batch())
      jax.block_until_ready(before)
      before = values
    jax.block_until_ready(before)
    return (time.perf_counter() - began) / num_steps

  ways = {
    'with': lambda: jax.device_put(next(batches)),
    'without': lambda: batch,
  }
  turn(ways['without'])
  taken = {name: [] for name in ways}
  for index in range(repeats):
    # Every other turn in the opposite order: a drift favours neither.
    for name in list(ways)[:: 1 if index % 2 else -1]:
      taken[name].append(turn(ways[name]))
  ratios = np.divide(taken['with'], taken['without'])
  return {
    'with_s': float(np.median(taken['with'])),
    'without_s': float(np.median(taken['without'])),
    'ratio': float(np.median(ratios)),
    'all_ratios': ratios.tolist(),
    'num_steps': num_steps,
  }
