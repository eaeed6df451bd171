# SPDX-License-Identifier: MIT
"""`jspec generate`: answers prompts and prints text and speed."""

import argparse
import dataclasses

from jspec.cli import options, progress


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'generate',
    help='answer prompts with speculative decoding',
    description='Answers prompts; turns of a conversation in order.',
    allow_abbrev=False,
  )
  options.add_models(parser, drafter='none')
  which = parser.add_mutually_exclusive_group(required=True)
  which.add_argument('--prompt', metavar='TEXT', help='one prompt')
  options.add_prompts(which, default=None)
  options.add_limit(parser)
  options.add_sampling(parser)
  options.add_rule(parser)
  options.add_json(parser)
  parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
  """Loads, decodes, prints."""
  options.writable(args.json)
  from jspec import conversation
  from jspec.data import prompts as prompts_lib
  from jspec.decode import generate

  if args.prompt is not None:
    prompts = [prompts_lib.of_text(args.prompt, '--prompt')]
  else:
    prompts = options.prompts(args.prompts, args.limit)
  options.sampling(args, ())  # bad flags fail before the model loads
  loaded, drafter = options.models(args)
  params = options.sampling(args, loaded.stop_ids)
  with progress.Wait('compiling'):
    decoder = generate.Decoder(
      loaded.model,
      drafter,
      num_rows=min(args.rows, len(prompts)),
      max_len=conversation.needed_len(loaded, prompts, args.max_tokens),
      rule=args.rule,
    )
  with progress.Wait('decoding', unit='answers') as wait:
    replies = conversation.answer(
      loaded,
      decoder,
      prompts,
      conversation.seeded(params, len(prompts)),
      on_progress=wait.update,
    )
  for reply in replies:
    print(f'[{reply.id}, turn {reply.turn + 1}] {reply.prompt}')
    print(f'{reply.text}\n')
  totals = conversation.summary(replies, decoder.timing)
  print(
    f'{totals["num_tokens"]} tokens, {totals["tokens_per_s"]:.1f} tokens/s,'
    f' {totals["tokens_per_round"]:.2f} tokens per round'
    f' (drafter {args.drafter})'
  )
  result = {
    'target': loaded.label,
    'drafter': args.drafter,
    **totals,
    'replies': [dataclasses.asdict(reply) for reply in replies],
  }
  if args.json is not None:
    options.write_json(args.json, options.with_provenance(result))
