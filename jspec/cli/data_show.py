# SPDX-License-Identifier: MIT
"""`jspec data show`: what a config trains on, with the mask visible."""

import argparse
import functools
import itertools
import sys

from jspec import errors
from jspec.cli import options

_DOCUMENTS = 3


def add(actions) -> None:
  """Declares the action."""
  parser = actions.add_parser(
    'show',
    help='print training documents with their masks',
    description='Prints documents of a config: green is trained on, or what'
    ' stands in [[ ]] where the output is no terminal. The weights of the'
    ' target are not read. Any config key can be changed by'
    ' --config.KEY=VALUE.',
    allow_abbrev=False,
  )
  parser.add_argument('--config', required=True, metavar='FILE.py[:ARG]')
  which = parser.add_mutually_exclusive_group()
  which.add_argument(
    '--num',
    type=options.positive,
    metavar='N',
    help=f'print the first N documents (default: {_DOCUMENTS})',
  )
  which.add_argument('--id', metavar='ID', help='print the document of this id')
  which.add_argument(
    '--rows',
    type=options.positive,
    metavar='N',
    help='print the first N packed rows of the training stream',
  )
  parser.set_defaults(run=run, overrides=[])


def run(args: argparse.Namespace) -> None:
  """Prints a summary, then documents or rows."""
  from jspec import config as config_lib
  from jspec import opening
  from jspec.data import showing
  from jspec.text import chat
  from jspec.text.formats import detection
  from jspec.train import prepare, settings

  values = config_lib.load_file(args.config)
  config_lib.apply_overrides(
    values, [word.removeprefix('--config.') for word in args.overrides]
  )
  config = config_lib.build(settings.TrainConfig, values)
  target = opening.open_target(config.target)
  found = prepare.documents(config, target)
  train, held = prepare.split(
    found, config.eval.held_out, config.data.domains, config.data.weights
  )
  variables = config.data.chat_template_kwargs or {}
  said = ', '.join(f'{name}={value}' for name, value in variables.items())
  template = chat.fingerprint(target.template) or 'none'
  print(
    f'target {target.name}, chat template {template} ({said or "as it is"})'
  )
  for line in showing.summary([found[n] for n in train], config.data.weights):
    print(line)
  print(f'{len(held)} more documents are held out')

  marks = showing.COLOURS if sys.stdout.isatty() else showing.BRACKETS
  show = functools.partial(showing.text, target.tokenizer, marks=marks)
  if args.rows:
    for line in _rows(config, found, train, args.rows, show):
      print(line)
    return
  tags = target.template and detection.tags(target.template.source)
  for document in _chosen(found, train, args):
    thoughts = showing.num_thoughts(target.tokenizer, document, tags)
    print(showing.heading(document, thoughts))
    print(show(document.tokens, document.is_answer))


def _chosen(found, train, args):
  """The documents that the flags name."""
  if args.id is None:
    return [found[n] for n in train[: args.num or _DOCUMENTS]]
  named = [d for d in found if args.id in (d.id, d.group)]
  if not named:
    raise errors.UserError(
      f'no document has the id {args.id!r}; the first is {found[0].id!r}'
    )
  return named


def _rows(config, found, train, num, show):
  """Lines of the first rows that training sees."""
  from jspec.data import packing, pipeline, showing

  source = pipeline.Documents(found)
  plan = pipeline.plan(
    source,
    train,
    row_len=config.data.row_len,
    num_rows=config.data.num_rows,
    seed=config.seed,
    domains=[found[n].domain for n in train],
    weights=config.data.weights,
  )
  rows = itertools.chain.from_iterable(plan)
  for numbers in itertools.islice(rows, num):
    filled = packing.fill_row(
      [source[number] for number in numbers], config.data.row_len
    )
    yield from showing.row([found[n] for n in numbers], filled, show)
