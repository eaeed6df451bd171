# SPDX-License-Identifier: MIT
"""`jspec bench fit`: whether a target fits a slice of TPUs, without either."""

import argparse
from typing import Any

from jspec.cli import options, progress


def add(actions: Any) -> None:
  """Declares the program."""
  parser = actions.add_parser(
    'fit',
    help='whether a target fits a slice of TPUs, and the least time there',
    description='Compiles what a target runs while it is served for a slice of'
    ' TPUs, with shapes in place of weights. Needs no TPU, but its compiler'
    ' (the package libtpu). Prints bytes, FLOPs and seconds of one device.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--target',
    required=True,
    metavar='SHAPE|DIR|FILE.gguf',
    help='a published shape such as qwen3_8b, or a target',
  )
  parser.add_argument(
    '--topology', required=True, metavar='NAME', help='such as v5e:4x4'
  )
  for flag, default, text in (
    ('--rows', 16, 'requests decoded side by side'),
    ('--nodes', 8, 'of a row that is verified'),
    ('--context', 4096, 'cached tokens of a row'),
    ('--chunk', 256, 'tokens of a prompt that go through at once'),
    ('--page-size', 128, 'tokens of a page'),
  ):
    parser.add_argument(
      flag,
      type=options.positive,
      default=default,
      metavar='N',
      help=f'{text} (default: {default})',
    )
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
  """Compiles and prints a table."""
  options.writable(args.json)
  from jspec import slices

  slices.chip_of(args.topology)
  slices.prepare()
  from jspec.bench import fit, fit_programs

  load = fit_programs.Load(
    rows=args.rows,
    nodes=args.nodes,
    context=args.context,
    chunk=args.chunk,
    page_size=args.page_size,
  )
  with progress.Wait('compiling', unit='programs') as wait:
    result = fit.run(args.target, args.topology, load, wait.update)
  print(fit.table(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
