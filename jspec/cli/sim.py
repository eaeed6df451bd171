# SPDX-License-Identifier: MIT
"""`jspec sim`: depth policies on a machine that need not be there."""

import argparse
import pathlib

from jspec import errors
from jspec.cli import options, progress

_CLOSED, _POISSON = 'closed', 'poisson'
_STUDIES = ('budget', 'h20', 'hy3')  # `sim.published`, not imported for flags.
# Flags of a simulation. None: depends on others.
_DEFAULTS = {
  'costs': 'qwen3_8b_h20',
  'context': None,
  'policy': ('static', 'dcut', 'first_drop'),
  'profile': 'mixed',
  'confidence': (1.0, 0.0, 0.0),
  'concurrency': (1, 4, 16, 64),
  'trace': _CLOSED,
  'data': pathlib.Path('data'),
  'time_scale': None,
  'rate': None,
  'requests': None,
  'prompt_tokens': None,
  'output_tokens': None,
  'seed': 0,
}


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'sim',
    help='simulate depth policies: acceptance x costs x arrivals',
    description='Simulates serving with every policy on the same requests and'
    ' the same luck, without a model, and prints a Markdown table. Plain'
    ' decoding, fixed depths and an oracle are always in it.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--costs',
    metavar='NAME|FILE.json',
    help='seconds of rounds: qwen3_8b_h20, qwen3p5_35b_a3b_h20, hy3,'
    ' hy3_production, or a measured cost table (default: %(default)s)',
  )
  parser.add_argument(
    '--context',
    type=options.positive,
    metavar='N',
    help='cached tokens a row, of a measured table (default: its median)',
  )
  parser.add_argument(
    '--policy',
    type=options.policies,
    metavar='P,P,...',
    help='depth policies with their options (dcut,floor=1), also under the'
    ' guard (dcut+guard) (default: %(default)s)',
  )
  parser.add_argument(
    '--profile',
    metavar='NAME|TOKENS',
    help='acceptance: chat, code, math, mixed, or tokens a round of the whole'
    ' draft (default: %(default)s)',
  )
  parser.add_argument(
    '--confidence',
    type=_three,
    metavar='SLOPE,BIAS,NOISE',
    help='what the drafter says of its drafts, in logits; 1,0,0 is calibrated',
  )
  parser.add_argument(
    '--concurrency',
    type=options.positives,
    metavar='N,N,...',
    help='users of a closed loop, most rows at a time of a trace',
  )
  parser.add_argument(
    '--trace',
    metavar='closed|poisson|azure_conv|azure_code|mooncake|FILE',
    help='when requests arrive and how long they are (default: %(default)s)',
  )
  parser.add_argument(
    '--data',
    type=pathlib.Path,
    metavar='DIR',
    help='where the named traces lie (default: %(default)s)',
  )
  parser.add_argument(
    '--time-scale',
    type=float,
    metavar='X',
    help='multiplies the arrival times of a trace: 0.5 is twice the load',
  )
  parser.add_argument(
    '--rate', type=float, metavar='R', help='requests a second of poisson'
  )
  parser.add_argument(
    '--requests',
    type=options.positive,
    metavar='N',
    help='how many (default: 400 of a trace, 5 for each user of a closed loop,'
    ' at least 32)',
  )
  for flag, text in (
    ('--prompt-tokens', 'prompt of closed and poisson (default: 256)'),
    ('--output-tokens', 'mean answer of closed and poisson (default: 192)'),
  ):
    parser.add_argument(flag, type=options.positive, metavar='N', help=text)
  parser.add_argument('--seed', type=int)
  parser.add_argument(
    '--study',
    choices=_STUDIES,
    help='a published table, simulated, instead of all of the above',
  )
  options.add_json(parser)
  parser.set_defaults(run=run, **_DEFAULTS)


def run(args: argparse.Namespace) -> None:
  """Simulates and prints a table."""
  options.writable(args.json)
  if args.study:
    result = _study(args)
  else:
    _check(args)
    result = _compare(args)
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))


def _study(args):
  given = [name for name in _DEFAULTS if getattr(args, name) != _DEFAULTS[name]]
  if given:
    flag = given[0].replace('_', '-')
    raise errors.UserError(
      f'--study {args.study} is fixed and takes no --{flag}; leave one out'
    )
  import dataclasses

  from jspec.sim import published

  with progress.Wait(f'simulating {args.study}'):
    lines = published.study(args.study)
  print(published.markdown(lines))
  return {
    'study': args.study,
    'lines': [{**dataclasses.asdict(l), 'error': l.error} for l in lines],
  }


def _compare(args):
  from jspec.sim import acceptance, compare, contender, profiles

  specs = args.policy
  for spec in specs:
    contender.make(spec)
  machine = _machine(args)
  domains = profiles.profile(args.profile, machine.num_drafts)
  slope, bias, noise = args.confidence
  confidence = acceptance.Confidence(slope=slope, bias=bias, noise=noise)
  worlds = [
    compare.world(
      machine.with_rows(rows),
      _requests(args, rows),
      domains,
      max_rows=rows,
      confidence=confidence,
      seed=args.seed,
    )
    for rows in args.concurrency
  ]
  comparisons = []
  with progress.Wait('simulating') as wait:
    for here in worlds:
      wait.say(f'simulating {here.max_rows} rows')
      comparisons.append(compare.compare(here, specs, wait.update))
  print(f'{machine.name}, profile {args.profile}, {args.trace} arrivals\n')
  print(compare.markdown(comparisons))
  for comparison in comparisons:
    rows, used = comparison['rows'], comparison['lines'][0]['bucket_rows']
    if used > rows:
      print(f'\n{rows} rows run at the cost of {used}, the fewest measured.')
  return {
    'costs': machine.name,
    'profile': args.profile,
    'trace': args.trace,
    'confidence': args.confidence,
    'seed': args.seed,
    'comparisons': comparisons,
  }


def _machine(args):
  from jspec.sim import machines, measured

  if args.costs.endswith('.json'):
    return measured.read(pathlib.Path(args.costs), args.context)
  if args.context:
    raise errors.UserError(
      f'--context {args.context}: published costs {args.costs} hold for one'
      ' context; leave it out'
    )
  return machines.published(args.costs)


def _requests(args, rows):
  from jspec.sim import traces

  if args.trace in (_CLOSED, _POISSON):
    number = args.requests or max(32, 5 * rows)
    lengths = args.prompt_tokens or 256, args.output_tokens or 192
    if args.trace == _POISSON:
      return traces.poisson(number, args.rate, *lengths, seed=args.seed)
    if number < rows:
      raise errors.UserError(
        f'--requests {number} keep no {rows} users busy; give {rows} or more'
      )
    return traces.closed(number, *lengths, seed=args.seed)
  path = traces.find(args.trace, args.data)
  scale = 1.0 if args.time_scale is None else args.time_scale
  return traces.read(path, args.requests or 400, scale)


def _check(args):
  """Refuses flags that would do nothing."""
  is_synthetic = args.trace in (_CLOSED, _POISSON)
  if (args.rate is None) == (args.trace == _POISSON):
    raise errors.UserError(
      '--rate R, requests a second, belongs to --trace poisson; give both or'
      ' neither'
    )
  for name in ('prompt_tokens', 'output_tokens'):
    if getattr(args, name) and not is_synthetic:
      raise errors.UserError(
        f'--{name.replace("_", "-")}: trace {args.trace} says how long its'
        ' requests are; leave it out'
      )
  if args.time_scale is not None and is_synthetic:
    raise errors.UserError(
      f'--time-scale: {args.trace} is no recorded trace; leave it out'
    )


def _three(text):
  """Reads `1,0,0`."""
  try:
    numbers = tuple(float(part) for part in text.split(','))
  except ValueError:
    numbers = ()
  is_finite = all(abs(number) < float('inf') for number in numbers)
  if len(numbers) != 3 or not is_finite or numbers[2] < 0:
    raise argparse.ArgumentTypeError(
      f'{text!r} is no SLOPE,BIAS,NOISE: three numbers, noise not below 0'
    )
  return numbers
