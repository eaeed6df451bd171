# SPDX-License-Identifier: MIT
"""`jspec train`: trains a drafter by a config."""

import argparse

from jspec.cli import processes


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
  processes.add(parser)
  parser.set_defaults(run=run, overrides=[])


def run(args: argparse.Namespace) -> None:
  """Hands the config and its overrides to the trainer."""
  with processes.joined(args):
    from jspec.train import main

    main.run(
      args.config,
      args.overrides,
      args.workdir,
      must_resume=args.resume,
    )
