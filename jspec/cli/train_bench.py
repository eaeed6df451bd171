# SPDX-License-Identifier: MIT
"""`jspec bench train`: what a training step takes, part by part."""

import argparse
from typing import Any

from jspec.cli import options, progress


def add(actions: Any) -> None:
  """Declares the program."""
  parser = actions.add_parser(
    'train',
    help='a training step beside its parts and their matmuls alone',
    description='Times the step of a config on one device, its parts, and the'
    ' same matrix products alone, in turns; then steps with and without the'
    ' data pipeline, and the memory of the loss by vocabulary. Any config key'
    ' can be changed by --config.KEY=VALUE.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE.py[:ARG]',
    help='with data.mode=online (the argument `online`)',
  )
  parser.add_argument(
    '--steps',
    type=options.positive,
    default=4,
    metavar='N',
    help='steps of a turn with and without the pipeline (default: %(default)s)',
  )
  parser.add_argument(
    '--repeats',
    type=options.positive,
    default=5,
    metavar='N',
    help='turns of everything (default: %(default)s)',
  )
  options.add_json(parser)
  parser.set_defaults(run=run, overrides=[])


def run(args: argparse.Namespace) -> None:
  """Measures and prints a table."""
  options.writable(args.json)
  from jspec import loading
  from jspec.bench import train_step
  from jspec.train import main

  config = main.read(args.config, args.overrides)
  loaded = loading.load_target(config.target)
  with progress.Wait('measuring', unit='figures') as wait:
    result = train_step.run(
      config,
      loaded,
      num_steps=args.steps,
      repeats=args.repeats,
      on_progress=wait.update,
    )
  print(train_step.table(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
