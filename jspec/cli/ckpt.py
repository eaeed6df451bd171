# SPDX-License-Identifier: MIT
"""`jspec ckpt ls|verify|prune WORKDIR`: the checkpoints of a run."""

import argparse
import math
import pathlib


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'ckpt', help='list, check or delete checkpoints', allow_abbrev=False
  )
  actions = parser.add_subparsers(metavar='ACTION', required=True)
  texts = {
    'ls': ('list the checkpoints of a run', run_ls),
    'verify': (
      'read every checkpoint; exit code 1 if one is broken',
      run_verify,
    ),
    'prune': ('delete all but the newest and the best', run_prune),
  }
  for name, (text, run) in texts.items():
    action = actions.add_parser(name, help=text, allow_abbrev=False)
    action.add_argument('workdir', type=pathlib.Path, metavar='WORKDIR')
    if name == 'prune':
      for which in ('latest', 'best'):
        action.add_argument(f'--keep-{which}', type=int, default=1, metavar='N')
    action.set_defaults(run=run)


def run_ls(args: argparse.Namespace) -> None:
  """Prints a line for each checkpoint."""
  from jspec.checkpoints import inventory
  from jspec.train import settings

  entries = inventory.read(args.workdir, settings.BEST)
  best = inventory.best(entries)
  for entry in entries:
    marks = [
      name
      for name, is_it in (
        ('latest', entry is entries[-1]),
        ('best', entry is best and entry.score is not None),
      )
      if is_it
    ]
    print(
      f'step {entry.step}  {entry.num_bytes / 1e6:.1f} MB  {settings.BEST} '
      f'{_shown(entry.score)}  {" ".join(marks)}'.rstrip()
    )
  broken = args.workdir / inventory.BROKEN
  if broken.is_dir():
    print(f'{len(list(broken.iterdir()))} that could not be read in {broken}')
  if not entries:
    print(f'no checkpoint in {args.workdir}')


def run_verify(args: argparse.Namespace) -> int:
  """Reads all of them; says of each whether it is whole."""
  from jspec.checkpoints import inventory
  from jspec.train import settings

  entries = inventory.read(args.workdir, settings.BEST)
  num_broken = 0
  for entry in entries:
    reason = inventory.why_unreadable(args.workdir, entry.step)
    if not reason and entry.score is None:
      reason = f'it has no {settings.BEST}'
    num_broken += bool(reason)
    print(f'step {entry.step}  {f"broken: {reason}" if reason else "ok"}')
  print(f'{len(entries) - num_broken} of {len(entries)} checkpoints are whole')
  return int(num_broken > 0 or not entries)


def run_prune(args: argparse.Namespace) -> None:
  """Deletes and says what."""
  from jspec.checkpoints import inventory
  from jspec.train import settings

  gone = inventory.prune(
    args.workdir,
    settings.BEST,
    keep_latest=args.keep_latest,
    keep_best=args.keep_best,
  )
  print(f'deleted {", ".join(f"step {n}" for n in gone) or "nothing"}')


def _shown(score):
  if score is None:
    return 'unreadable'
  return 'not measured' if math.isnan(score) else f'{score:.3f}'
