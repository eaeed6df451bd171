# SPDX-License-Identifier: MIT
"""`jspec train`: trains a drafter by a config."""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from jspec import errors
from jspec.cli import options, processes, progress, training_bar

# Answers decoded at the same time at an evaluation.
_NUM_ROWS = 8


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'train',
    help='train a drafter',
    description='Trains a drafter. Any config key can be changed by'
    ' --config.KEY=VALUE.',
    allow_abbrev=False,
  )
  parser.add_argument('--config', required=True, metavar='FILE.py[:ARG]')
  parser.add_argument(
    '--workdir', metavar='DIR', help='checkpoints and metrics; resumes if used'
  )
  parser.add_argument(
    '--resume',
    action='store_true',
    help='go on from a checkpoint of --workdir, or refuse to start',
  )
  parser.add_argument(
    '--compile-only',
    action='store_true',
    help='compile the step for --topology and say what it needs, then stop',
  )
  parser.add_argument(
    '--topology', metavar='NAME', help='a slice of TPUs, such as v5e:4x4'
  )
  processes.add(parser)
  parser.set_defaults(run=run, overrides=[])


def run(args: argparse.Namespace) -> None:
  """Trains as the config says."""
  if args.compile_only != (args.topology is not None):
    raise errors.UserError(
      '--compile-only and --topology belong together: give both or neither'
    )
  if args.compile_only:
    _compile(args)
    return
  with processes.joined(args), contextlib.ExitStack() as stack:
    from jspec.train import main

    config = main.read(args.config, args.overrides)
    shown = _Lines()
    if sys.stderr.isatty():
      shown = stack.enter_context(training_bar.Bar(config.num_steps))
      # The bar says what lines of steps would.
      config = dataclasses.replace(config, print_every=0)
    main.run(
      config,
      args.workdir,
      must_resume=args.resume,
      evaluation=evaluation(config, shown.say),
      on_progress=shown.update,
      on_message=shown.say,
    )


def evaluation(
  config: Any, say: Callable[[str], None]
) -> Callable[[Any], Callable[[Any], dict[str, Any]]] | None:
  """Reads `eval.prompts`; what decodes them, once there is a target.

  Training knows nothing of decoding, so it is put together here.

  Raises:
    UserError: the prompts cannot be read.
  """
  if not config.eval.prompts:
    return None
  from jspec.evals import online

  prompts = options.prompts(
    config.eval.prompts, config.eval.num_prompts or None
  )
  return lambda loaded: online.Online(
    loaded,
    prompts,
    max_tokens=config.eval.max_tokens,
    num_rows=_NUM_ROWS,
    on_message=say,
  )


def _compile(args):
  """Compiles the step for a slice that need not be there."""
  from jspec import slices

  slices.chip_of(args.topology)
  slices.prepare()
  from jspec.train import main

  config = main.read(args.config, args.overrides)
  with progress.Wait('compiling'):
    text = main.compiled(config, args.topology)
  print(text)


class _Lines:
  """Messages as lines and nothing else, where there is no terminal."""

  def update(self, step: int, row: dict[str, Any]) -> None:
    """A step is done; its line comes with the messages."""

  def say(self, line: str) -> None:
    """Prints a message."""
    print(line, flush=True)
