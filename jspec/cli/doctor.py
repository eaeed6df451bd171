# SPDX-License-Identifier: MIT
"""`jspec doctor CKPT`: what a drafter wants, and why acceptance may be low.

`jspec doctor TARGET` says what a target was understood to be, and with
--accuracy how far its forms in fewer bits are from floats.

Codes: 0 nothing found, 1 something was found, 2 it cannot be read.
"""

import argparse

from jspec import errors
from jspec.cli import interchange, options, progress


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'doctor',
    help='say what a drafter or target is understood to be, and what is odd',
    description='Reads a drafter checkpoint of ours or of another project, says'
    ' what it is, and looks for reasons why few drafts would be accepted. Ends'
    ' with 1 if there are any. Of a target it says what was understood, and'
    ' with --accuracy how far weights and caches of fewer bits are from floats;'
    ' a layer that drafts inside of it is looked at with --layout.',
    allow_abbrev=False,
  )
  parser.add_argument(
    'checkpoint',
    metavar='CKPT',
    help='a checkpoint folder, the workdir of a training run, or a target',
  )
  parser.add_argument(
    '--target',
    metavar='NAME|DIR|FILE.gguf|hf:ORG/NAME',
    help='also compare it with this target',
  )
  parser.add_argument(
    '--accuracy',
    action='store_true',
    help='compare the form of a target that its options name, or every form,'
    ' with floats; on --prompts, or the demo',
  )
  options.add_prompts(parser, default=None)
  parser.add_argument(
    '--limit',
    type=options.positive,
    default=8,
    metavar='N',
    help='only the first N prompts (default: %(default)s)',
  )
  options.add_sampling(parser, max_tokens=64)
  parser.add_argument(
    '--layout',
    choices=interchange.LAYOUTS,
    help='of another project (default: told by its tensors)',
  )
  parser.add_argument(
    '--set',
    action='append',
    default=[],
    metavar='KEY=VALUE',
    help='what its config.json does not say, such as block_size=8',
  )
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
  """Examines, compares, measures; prints what it found."""
  if args.prompts and not (args.target or args.accuracy):
    raise errors.UserError(
      '--prompts measures with a target: give --target, or --accuracy if'
      f' {args.checkpoint} is the target'
    )
  options.writable(args.json)
  extra = interchange.given(args.set)
  from jspec.doctor import examine, target_report

  if args.layout is None and target_report.is_target(args.checkpoint):
    if args.target or args.set:
      raise errors.UserError(
        f'{args.checkpoint} is a target: --target and --set are for drafters'
      )
    return _target(args)
  if args.accuracy:
    raise errors.UserError(
      f'{args.checkpoint} is no target: --accuracy is for targets'
    )
  prompts = options.prompts(args.prompts, args.limit) if args.prompts else []
  params = options.sampling(args, ()) if prompts else None
  checkup = examine.examine(args.checkpoint, layout=args.layout, extra=extra)
  measured = []
  if args.target:
    from jspec import loading
    from jspec.doctor import target_checks

    target = loading.load_target(args.target)
    checkup.findings += target_checks.check(checkup, target)
    if prompts:
      from jspec.doctor import measure

      params = options.sampling(args, target.stop_ids)
      with progress.Wait('measuring acceptance'):
        measured, findings = measure.measure(
          checkup, target, prompts, params, args.rows
        )
      checkup.findings += findings
  return _show({**examine.result(checkup), 'measured': measured}, args.json)


def _target(args) -> int:
  """Examines a target and, where asked to, its forms."""
  from jspec.doctor import target_report

  result = target_report.examine(args.checkpoint)
  if args.accuracy:
    from jspec.doctor import accuracy

    prompts = options.prompts(args.prompts or 'demo', args.limit)
    params = options.sampling(args, ())
    with progress.Wait('comparing forms', unit='forms') as wait:
      result['accuracy'] = accuracy.measure(
        args.checkpoint, prompts, params, args.rows, wait.update
      )
  return _show(result, args.json)


def _show(result, path) -> int:
  """Prints and writes a result; the code of the program."""
  from jspec.doctor import report

  print(report.text(result))
  if 'accuracy' in result:
    from jspec.doctor import accuracy

    print(f'\n{accuracy.text(result["accuracy"])}')
  if path is not None:
    options.write_json(path, options.with_provenance(result))
  return 1 if result['findings'] else 0
