# SPDX-License-Identifier: MIT
"""`jspec demo`: drafters against plain decoding, on this machine."""

import argparse
import dataclasses
import pathlib

from jspec.cli import options, progress

_TARGET = 'smollm2_135m'
_NEXT = """\
Each draft column is the share of rounds that accepted that draft; tokens/round
counts the token the target adds. Identical: same tokens as plain decoding.

Type next:
  {jspec} generate --drafter shipped --prompt "Why is the sky blue?"
  {jspec} eval acceptance --drafter {trained}
  {jspec} train --help"""


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'demo',
    help='train a drafter for minutes, then compare drafters on a real model',
    description='Trains a small drafter for SmolLM2-135M (once), decodes the'
    ' same prompts plainly and with drafters, and compares speeds and answers.',
    allow_abbrev=False,
  )
  options.add_prompts(parser, default='demo')
  parser.add_argument(
    '--limit',
    type=options.positive,
    default=12,
    metavar='N',
    help='prompts to decode (default: %(default)s)',
  )
  options.add_sampling(parser, max_tokens=64, rows=1)
  parser.add_argument(
    '--workdir',
    type=pathlib.Path,
    default=pathlib.Path('runs/demo'),
    metavar='DIR',
    help='where the drafter is trained, and found again (default: %(default)s)',
  )
  parser.add_argument(
    '--train-seconds',
    type=options.positive,
    default=180,
    metavar='N',
    help='wall clock of the training (default: %(default)s)',
  )
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
  """Runs the comparison; the exit code is 1 if answers differ."""
  options.writable(args.json)
  prompts = options.prompts(args.prompts, args.limit)
  options.sampling(args, ())  # bad flags fail before the model loads
  from jspec import loading
  from jspec.demo import compare, train

  print(f'target {_TARGET}: fetched once, then read from the cache')
  loaded = loading.load_target(_TARGET)
  with progress.Wait('training a drafter') as wait:
    trained = train.train(loaded, args.workdir, args.train_seconds, wait.say)
  comparison = compare.Comparison(
    loaded,
    prompts,
    options.sampling(args, loaded.stop_ids),
    min(args.rows, len(prompts)),
  )
  print(
    f'{len(prompts)} prompts, up to {args.max_tokens} tokens each,'
    f' {comparison.num_rows} at a time'
  )
  with progress.Wait('plain decoding', unit='answers') as wait:
    rows = [comparison.plain(wait.update)]
  for label, spec in (
    ('n-gram', 'ngram'),
    ('dflash, just trained', str(trained)),
    ('dflash, shipped', 'shipped'),
  ):
    drafter = loading.load_drafter(spec, loaded)
    with progress.Wait(label, unit='answers') as wait:
      rows.append(comparison.drafted(label, drafter, wait.update))
  first = comparison.replies[0]
  print(f'\n> {first.prompt}\n{first.text}\n')
  print(compare.table(rows))
  print()
  print(_NEXT.format(jspec='.venv/bin/jspec', trained=args.workdir))
  if args.json is not None:
    result = {'rows': [dataclasses.asdict(row) for row in rows]}
    options.write_json(args.json, options.with_provenance(result))
  return 1 if any(row.failures for row in rows) else 0
