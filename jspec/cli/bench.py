# SPDX-License-Identifier: MIT
"""`jspec bench`: what rounds and training steps cost, what HTTP adds."""

import argparse

from jspec import errors
from jspec.cli import (
  fit,
  options,
  progress,
  serve_bench,
  throughput,
  train_bench,
)


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'bench', help='measure speed', allow_abbrev=False
  )
  actions = parser.add_subparsers(metavar='BENCHMARK', required=True)
  step = actions.add_parser(
    'step',
    help='milliseconds of one round by rows and nodes',
    description='Measures one round by rows and nodes, median of repeats, and'
    ' the least time that memory and matmuls of this machine allow.',
    allow_abbrev=False,
  )
  options.add_models(step, drafter='none')
  _add_random(step)
  step.add_argument(
    '--rows', type=options.positives, default=(1, 4, 16, 64), metavar='N,N,...'
  )
  step.add_argument(
    '--nodes',
    type=options.positives,
    default=(1, 2, 4, 8, 16),
    metavar='N,N,...',
  )
  step.add_argument(
    '--context',
    type=options.positive,
    default=256,
    metavar='N',
    help='cached tokens in every row',
  )
  step.add_argument('--repeats', type=options.positive, default=5, metavar='N')
  step.add_argument(
    '--compare',
    action='store_true',
    help='also time transformers on the same weights (extra: bench)',
  )
  options.add_json(step)
  step.set_defaults(run=run_step)
  kernels = actions.add_parser(
    'kernels',
    help='milliseconds of each operation beside its floor',
    description='Measures the operations of a round against the time their'
    ' bytes and FLOPs need, and against each other in turns.',
    allow_abbrev=False,
  )
  kernels.add_argument(
    '--repeats', type=options.positive, default=15, metavar='N'
  )
  options.add_json(kernels)
  kernels.set_defaults(run=run_kernels)
  load = actions.add_parser(
    'load',
    help='seconds to read a target, beside those to read its files',
    description='Reads the files of a target as bytes, and as the target, in'
    ' turns; before each, the system is told to forget what it has of them. A'
    ' target is loaded in a process of its own every time.',
    allow_abbrev=False,
  )
  options.add_target(load)
  load.add_argument(
    '--devices', type=options.positive, metavar='N', help='share it out over N'
  )
  load.add_argument('--repeats', type=options.positive, default=3, metavar='N')
  load.add_argument(
    '--warm', action='store_true', help='leave what the system has of the files'
  )
  options.add_json(load)
  load.set_defaults(run=run_load)
  fit.add(actions)
  throughput.add(actions)
  serve_bench.add(actions)
  train_bench.add(actions)


def _add_random(parser) -> None:
  """Adds the flags of a target without files."""
  group = parser.add_argument_group(
    'random weights',
    'With --random-layers, --target may be a published shape such as qwen3_8b.'
    ' Nothing is read: weights are random.',
  )
  for flag, text in (
    ('--random-layers', 'so many layers of the shape, from both ends'),
    ('--random-experts', 'so many experts in a layer (default: all)'),
    ('--random-vocab', 'so many ids (default: all)'),
  ):
    group.add_argument(flag, type=options.positive, metavar='N', help=text)


def _random(args):
  """The target without files that the flags name, and no drafter."""
  if args.drafter != 'none':
    raise errors.UserError(
      f'--drafter {args.drafter}: random weights have no drafter, leave it out'
    )
  from jspec.bench import random_target

  with progress.Wait('drawing weights'):
    target = random_target.load(
      args.target, args.random_layers, args.random_experts, args.random_vocab
    )
  return target, None


def run_kernels(args: argparse.Namespace) -> None:
  """Measures the operations and prints a table."""
  options.writable(args.json)
  from jspec.bench import kernels

  with progress.Wait('measuring', unit='figures') as wait:
    result = kernels.run(repeats=args.repeats, on_progress=wait.update)
  print(kernels.table(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))


def run_load(args: argparse.Namespace) -> None:
  """Measures loading and prints a line."""
  options.writable(args.json)
  from jspec.bench import load

  with progress.Wait('reading', unit='rounds') as wait:
    result = load.run(
      args.target,
      devices=args.devices,
      repeats=args.repeats,
      is_warm=args.warm,
      is_apart=True,
      on_progress=wait.update,
    )
  print(load.line(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))


def run_step(args: argparse.Namespace) -> None:
  """Measures a round and prints a table."""
  options.writable(args.json)
  from jspec.bench import step

  if args.random_layers is None:
    if args.random_experts or args.random_vocab:
      raise errors.UserError(
        '--random-experts and --random-vocab cut a shape with random weights:'
        ' give --random-layers'
      )
    loaded, drafter = options.models(args)
  else:
    loaded, drafter = _random(args)
  needed = args.context + max(args.nodes)
  if needed > loaded.model.max_len:
    raise errors.UserError(
      f'--context {args.context} and --nodes {max(args.nodes)} need {needed}'
      f' tokens but the context of target {loaded.name} is'
      f' {loaded.model.max_len}: lower one'
    )
  with progress.Wait('measuring', unit='figures') as wait:
    result = step.run(
      loaded,
      drafter,
      rows=args.rows,
      nodes=args.nodes,
      context=args.context,
      repeats=args.repeats,
      compare=args.compare,
      # A vocabulary that was cut says nothing of sampling.
      samplers=step.SAMPLERS if args.random_layers is None else {},
      on_progress=wait.update,
    )
  print(step.table(result))
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
