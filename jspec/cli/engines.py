# SPDX-License-Identifier: MIT
"""Starts a serving engine as programs do: costs from disk, a line to wait by.

What is compiled is kept between starts as well (`options.keep_programs`), and
an engine's programs whole (`serve.executables`).
"""

from collections.abc import Callable
from typing import Any

from jspec.cli import progress


def start(
  loaded: Any,
  drafter: Any,
  chosen: Any,
  *,
  is_anew: bool = False,
  compiler: Any = None,
  mesh: Any = None,
  link: Any = None,
  on_progress: Callable[[int, int, str], None] | None = None,
) -> Any:
  """Returns an `Engine`.

  Args:
    loaded: the target (`loading.LoadedTarget`).
    drafter: who drafts, or None.
    chosen: `serve.settings.Settings`.
    is_anew: measure what rounds cost, even if a table of it is on disk.
    compiler: as `Engine`.
    mesh: as `Engine`.
    link: as `Engine`.
    on_progress: as `Engine`; None draws a line on stderr.

  Raises:
    UserError: as `Engine`.
  """
  from jspec.serve import costs_file, engine, executables, settings

  extended = settings.extended(chosen, drafter)
  sizes = settings.resolve(chosen, loaded.model, extended)
  of = costs_file.key(
    loaded.model,
    extended,
    sizes,
    loaded.fingerprint,
    num_devices=1 if mesh is None else mesh.size,
  )

  def make(told):
    return costs_file.load_or_measure(
      of,
      lambda costs: engine.Engine(
        loaded.model,
        drafter,
        chosen,
        mesh,
        link=link,
        costs=costs,
        compiler=compiler,
        kept=executables.folder(),
        on_progress=told,
      ),
      is_anew=is_anew,
    )

  if on_progress is not None:
    return make(on_progress)
  with progress.Wait('starting', unit='steps') as wait:
    return make(lambda done, total, name: wait.update(done, total))
