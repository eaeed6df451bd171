# SPDX-License-Identifier: MIT
"""`jspec serve`: the engine behind OpenAI's HTTP API."""

import argparse
import os
import random
from typing import Any

from jspec import errors
from jspec.cli import engines, hosts, mixture, options

# Of the environment.
_KEY = 'JSPEC_API_KEY'
_ADMIN_KEY = 'JSPEC_ADMIN_KEY'
_NONE = 'none'


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'serve',
    help="serve a target over HTTP, as OpenAI's API",
    description='Starts a server that OpenAI clients talk to. /health answers'
    ' at once, /ready when every program is compiled. SIGTERM lets accepted'
    ' requests finish.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='shipped', is_served=True)
  _add_http(parser.add_argument_group('HTTP'))
  _add_engine(parser.add_argument_group('engine'))
  options.add_costs(parser)
  hosts.add(parser)
  parser.set_defaults(run=run)


def _add_http(group):
  group.add_argument('--host', default='127.0.0.1')
  group.add_argument(
    '--port', type=_whole, default=8000, help='0 takes a free one'
  )
  group.add_argument(
    '--served-name',
    action='append',
    metavar='NAME',
    help='what requests call the model, instead of its own name; may be given'
    ' again',
  )
  group.add_argument(
    '--route',
    action='append',
    metavar='model:NAME=DRAFTER,..|domain:KIND=DRAFTER,..|speed',
    help='who drafts for requests that name no drafter: by the name of the'
    ' model, which is one more, by what the prompt looks like (code, math,'
    ' chat), or whoever was fastest; may be given again, the first that has an'
    ' opinion decides',
  )
  group.add_argument(
    '--api-key',
    action='append',
    metavar='KEY',
    help=f'let in only who has it; may be given again, or as {_KEY}',
  )
  group.add_argument(
    '--admin-key',
    action='append',
    metavar='KEY',
    help='let whoever has it swap drafters while they serve'
    f' (/v1/jspec/drafters, SIGHUP); may be given again, or as {_ADMIN_KEY}',
  )
  for flag, default, text in (
    ('--max-queue', 256, 'answers that wait for a row; more get 429'),
    ('--max-body', 4 * 1024 * 1024, 'bytes of a request'),
  ):
    group.add_argument(
      flag,
      type=_whole,
      default=default,
      metavar='N',
      help=f'{text} (default: {default})',
    )
  for flag, default, text in (
    ('--body-timeout', 30.0, 'for a body to come'),
    ('--request-timeout', 600.0, 'for a whole request'),
    ('--grace', 30.0, 'for accepted requests when the server is stopped'),
  ):
    group.add_argument(
      flag,
      type=float,
      default=default,
      metavar='S',
      help=f'seconds {text} (default: {default:g})',
    )
  group.add_argument(
    '--otlp-endpoint',
    metavar='URL',
    help='send OpenTelemetry traces there (extra otel); left out, where'
    ' OTEL_EXPORTER_OTLP_ENDPOINT says, or nowhere',
  )
  group.add_argument(
    '--log-text',
    action='store_true',
    help='log prompts and answers, which are left out otherwise',
  )


def _add_engine(group):
  group.add_argument(
    '--rows',
    type=options.positive,
    default=16,
    metavar='N',
    help='answers decoded side by side (default: %(default)s)',
  )
  group.add_argument(
    '--max-len',
    type=options.positive,
    default=1024,
    metavar='N',
    help="most tokens of prompt and answer, within the target's context"
    ' (default: %(default)s)',
  )
  group.add_argument(
    '--num-pages',
    type=options.positive,
    metavar='N',
    help='pages of the pool; left out, all rows fit at full length',
  )
  group.add_argument(
    '--rounds',
    type=options.positive,
    default=4,
    metavar='N',
    help='rounds of a launch (default: %(default)s)',
  )
  group.add_argument(
    '--policy',
    type=options.policies,
    default='dcut,static',
    metavar='NAME[,OPTION=VALUE...],...',
    help='how many drafts are verified: the first says so, and requests may'
    ' choose another (default: %(default)s)',
  )
  options.add_rule(group)
  group.add_argument(
    '--seed',
    type=_whole,
    metavar='N',
    help='requests without a seed draw theirs from it; left out, no two starts'
    ' are alike',
  )
  group.add_argument(
    '--require-spec',
    action='store_true',
    help='do not start if nothing can be drafted',
  )
  group.add_argument(
    '--no-structured',
    action='store_true',
    help='compile no programs for JSON and tools that must be called',
  )


def run(args: argparse.Namespace) -> None:
  """Loads, serves, and ends when it is told to."""
  options.keep_programs()
  from jspec.server import extra

  extra.check()
  from jspec.server import routes

  named = drafters(args.drafter)
  chosen = routes.make(args.route or (), tuple(named))
  if args.require_spec and args.drafter == _NONE:
    raise errors.UserError(
      '--require-spec with --drafter none: nothing would be drafted; name a'
      ' drafter'
    )
  with hosts.joined(args) as together:
    _serve(args, together, named, chosen)


def _serve(args, together, named, chosen):
  from jspec import loading
  from jspec.server import driver, logs, served, swaps, tracing
  from jspec.server import run as run_lib

  limits = http_limits(args)
  with hosts.loading(together):
    # Several processes load alike and are told to share out later.
    mesh = None if together.link else together.mesh
    loaded, drafter = options.served_models(args, mesh)
  settings = engine_settings(args, loaded.model.max_len)
  logs.start()
  logs.say('configuration', **configuration(args))
  compiler = None if args.no_structured else _compiler(loaded)
  if together.follows:
    hosts.follow(
      together, loaded, drafter, settings, has_compiler=compiler is not None
    )
    return
  spans = None
  if tracing.is_asked_for(args.otlp_endpoint):
    spans = tracing.start(args.otlp_endpoint, loaded.name)
  run_lib.run(
    served.Served(
      driver=driver.Driver(
        lambda: _engine(args, loaded, drafter, settings, compiler, together),
        max_open=settings.max_rows + limits.max_queue,
      ),
      target=loaded,
      names=tuple(
        dict.fromkeys((*(args.served_name or [loaded.name]), *chosen.aliases))
      ),
      vocab_size=loaded.model.vocab_size,
      context_len=context_len(settings, loaded, drafter),
      drafters=named,
      policies=args.policy if named else (),
      routes=chosen,
      limits=limits,
      compiler=compiler,
      seeds=random.SystemRandom()
      if args.seed is None
      else random.Random(args.seed),
      logs_text=args.log_text,
      spans=spans,
      swaps=swaps.Swaps(
        sources(args.drafter),
        lambda spec: loading.load_drafter(spec, loaded),
        built_in=(*mixture.KINDS, _NONE),
      )
      if limits.admin_keys
      else None,
    ),
    host=args.host,
    port=args.port,
  )


def http_limits(args: argparse.Namespace) -> Any:
  """What clients may ask (`server.limits.Limits`)."""
  from jspec.server import limits

  return limits.Limits(
    max_queue=args.max_queue,
    max_body=args.max_body,
    body_s=args.body_timeout,
    request_s=args.request_timeout,
    grace_s=args.grace,
    api_keys=_keys(args.api_key, _KEY),
    admin_keys=_keys(args.admin_key, _ADMIN_KEY),
  )


def engine_settings(args: argparse.Namespace, most: int) -> Any:
  """What was chosen of the engine; `most` is the target's own context."""
  from jspec.serve import settings

  return settings.Settings(
    max_rows=args.rows,
    max_len=min(args.max_len, most),
    num_pages=args.num_pages,
    num_rounds=args.rounds,
    policies=args.policy,
    rule=args.rule,
  )


def context_len(settings: Any, loaded: Any, drafter: Any) -> int:
  """Most tokens of prompt and answer; UserError if the settings do not fit."""
  from jspec.serve import settings as settings_lib

  extended = settings_lib.extended(settings, drafter)
  sizes = settings_lib.resolve(settings, loaded.model, extended)
  return sizes.scheduler.limit


def drafters(spec: str) -> dict[str, str | None]:
  """Names that requests may give, and what the engine calls them."""
  names = sources(spec)
  if len(names) == 1 and mixture.split(spec)[0][0] is None:
    return dict.fromkeys(names)  # An engine of one has no names.
  return {name: name for name in names}


def sources(spec: str) -> dict[str, str]:
  """The same names, and what each is loaded from."""
  if spec == _NONE:
    return {}
  return {
    name or mixture.short_name(part): part for name, part in mixture.split(spec)
  }


def configuration(args: argparse.Namespace) -> dict[str, Any]:
  """What was chosen, for the log: all but the keys."""
  told = {name: value for name, value in vars(args).items() if name != 'run'}
  told['api_key'] = bool(_keys(args.api_key, _KEY))
  told['admin_key'] = bool(_keys(args.admin_key, _ADMIN_KEY))
  return told


def _keys(given, variable):
  more = os.environ.get(variable)
  return (*(given or ()), *((more,) if more else ()))


def _compiler(loaded):
  """Reads grammars, if that is installed and knows the tokenizer."""
  from jspec.serve import structured
  from jspec.server import logs

  try:
    return structured.Compiler(loaded.tokenizer, loaded.model.vocab_size)
  except errors.UserError as error:
    logs.say('structured output is off', reason=str(error))
    return None


def _engine(args, loaded, drafter, settings, compiler, together):
  """Makes the engine, and sees whether it drafts; in the driver's thread."""
  from jspec.server import logs, probe

  made = engines.start(
    loaded,
    drafter,
    settings,
    is_anew=args.measure_again,
    compiler=compiler,
    mesh=together.mesh,
    link=together.link,
    on_progress=lambda done, total, name: logs.say(
      'starting', done=done, total=total, step=name
    ),
  )
  problem = probe.why_not(made, loaded.tokenizer.encode(probe.TEXT))
  if problem and args.require_spec:
    raise errors.UserError(
      f'--require-spec, and {problem}; name another drafter or leave the flag'
      ' out'
    )
  if problem and drafter is not None:
    logs.say('nothing is drafted', reason=problem)
  return made


def _whole(text: str) -> int:
  """Reads an integer from zero."""
  try:
    value = int(text)
  except ValueError:
    value = -1
  if value < 0:
    raise argparse.ArgumentTypeError(f'{text!r} is no whole number from 0')
  return value
