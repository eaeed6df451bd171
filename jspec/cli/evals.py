# SPDX-License-Identifier: MIT
"""`jspec evals acceptance | lossless | calibration` (also `jspec eval`)."""

import argparse

from jspec.cli import options, progress


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'evals',
    aliases=['eval'],
    help='measure a drafter, or check that it changes nothing',
    allow_abbrev=False,
  )
  actions = parser.add_subparsers(metavar='EVAL', required=True)
  for name, help_text, run in (
    ('acceptance', 'accepted drafts by depth, tokens per round', acceptance),
    ('lossless', 'tokens with the drafter against plain decoding', lossless),
    (
      'calibration',
      'how well confidence predicts acceptance, before and after scaling',
      calibration,
    ),
  ):
    action = actions.add_parser(
      name, help=help_text, description=help_text, allow_abbrev=False
    )
    # Confidence is judged on chains, and on those that it would not draft too.
    chain = 'shipped,tree_size=0,min_expected_accepted=0'
    options.add_models(
      action, drafter=chain if run is calibration else 'shipped'
    )
    options.add_prompts(action, default='demo')
    options.add_limit(action)
    options.add_sampling(action)
    if run is acceptance:  # The other rules do not keep the tokens.
      options.add_rule(action)
    options.add_json(action)
    action.set_defaults(run=run)


def acceptance(args: argparse.Namespace) -> None:
  """Measures acceptance and prints a table."""
  from jspec.evals import acceptance as acceptance_lib

  result = _run(args, acceptance_lib, 'measuring acceptance', rule=args.rule)
  print(acceptance_lib.table(result))


def lossless(args: argparse.Namespace) -> int:
  """Compares tokens; the exit code is 1 if any differ without a tie."""
  from jspec.evals import lossless as lossless_lib

  result = _run(args, lossless_lib, 'comparing with plain decoding')
  print(lossless_lib.table(result))
  return 1 if result['failures'] else 0


def calibration(args: argparse.Namespace) -> None:
  """Judges a drafter's confidence and prints tables."""
  options.keep_programs()
  from jspec.evals import calibration as calibration_lib

  print(
    calibration_lib.table(_run(args, calibration_lib, 'judging confidence'))
  )


def _run(args, module, what, **named):
  options.writable(args.json)
  prompts = options.prompts(args.prompts, args.limit)
  options.sampling(args, ())  # bad flags fail before the model loads
  loaded, drafter = options.models(args)
  with progress.Wait(what, unit='answers') as wait:
    result = module.run(
      loaded,
      drafter,
      prompts,
      options.sampling(args, loaded.stop_ids),
      num_rows=min(args.rows, len(prompts)),
      drafter_name=args.drafter,
      on_progress=wait.update,
      **named,
    )
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
  return result
