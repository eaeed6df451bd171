# SPDX-License-Identifier: MIT
"""`jspec demo`: drafters against plain decoding, on this machine."""

import argparse

from jspec.cli import options, progress


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'demo',
    help='see speculative decoding on a real 135M model',
    description='Decodes the same prompts plainly and with drafters, compares'
    ' the answers and prints the speeds.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='shipped')
  options.add_prompts(parser, default='demo')
  options.add_limit(parser)
  options.add_sampling(parser, max_tokens=64, rows=1)
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
  """Runs the comparison; the exit code is 1 if answers differ."""
  options.writable(args.json)
  from jspec import loading
  from jspec.demo import compare

  prompts = options.prompts(args.prompts, args.limit)
  options.sampling(args, ())  # bad flags fail before the model loads
  loaded = loading.load_target(args.target)
  names = list(dict.fromkeys(['none', 'ngram', args.drafter]))
  print(
    f'{loaded.name}: {len(prompts)} prompts, up to {args.max_tokens} tokens'
    f' each, {min(args.rows, len(prompts))} at a time'
  )
  rows = []
  for name in names:
    with progress.Wait(f'drafter {name}', unit='answers') as wait:
      rows.append(
        compare.measure(
          loaded,
          name,
          prompts,
          options.sampling(args, loaded.stop_ids),
          num_rows=min(args.rows, len(prompts)),
          on_progress=wait.update,
        )
      )
  print(f'\n{rows[0].replies[0].prompt}\n{rows[0].replies[0].text}\n')
  print(compare.table(rows))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(compare.report(rows)))
  return 0 if all(compare.is_same(row, rows[0]) for row in rows) else 1
