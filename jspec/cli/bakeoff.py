# SPDX-License-Identifier: MIT
"""`jspec bakeoff`: every drafter on the same data, in one table."""

import argparse
import pathlib

from jspec.cli import options


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'bakeoff',
    help='train every kind of drafter alike, and compare them',
    description='Trains every kind of drafter on the same answers for the same'
    ' steps, decodes the same prompts and prints a table. Killed, the same'
    ' command goes on where it was.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--answers', required=True, metavar='FILE', help='what to train on'
  )
  options.add_prompts(parser, default='demo')
  parser.add_argument(
    '--per-domain',
    type=options.positive,
    metavar='N',
    help='only the first N prompts of every domain',
  )
  parser.add_argument(
    '--workdir', type=pathlib.Path, default='runs/bakeoff', metavar='DIR'
  )
  parser.add_argument(
    '--only', metavar='NAME,NAME', help='only these lines of the table'
  )
  for flag, default, text in (
    ('--steps', 400, 'training steps of each'),
    ('--rows', 4, 'rows of 512 tokens in a batch'),
    ('--max-tokens', 96, 'of an answer, when measuring'),
  ):
    parser.add_argument(
      flag,
      type=options.positive,
      default=default,
      metavar='N',
      help=f'{text} (default: %(default)s)',
    )
  parser.add_argument(
    '--max-documents',
    type=options.positive,
    default=None,
    metavar='N',
    help='use only the first N answers',
  )
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
  """Trains, measures, prints."""
  options.writable(args.json)
  prompts = options.prompts(args.prompts, None)
  if args.per_domain:
    prompts = _first(prompts, args.per_domain)
  from jspec import loading
  from jspec.bakeoff import run as run_lib
  from jspec.bakeoff import table

  loaded = loading.load_target('smollm2_135m')
  results = run_lib.run(
    loaded,
    prompts,
    args.workdir,
    run_lib.Settings(
      answers=args.answers,
      num_steps=args.steps,
      max_documents=args.max_documents or 0,
      num_rows=args.rows,
      max_tokens=args.max_tokens,
    ),
    only=args.only.split(',') if args.only else None,
  )
  print(table.markdown(results))
  print()
  print(table.claims(results))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance({'results': results}))


def _first(prompts, count):
  """The first prompts of every domain, in order."""
  seen: dict[str, int] = {}
  kept = []
  for prompt in prompts:
    seen[prompt.domain] = seen.get(prompt.domain, 0) + 1
    if seen[prompt.domain] <= count:
      kept.append(prompt)
  return kept
