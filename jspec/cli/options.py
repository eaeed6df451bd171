# SPDX-License-Identifier: MIT
"""Flags that read the same in every program, and what they stand for."""

import argparse
import json
import os
import pathlib
from typing import Any

from jspec import errors

ASSETS = pathlib.Path(__file__).resolve().parents[1] / 'assets'
# Of `decode.verify.api`, which is not imported to read flags.
RULES = ('walk', 'token', 'block', 'recursive', 'traversal')
SHIPPED_PROMPTS = ASSETS / 'prompts.jsonl'


def add_models(
  parser: argparse.ArgumentParser, drafter: str, *, is_served: bool = False
) -> None:
  """Adds --target and --drafter.

  Args:
    parser: of a program.
    drafter: default of --drafter.
    is_served: the program takes several drafters (`served_models`).
  """
  add_target(parser)
  parser.add_argument(
    '--drafter',
    default=drafter,
    metavar='NAME|CHECKPOINT|MODULE:ATTR',
    help='none, ngram, suffix, shipped, or your own'
    + (', or several, as A,B or NAME=A,NAME=B' if is_served else '')
    + ' (default: %(default)s)',
  )


def add_target(parser: Any) -> None:
  """Adds --target."""
  parser.add_argument(
    '--target',
    default='smollm2_135m',
    metavar='NAME|DIR|FILE.gguf|hf:ORG/NAME',
    help='the model to decode; options follow it: ,dtype=bfloat16 ,weights=int8'
    ' or fp8 ,cache=bf16, int8 or fp8 (default: %(default)s)',
  )


def add_prompts(parser: Any, default: str | None) -> None:
  """Adds --prompts, to a parser or to a group of one."""
  parser.add_argument(
    '--prompts',
    default=default,
    metavar='FILE|tfds:NAME|arrow:DIR|demo|train|shipped',
    help='JSON Lines with `turns` or `prompt`, a TFDS data set with the same'
    ' fields, or prompts that come with jspec'
    + (f' (default: {default})' if default else ''),
  )


def add_limit(parser: argparse.ArgumentParser) -> None:
  """Adds --limit, the number of prompts to read."""
  parser.add_argument(
    '--limit', type=positive, metavar='N', help='only the first N prompts'
  )


def add_sampling(
  parser: argparse.ArgumentParser, max_tokens: int = 128, rows: int = 8
) -> None:
  """Adds the flags of `SamplingParams` and --rows."""
  group = parser.add_argument_group('sampling')
  group.add_argument(
    '--max-tokens', type=positive, default=max_tokens, metavar='N'
  )
  group.add_argument(
    '--temperature', type=float, default=0.0, help='0 takes the likeliest token'
  )
  group.add_argument('--top-k', type=int, default=0, help='0 is off')
  group.add_argument('--top-p', type=float, default=1.0, help='1 is off')
  group.add_argument('--min-p', type=float, default=0.0, help='0 is off')
  group.add_argument('--seed', type=int, default=0)
  group.add_argument(
    '--rows',
    type=positive,
    default=rows,
    metavar='N',
    help='answers decoded at the same time (default: %(default)s)',
  )


def add_rule(parser: Any) -> None:
  """Adds --rule, how drafts are verified, to a parser or to a group of one."""
  parser.add_argument(
    '--rule',
    default='walk',
    choices=RULES,
    help='how drafts are verified: walk keeps the very tokens of plain'
    ' decoding; the others sample the drafts and keep its law (default:'
    ' %(default)s)',
  )


def add_costs(parser: argparse.ArgumentParser) -> None:
  """Adds --measure-again, for what a serving engine knows of its rounds."""
  parser.add_argument(
    '--measure-again',
    action='store_true',
    help='measure what rounds cost, even if an earlier start left a table',
  )


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds --json."""
  parser.add_argument(
    '--json', type=pathlib.Path, metavar='OUT', help='also write all results'
  )


def positive(text: str) -> int:
  """Reads an integer above zero."""
  try:
    value = int(text)
  except ValueError:
    value = 0
  if value < 1:
    raise argparse.ArgumentTypeError(f'{text!r} is no whole number from 1')
  return value


def positives(text: str) -> tuple[int, ...]:
  """Reads `1,4,16`."""
  return tuple(positive(part) for part in text.split(','))


def policies(text: str) -> tuple[str, ...]:
  """Reads `static,depth=2,dcut`: what has a `=` belongs to the name before."""
  names: list[str] = []
  for part in (part.strip() for part in text.split(',')):
    if '=' in part and names:
      names[-1] += f',{part}'
    else:
      names.append(part)
  return tuple(names)


def prompts(spec: str, limit: int | None) -> list[Any]:
  """Reads prompts (`data.sources.Prompt`) by source or by name."""
  from jspec.data import prompts as prompts_lib

  if spec == 'shipped':
    return prompts_lib.read(SHIPPED_PROMPTS)[:limit]
  if spec in (
    'demo',
    'train',
  ):  # The demo decodes the one, trains on the other.
    return prompts_lib.read(SHIPPED_PROMPTS, split=spec)[:limit]
  return prompts_lib.read(spec)[:limit]


def sampling(args: argparse.Namespace, stop_ids: tuple[int, ...]) -> Any:
  """Builds the `SamplingParams` that the flags describe."""
  from jspec.decode import sampling as sampling_lib

  return sampling_lib.SamplingParams(
    temperature=args.temperature,
    top_k=args.top_k,
    top_p=args.top_p,
    min_p=args.min_p,
    seed=args.seed,
    max_tokens=args.max_tokens,
    stop_ids=stop_ids,
  )


def models(args: argparse.Namespace) -> tuple[Any, Any]:
  """Loads the target and the drafter that the flags name."""
  from jspec import loading
  from jspec.cli import progress

  loaded = loading.load_target(args.target)
  with progress.Wait(f'loading drafter {args.drafter}'):
    drafter = loading.load_drafter(args.drafter, loaded)
  return loaded, drafter


def served_models(
  args: argparse.Namespace, mesh: Any = None
) -> tuple[Any, Any]:
  """As `models`, where several drafters may be named for one engine.

  Args:
    args: the flags.
    mesh: devices the target is read to; None: the first one.
  """
  from jspec import loading
  from jspec.cli import mixture, progress

  loaded = loading.load_target(args.target, mesh=mesh)
  with progress.Wait(f'loading drafter {args.drafter}'):
    drafter = mixture.load(args.drafter, loaded)
  return loaded, drafter


def keep_programs() -> None:
  """Keeps compiled programs for the next start, unless told where or not to.

  JAX reads the variable when it is imported, so this comes before that; the
  programs of a serving engine take a minute to compile and seconds to load.
  """
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  os.environ.setdefault(
    'JAX_COMPILATION_CACHE_DIR', str(pathlib.Path(home) / 'jspec' / 'programs')
  )


def writable(path: pathlib.Path | None) -> None:
  """Refuses a path for results before the work, not after it."""
  if path is None:
    return
  folder = path.absolute().parent
  if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
    raise errors.UserError(
      f'cannot write results to {path}: name a file in a folder that exists'
      ' and may be written to'
    )


def write_json(path: pathlib.Path | None, result: Any) -> None:
  """Writes a result at once: a reader sees the old file or the whole one."""
  if path is not None:
    write_text(path, json.dumps(result, indent=2) + '\n')


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a text at once, as `write_json`."""
  part = path.with_name(f'.{path.name}.part')
  part.write_text(text, encoding='utf-8')
  part.replace(path)


def with_provenance(result: dict[str, Any]) -> dict[str, Any]:
  """Adds where the numbers came from."""
  from jspec import provenance

  return {**result, 'provenance': provenance.collect()}
