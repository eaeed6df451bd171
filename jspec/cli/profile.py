# SPDX-License-Identifier: MIT
"""`jspec profile`: what rounds of the serving engine cost here."""

import argparse
import pathlib

from jspec.cli import engines, options


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'profile',
    help='what rounds of the engine cost, and what drafts must bring',
    description='Starts the serving engine and prints its cost table: what'
    ' verifying and proposing take, and the acceptance from which drafts pay.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='shipped', is_served=True)
  parser.add_argument(
    '--rows',
    type=options.positives,
    default=(1, 4, 16),
    metavar='N,N,...',
    help='rows that rounds are compiled for (default: 1,4,16)',
  )
  parser.add_argument(
    '--max-len',
    type=options.positive,
    default=512,
    metavar='N',
    help='tokens of prompt and answer that a row has room for, within the'
    " target's context (default: %(default)s)",
  )
  options.add_costs(parser)
  options.add_json(parser)
  parser.add_argument(
    '--plot', type=pathlib.Path, metavar='OUT.svg', help='also draw it'
  )
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
  """Prints the table; writes it and its plot where that is asked for."""
  options.writable(args.json)
  options.writable(args.plot)
  options.keep_programs()
  from jspec.bench import profile
  from jspec.serve import costs_file, settings

  loaded, drafter = options.served_models(args)
  made = engines.start(
    loaded,
    drafter,
    settings.Settings(
      max_rows=max(args.rows),
      max_len=min(args.max_len, loaded.model.max_len),
      row_buckets=tuple(sorted(set(args.rows))),
    ),
    is_anew=args.measure_again,
  )
  result = {
    'target': loaded.label,
    'drafter': args.drafter,
    **profile.run(made.sizes, made.costs),
    'cost_table': str(costs_file.path_of(made.costs.key)),
  }
  print(profile.table(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
  if args.plot is not None:
    title = f'{loaded.label}, drafter {args.drafter}'
    options.write_text(args.plot, profile.plot(result, title))
