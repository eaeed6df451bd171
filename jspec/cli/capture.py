# SPDX-License-Identifier: MIT
"""`jspec capture`: fills the store of hidden states, and says what it costs."""

import argparse
from typing import Any

from jspec.cli import options


def add(programs) -> None:
  """Declares the program."""
  parser = programs.add_parser(
    'capture',
    help="store the target's hidden states for training",
    description="Captures the target's hidden states on the documents of a"
    ' config into data.store, where training reads them; goes on where it was'
    ' stopped. Any config key can be changed by --config.KEY=VALUE.',
    allow_abbrev=False,
  )
  parser.add_argument('--config', required=True, metavar='FILE.py[:ARG]')
  options.add_json(parser)
  parser.set_defaults(run=run, overrides=[])


def run(args: argparse.Namespace) -> None:
  """Captures, then prints the cost of the store, and of doing without it."""
  options.writable(args.json)
  from jspec.train import main

  store, cost = main.capture(args.config, args.overrides)
  result = report(store, cost)
  for line in lines(result):
    print(line)
  options.write_json(args.json, options.with_provenance(result))


def report(store: Any, cost: Any) -> dict[str, Any]:
  """What a store holds and took.

  Args:
    store: `data.features.Store`, whole.
    cost: `train.capture.Cost` of what was captured now.

  Returns:
    Counts of the whole store and `bytes_per_token`; of what was captured now,
    `captured_tokens`, and `tokens_per_s` with `target_tokens_per_s`, those of
    the target's forward pass alone (None if nothing was).
  """
  rates = {'tokens_per_s': None, 'target_tokens_per_s': None}
  if cost.num_tokens:
    rates = {
      'tokens_per_s': cost.num_tokens / cost.seconds,
      'target_tokens_per_s': cost.num_tokens / cost.target_seconds,
    }
  return {
    'store': str(store.folder),
    'dtype': store.settings.dtype,
    'taps': list(store.settings.taps),
    'width': store.settings.width,
    'documents': len(store),
    'tokens': store.num_tokens,
    'bytes': store.num_bytes,
    'bytes_per_token': store.num_bytes / store.num_tokens,
    'captured_tokens': cost.num_tokens,
    **rates,
  }


def lines(result: dict[str, Any]) -> list[str]:
  """The same for people."""
  found = [
    f'store: {result["documents"]} documents, {result["tokens"]} tokens,'
    f' {result["bytes"] / 1e6:.1f} MB in {result["store"]}:'
    f' {result["bytes_per_token"]:.0f} bytes a token'
    f' ({len(result["taps"])} layers of {result["width"]}, {result["dtype"]})'
  ]
  if result['tokens_per_s'] is None:
    return [*found, 'nothing was missing, so nothing was captured now']
  return [
    *found,
    f'captured now: {result["captured_tokens"]} tokens,'
    f' {result["tokens_per_s"]:.0f} tokens/s, once',
    'online instead: 0 bytes, and in every step the forward pass of the target,'
    f' here {result["target_tokens_per_s"]:.0f} tokens/s',
  ]
