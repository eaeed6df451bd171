# SPDX-License-Identifier: MIT
"""`jspec data`: the target answers prompts; a config's documents are shown."""

import argparse
import pathlib

from jspec.cli import data_show, options, progress

_BATCHES_AT_ONCE = 4


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'data', help='make and show training data', allow_abbrev=False
  )
  actions = parser.add_subparsers(metavar='ACTION', required=True)
  regen = actions.add_parser(
    'regen',
    help='let the target answer prompts',
    description="Writes the target's own answers. A file that is there already"
    ' is continued.',
    allow_abbrev=False,
  )
  options.add_models(regen, drafter='none')
  options.add_prompts(regen, default='shipped')
  options.add_limit(regen)
  options.add_sampling(regen, max_tokens=512)
  regen.add_argument(
    '--out', type=pathlib.Path, required=True, metavar='FILE.jsonl'
  )
  regen.set_defaults(run=run)
  data_show.add(actions)


def run(args: argparse.Namespace) -> None:
  """Answers what the file lacks."""
  options.writable(args.out)
  from jspec import conversation
  from jspec.data import regenerate
  from jspec.decode import generate

  regenerate.appendable(args.out)
  prompts = options.prompts(args.prompts, args.limit)
  options.sampling(args, ())  # bad flags fail before the model loads
  loaded, drafter = options.models(args)
  params = conversation.seeded(
    options.sampling(args, loaded.stop_ids), len(prompts)
  )
  with progress.Wait('compiling'):
    decoder = generate.Decoder(
      loaded.model,
      drafter,
      num_rows=args.rows,
      max_len=conversation.needed_len(loaded, prompts, args.max_tokens),
    )

  def answer(indices):
    replies = conversation.answer(
      loaded,
      decoder,
      [prompts[i] for i in indices],
      [params[i] for i in indices],
    )
    return [
      {
        'id': regenerate.record_id(reply.id, reply.turn),
        'prompt_len': len(reply.prompt_tokens),
        'ids': [*reply.prompt_tokens, *reply.output.tokens],
        'finished': reply.output.finish_reason == 'stop',
      }
      for reply in replies
    ]

  with progress.Wait('answering', unit='prompts') as wait:
    num = regenerate.run(
      prompts,
      args.out,
      answer,
      same={
        'target': loaded.label,
        'fingerprint': loaded.fingerprint,
        'temperature': args.temperature,
        'top_k': args.top_k,
        'top_p': args.top_p,
        'min_p': args.min_p,
        'seed': args.seed,
        'max_tokens': args.max_tokens,
      },
      num_at_once=_BATCHES_AT_ONCE * args.rows,
      on_progress=wait.update,
    )
  print(f'{num} prompts answered, {len(prompts)} in {args.out}')
