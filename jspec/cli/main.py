# SPDX-License-Identifier: MIT
"""The one command line: reads it, runs a program, turns errors to exit codes.

Codes: 0 done, 1 a check failed, 2 bad input (one `error:` line), 130
interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import jspec
from jspec import errors
from jspec.cli import (
  bakeoff,
  bench,
  capture,
  ckpt,
  data,
  demo,
  doctor,
  evals,
  generate,
  interchange,
  profile,
  serve,
  sim,
  train,
)

PROGRAMS = (
  demo,
  generate,
  capture,
  train,
  ckpt,
  evals,
  bench,
  profile,
  data,
  interchange,
  doctor,
  bakeoff,
  sim,
  serve,
)


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one line, where argparse prints the usage too."""

  def error(self, message: str) -> NoReturn:
    self.exit(2, f'error: {message}: see {self.prog} --help\n')


def parser() -> argparse.ArgumentParser:
  """Builds the parser of all programs."""
  top = _Parser(
    prog='jspec',
    description='Train drafters and decode losslessly with them, in JAX.',
    allow_abbrev=False,
  )
  top.add_argument('--version', action='version', version=jspec.__version__)
  programs = top.add_subparsers(metavar='PROGRAM', required=True)
  for program in PROGRAMS:
    program.add(programs)
  return top


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Reads a command line; a program may take `--config.KEY=VALUE` words."""
  top = parser()
  args, rest = top.parse_known_args(argv)
  unknown = [word for word in rest if not word.startswith('--config.')]
  if rest and not hasattr(args, 'overrides'):
    unknown = rest
  if unknown:
    top.error(f'unknown argument {unknown[0]}')
  if rest:
    args.overrides = rest
  return args


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the program named in `argv` and returns its exit code."""
  args = parse(argv)
  try:
    return args.run(args) or 0
  except errors.UserError as error:
    # A message may quote a library, which may take several lines.
    line = ' '.join(str(error).split('\n'))
    print(f'error: {line}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader (`head`) left; Python must not fail again when it flushes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == '__main__':
  sys.exit(main())
