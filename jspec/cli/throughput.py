# SPDX-License-Identifier: MIT
"""`jspec bench throughput`: depth policies on this machine's engine."""

import argparse
import math
import pathlib
from typing import Any

from jspec import errors
from jspec.cli import engines, options, progress

_COMPARED_ROWS = (1, 16)  # Of --compare, where --concurrency has them.
_COMPARED_CONTEXT = 256
# Flags of one way of sending requests, refused in the other. None: not given.
_CLOSED = {'concurrency': (1, 4, 16), 'launches': 24, 'compare': False}
_OPEN = {
  'rows': 16,
  'max_len': 1024,
  'requests': 64,
  'speed_up': None,
  'load': 0.7,
  'limits': None,
}


def add(actions: Any) -> None:
  """Declares the program."""
  parser = actions.add_parser(
    'throughput',
    help='tokens a second of the engine, policy by policy',
    description='Serves requests with every policy on one engine, interleaved,'
    ' so that ratios hold where times do not: one closed loop for each'
    ' concurrency, or the arrivals of a trace.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='shipped', is_served=True)
  options.add_prompts(parser, default='demo')
  options.add_limit(parser)
  parser.add_argument(
    '--policy',
    type=options.policies,
    default=('plain', 'full', 'guarded', 'dcut'),
    metavar='NAME,NAME,...',
    help='plain (no drafts), full (the whole draft), guarded (what the engine'
    ' does by itself), or depth policies with their options, such as'
    ' static,depth=2 (default: plain,full,guarded,dcut)',
  )
  parser.add_argument(
    '--rounds',
    type=options.positive,
    default=4,
    metavar='N',
    help='rounds of a launch (default: %(default)s)',
  )
  parser.add_argument('--temperature', type=float, default=0.0)
  parser.add_argument(
    '--max-tokens', type=options.positive, default=128, metavar='N'
  )
  options.add_costs(parser)
  options.add_json(parser)
  parser.add_argument(
    '--plot',
    type=pathlib.Path,
    metavar='OUT.svg',
    help='also draw it: speed over plain decoding, or time per token of a'
    ' trace, and the depths that were chosen',
  )
  _add_closed(parser.add_argument_group('closed loop'))
  _add_open(parser.add_argument_group('trace'))
  parser.set_defaults(run=run)


def _add_closed(group):
  group.add_argument(
    '--concurrency',
    type=options.positives,
    metavar='N,N,...',
    help='requests in flight (default: 1,4,16)',
  )
  group.add_argument(
    '--launches',
    type=options.positive,
    metavar='N',
    help='launches of each policy at each concurrency (default: 24)',
  )
  group.add_argument(
    '--compare',
    action='store_true',
    default=None,
    help='also compare plain decoding of 1 and of 16 rows, where --concurrency'
    ' has them, with transformers on the same weights (extra: bench)',
  )


def _add_open(group):
  group.add_argument(
    '--trace',
    type=pathlib.Path,
    metavar='FILE',
    help='replay the arrivals and lengths of a trace instead: CSV of Azure'
    ' (TIMESTAMP,ContextTokens,GeneratedTokens), JSON Lines of Mooncake'
    ' (timestamp, input_length, output_length), .gz or not',
  )
  for flag, text in (
    ('--requests', 'only the first N requests (default: 64)'),
    ('--rows', 'most requests side by side (default: 16)'),
    (
      '--max-len',
      "most tokens of prompt and answer, within the target's context (default:"
      ' 1024)',
    ),
  ):
    group.add_argument(flag, type=options.positive, metavar='N', help=text)
  load = group.add_mutually_exclusive_group()
  load.add_argument(
    '--speed-up',
    type=_above_0,
    metavar='X',
    help='let requests arrive X times as fast as recorded',
  )
  load.add_argument(
    '--load',
    type=_above_0,
    metavar='SHARE',
    help='or so fast that answers want this share of what plain decoding of'
    ' all rows yields, prompts apart (default: 0.7)',
  )
  group.add_argument(
    '--limits',
    type=_limits,
    metavar='S,S',
    help='for goodput: seconds to the first token, and per token behind it'
    ' (default: what nine of ten requests of plain decoding keep)',
  )


def run(args: argparse.Namespace) -> None:
  """Measures the engine and prints a table."""
  options.writable(args.json)
  options.writable(args.plot)
  _fill(args)
  options.keep_programs()
  from jspec.bench import contenders, drafters_table, hf, start_up

  contenders.policies(args.policy)
  if args.plot is not None and contenders.PLAIN not in args.policy:
    raise errors.UserError(
      '--plot draws speed over plain decoding: add plain to --policy'
    )
  if args.compare:
    hf.packages()
  recorded = _recorded(args)
  loaded, drafter = options.served_models(args)
  if drafter is None:
    raise errors.UserError(
      '--drafter none leaves no policy to compare: name a drafter'
    )
  measure = _closed if recorded is None else _open
  result, report = measure(args, loaded, drafter, recorded)
  print(report.table(result))
  if result['drafters']:
    print('\n' + drafters_table.table(result['drafters']))
  print(start_up.line(result['start_up']))
  if args.json is not None:
    about = {'target': loaded.label, 'drafter': args.drafter}
    options.write_json(args.json, options.with_provenance(about | result))
  if args.plot is not None:
    title = f'{loaded.label}, drafter {args.drafter}'
    options.write_text(args.plot, report.plot(result, title))


def _fill(args):
  """Puts in what was not given, and refuses what would do nothing."""
  is_open = args.trace is not None
  mine, others = (_OPEN, _CLOSED) if is_open else (_CLOSED, _OPEN)
  for name in others:
    if getattr(args, name) is not None:
      flag = '--' + name.replace('_', '-')
      raise errors.UserError(
        f'{flag} belongs to the closed loop: leave out it or --trace'
        if is_open
        else f'{flag} belongs to a trace: name one with --trace FILE'
      )
  for name, value in mine.items():
    if getattr(args, name) is None:
      setattr(args, name, value)


def _recorded(args):
  if args.trace is None:
    return None
  from jspec.sim import traces

  if not args.trace.is_file():
    raise errors.UserError(f'--trace {args.trace}: there is no such file')
  return traces.read(args.trace, args.requests)


def _closed(args, loaded, drafter, _):
  from jspec.bench import hf, rival, throughput, throughput_report
  from jspec.serve import asks, members

  params = _params(args, loaded)
  names = members.names(drafter)
  texts = _texts(args, loaded)
  longest = max(map(len, texts))
  needed = longest + args.max_tokens + 1
  num_turns = -(-args.launches // rival.LAUNCHES)
  compared = [n for n in _COMPARED_ROWS if n in args.concurrency]
  if args.compare:
    if not compared:
      raise errors.UserError(
        '--compare decodes 1 and 16 rows: add one of them to --concurrency'
      )
    more = rival.num_tokens(num_turns, args.rounds)
    context = min(_COMPARED_CONTEXT, loaded.model.max_len - more - 1)
    if context < 1:
      raise errors.UserError(
        f'--compare decodes {more} tokens of each row, and the context of'
        f' target {loaded.name} is {loaded.model.max_len}: lower --launches or'
        ' --rounds'
      )
    needed = max(needed, context + more + 1)
  made, found = _start(
    args,
    loaded,
    drafter,
    max_rows=max(args.concurrency),
    max_len=min(needed, loaded.model.max_len),
    row_buckets=tuple(sorted(set(args.concurrency))),
  )
  with progress.Wait('measuring', unit='launches') as wait:
    result = throughput.run(
      made,
      args.policy,
      [
        (text, asks.Ask(params=params, drafter=names[i % len(names)]))
        for i, text in enumerate(texts)
      ],
      concurrencies=args.concurrency,
      num_launches=args.launches,
      on_progress=wait.update,
    )
  result['drafters'] = made.metrics.drafters()
  if args.compare:
    with progress.Wait('comparing with transformers'):
      other = hf.Rows(loaded.model)
      result['transformers'] = {
        'version': other.version,
        'num_threads': other.num_threads,
        'compared': [
          rival.compare(
            made,
            other,
            texts,
            rows=rows,
            context=context,
            num_turns=num_turns,
          )
          for rows in compared
        ],
      }
  return {'start_up': found, **result}, throughput_report


def _open(args, loaded, drafter, recorded):
  from jspec.bench import open_loop, open_loop_report, traffic
  from jspec.serve import members

  max_len = min(args.max_len, loaded.model.max_len)
  texts = _texts(args, loaded, is_cut=True)
  params = _params(args, loaded)
  sizes = {'max_len': max_len, 'max_tokens': args.max_tokens}
  # What does not fit is said before the start, which takes a minute.
  traffic.make(
    recorded, texts, **sizes, speed_up=args.speed_up, tokens_per_s=1.0
  )
  made, found = _start(
    args, loaded, drafter, max_rows=args.rows, max_len=max_len
  )
  with progress.Wait('replaying', unit='requests') as wait:
    result = open_loop.run(
      made,
      args.policy,
      traffic.make(
        recorded,
        texts,
        **sizes,
        speed_up=args.speed_up,
        tokens_per_s=args.load * open_loop.plain_rate(made),
      ),
      params,
      drafters=members.names(drafter),
      limits=args.limits,
      on_progress=wait.update,
    )
  result['drafters'] = made.metrics.drafters()
  result['trace']['file'] = args.trace.name
  return {'start_up': found, **result}, open_loop_report


def _params(args, loaded):
  from jspec.decode import sampling

  return sampling.SamplingParams(
    temperature=args.temperature,
    max_tokens=args.max_tokens,
    stop_ids=loaded.stop_ids,
  )


def _texts(args, loaded, *, is_cut=False):
  """Token ids of the prompts; of any length where they will be cut."""
  from jspec import conversation

  texts = []
  for prompt in options.prompts(args.prompts, args.limit):
    message = {'role': 'user', 'content': prompt.turns[0]}
    texts.append(conversation.encode(loaded, [message]))
    if not is_cut and len(texts[-1]) >= loaded.model.max_len:
      raise errors.UserError(
        f'prompt {prompt.id!r} has {len(texts[-1])} tokens and the context of'
        f' target {loaded.name} is {loaded.model.max_len}: shorten it'
      )
  return texts


def _start(args, loaded, drafter, **sizes):
  """An engine for the policies, and how long its start took."""
  from jspec.bench import contenders, start_up
  from jspec.serve import settings

  own = contenders.policies(args.policy)
  clock = start_up.Clock()
  with clock.running():
    made = engines.start(
      loaded,
      drafter,
      settings.Settings(
        num_rounds=args.rounds, policies=tuple(own) or ('dcut',), **sizes
      ),
      is_anew=args.measure_again,
    )
  return made, start_up.figures(made, clock)


def _above_0(text):
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 < value < math.inf:
    raise argparse.ArgumentTypeError(f'{text!r} is no number above 0')
  return value


def _limits(text):
  """Reads `2,0.1`."""
  values = tuple(_above_0(part) for part in text.split(','))
  if len(values) != 2:
    raise argparse.ArgumentTypeError(
      f'{text!r} is no pair: seconds to the first token, seconds per token'
    )
  return values
