# SPDX-License-Identifier: MIT
"""Cost tables on disk, so that a second start need not measure.

  $XDG_CACHE_HOME/jspec/costs/<hash of the key>.json      (or below ~/.cache)

A key says everything that times depend on: the device, the models as they would
be compiled, and the sizes of the engine. Who is served by another engine has
another key, hence another file. A file that cannot be read, or that holds
another key, is told in one line and measured anew; so is a folder that cannot
be written. What is stored is the table as it was when the engine started: what
an engine learned from live rounds depends on its traffic, and is its own.

`sim --costs FILE` reads these files as well.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

import jspec
from jspec import errors
from jspec.decode import scoring
from jspec.depth import cost_table
from jspec.serve import settings, warm_up

_HEX_DIGITS = 16


def key(
  target: Any,
  drafter: Any,
  sizes: settings.Sizes,
  fingerprint: str,
  *,
  num_devices: int = 1,
) -> cost_table.Key:
  """What the times of an engine depend on.

  Args:
    target: the model.
    drafter: who drafts, or None.
    sizes: of the engine (`settings.resolve`).
    fingerprint: of the target's weights (`loading.LoadedTarget`).
    num_devices: that share the target out.
  """
  return cost_table.Key(
    device_kind=_device(num_devices),
    target=f'{fingerprint} {form(target)}',
    drafter=form(drafter),
    version=jspec.__version__,
    shapes=_shapes(sizes),
  )


def form(model: Any) -> str:
  """Names a model by its class, options and arrays' shapes, not their values.

  That is what decides which program it is compiled to:

    NGram fd5b41e12a0c6b1d
  """
  leaves, structure = jax.tree.flatten(model)
  arrays = [str(jax.typeof(leaf)) for leaf in leaves]
  # Functions among the options are printed with their address.
  text = re.sub(r' at 0x[0-9a-f]+', '', f'{structure} {" ".join(arrays)}')
  return f'{type(model).__name__} {_hash(text)}'


def path_of(of: cost_table.Key) -> pathlib.Path:
  """Where the table of a key lies."""
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  text = json.dumps(dataclasses.asdict(of), sort_keys=True)
  return pathlib.Path(home) / 'jspec' / 'costs' / f'{_hash(text)}.json'


def load_or_measure(
  of: cost_table.Key,
  start: Callable[[cost_table.CostTable | None], Any],
  *,
  is_anew: bool = False,
) -> Any:
  """Starts an engine with the table on disk, or stores the one it measures.

  Args:
    of: key of the engine.
    start: takes the table, or None to measure; returns something that has
      `costs`, such as an `Engine`.
    is_anew: measure even if there is a table.

  Returns:
    What `start` returned.
  """
  path = path_of(of)
  table = None if is_anew else _read(path, of)
  made = start(table)
  if table is None:
    # An engine does not know what the models are called.
    made.costs.key = of
    _write(path, made.costs)
  return made


def _read(path, of):
  """The table of a file; None if there is none, or none of this key."""
  if not path.exists():
    return None
  try:
    table = cost_table.load(path, of)
    table.costs(1, 0, (1,))  # A table of no times is no table.
  except errors.UserError as error:
    cause = error.__cause__ or error
    _warn(f'cost table {path} is of no use ({cause}): measuring again')
    return None
  return table


def _write(path, table):
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.save(path)
  except OSError as error:
    _warn(f'cannot keep the cost table ({error}): it is measured every time')


def _warn(text):
  print('warning: ' + ' '.join(text.split()), file=sys.stderr)


def _device(num_used):
  """The device by name, how many, and on CPUs the cores that make it fast."""
  kind = f'{jax.devices()[0].device_kind} x{jax.device_count()}'
  if num_used > 1:
    kind += f', {num_used} together'
  is_cpu = jax.default_backend() == 'cpu'
  return f'{kind}, {os.cpu_count()} cores' if is_cpu else kind


def _shapes(sizes):
  pool = sizes.scheduler
  budgets = [
    scoring.budgets(rows, pool.max_drafts + 1, sizes.num_budgets)
    for rows in sizes.row_buckets
  ]
  totals = ' '.join('/'.join(map(str, some)) for some in budgets)
  return (
    f'rows {"/".join(map(str, sizes.row_buckets))}; nodes {totals};'
    f' {pool.num_pages} pages of {pool.page_size}, {sizes.capacity} a row;'
    f' {sizes.rule}; {warm_up.MAX_POINTS} points'
  )


def _hash(text):
  return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]
