# SPDX-License-Identifier: MIT
"""The same prompts decoded plainly and with drafters, side by side."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jspec import conversation, loading
from jspec.data import sources
from jspec.decode import generate, sampling


@dataclasses.dataclass(frozen=True)
class Row:
  """One drafter's line of the comparison."""

  drafter: str
  replies: list[conversation.Reply]
  totals: dict[str, float]


def measure(
  loaded: loading.LoadedTarget,
  drafter: str,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  *,
  num_rows: int,
  on_progress: Callable[[int, int], None] | None = None,
) -> Row:
  """Decodes all prompts with the drafter of that name."""
  decoder = generate.Decoder(
    loaded.model,
    loading.load_drafter(drafter, loaded),
    num_rows=num_rows,
    max_len=conversation.needed_len(loaded, prompts, params.max_tokens),
  )
  replies = conversation.answer(
    loaded,
    decoder,
    prompts,
    conversation.seeded(params, len(prompts)),
    on_progress=on_progress,
  )
  return Row(drafter, replies, conversation.summary(replies, decoder.timing))


def num_same(row: Row, plain: Row) -> int:
  """How many replies have the same tokens."""
  pairs = zip(row.replies, plain.replies, strict=True)
  return sum(ours.output.tokens == theirs.output.tokens for ours, theirs in pairs)


def is_same(row: Row, plain: Row) -> bool:
  """Whether all replies have the same tokens."""
  return num_same(row, plain) == len(plain.replies)


def table(rows: Sequence[Row]) -> str:
  """The comparison as text; the first row is the one compared with."""
  plain = rows[0]
  lines = [
    f'{"drafter":<24}{"tokens/s":>10}{"speedup":>9}'
    f'{"tokens/round":>14}{"same answers":>14}'
  ]
  for row in rows:
    speed = row.totals['tokens_per_s']
    same = f'{num_same(row, plain)}/{len(plain.replies)}'
    lines.append(
      f'{row.drafter[-23:]:<24}{speed:>10.1f}'
      f'{speed / plain.totals["tokens_per_s"]:>9.2f}'
      f'{row.totals["tokens_per_round"]:>14.2f}{same:>14}'
    )
  return '\n'.join(lines)


def report(rows: Sequence[Row]) -> dict[str, Any]:
  """The comparison as JSON values."""
  plain = rows[0]
  return {
    'drafters': [
      {
        'drafter': row.drafter,
        **row.totals,
        'num_same': num_same(row, plain),
        'replies': [dataclasses.asdict(reply) for reply in row.replies],
      }
      for row in rows
    ]
  }

