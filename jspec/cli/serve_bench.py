# SPDX-License-Identifier: MIT
"""`jspec bench serve`: what HTTP costs, beside the engine called directly."""

import argparse
from typing import Any

from jspec import errors
from jspec.cli import engines, options, progress


def add(actions: Any) -> None:
  """Declares the program."""
  parser = actions.add_parser(
    'serve',
    help='tokens a second and first tokens over HTTP',
    description='Streams the same answers from one engine, called directly and'
    ' behind its HTTP server, in turns, so that ratios hold where times do not.'
    ' Answers have fixed lengths, half of --max-tokens or more.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='shipped', is_served=True)
  options.add_prompts(parser, default='demo')
  options.add_limit(parser)
  parser.add_argument(
    '--concurrency',
    type=options.positives,
    default=(1, 64),
    metavar='N,N,...',
    help='requests in flight (default: 1,64)',
  )
  for flag, default, text in (
    ('--turns', 5, 'turns of each way; one more warms up'),
    ('--max-tokens', 64, 'tokens of the longest answer'),
    ('--rounds', 4, 'rounds of a launch'),
  ):
    parser.add_argument(
      flag,
      type=options.positive,
      default=default,
      metavar='N',
      help=f'{text} (default: {default})',
    )
  parser.add_argument(
    '--policy',
    type=options.policies,
    default='dcut',
    metavar='NAME[,OPTION=VALUE...],...',
    help='how many drafts are verified (default: %(default)s)',
  )
  parser.add_argument('--temperature', type=float, default=0.0)
  options.add_costs(parser)
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
  """Measures and prints a table."""
  options.writable(args.json)
  options.keep_programs()
  from jspec.server import extra

  extra.check()
  from jspec.bench import http, http_report
  from jspec.decode import sampling
  from jspec.serve import settings

  loaded, drafter = options.served_models(args)
  requests = http.requests(
    loaded,
    [prompt.turns[0] for prompt in options.prompts(args.prompts, args.limit)],
    sampling.SamplingParams(
      temperature=args.temperature, max_tokens=args.max_tokens
    ),
  )
  needed = max(len(r.prompt) for r in requests) + args.max_tokens + 1
  if needed > loaded.model.max_len:
    raise errors.UserError(
      f'prompts and --max-tokens {args.max_tokens} need {needed} tokens but the'
      f' context of target {loaded.name} is {loaded.model.max_len}: lower'
      ' --max-tokens'
    )
  made = engines.start(
    loaded,
    drafter,
    settings.Settings(
      max_rows=max(args.concurrency),
      max_len=needed,
      num_rounds=args.rounds,
      policies=args.policy,
      row_buckets=tuple(sorted(set(args.concurrency))),
    ),
    is_anew=args.measure_again,
  )
  with progress.Wait('measuring', unit='turns') as wait:
    result = http.run(
      http.served(made, loaded),
      requests,
      concurrencies=args.concurrency,
      num_turns=args.turns,
      on_progress=wait.update,
    )
  print(http_report.table(result))
  about = {'target': loaded.label, 'drafter': args.drafter}
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(about | result))
