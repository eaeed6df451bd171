# SPDX-License-Identifier: MIT
"""The same prompts decoded plainly and with drafters, side by side."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jspec import conversation, loading
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import acceptance, lossless, rescore, settings, table_text


@dataclasses.dataclass(frozen=True)
class Row:
  """One drafter's line of the comparison.

  Attributes:
    label: what the table calls it.
    tokens_per_s: emitted tokens by seconds of decoding; prefill and compiling
      are left out.
    counts: as `evals.acceptance.summarise` gives them.
    identical, ties, failures: answers against plain decoding.
  """

  label: str
  tokens_per_s: float
  counts: dict[str, Any]
  identical: int
  ties: int
  failures: int


@dataclasses.dataclass
class Comparison:
  """Plain decoding, done once, that drafters are compared with."""

  loaded: loading.LoadedTarget
  prompts: Sequence[sources.Prompt]
  params: sampling.SamplingParams
  num_rows: int

  def __post_init__(self):
    self._requests = conversation.seeded(self.params, len(self.prompts))
    self._by_reply = settings.by_reply(self._requests, self.prompts)
    self._max_len = conversation.needed_len(
      self.loaded, self.prompts, self.params.max_tokens
    )
    self.replies: list[conversation.Reply] = []

  def plain(self, on_progress: Callable[[int, int], None]) -> Row:
    """Decodes plainly; must come first."""
    decoder = self._decoder(None)
    self.replies = conversation.answer(
      self.loaded,
      decoder,
      self.prompts,
      self._requests,
      on_progress=on_progress,
    )
    outputs = [reply.output for reply in self.replies]
    return self._row('plain', outputs, decoder, 0, [])

  def drafted(
    self, label: str, drafter: Any, on_progress: Callable[[int, int], None]
  ) -> Row:
    """Decodes the same prompts with a drafter and compares the tokens."""
    decoder = self._decoder(drafter)
    total = len(self.replies)
    outputs = decoder.generate(
      [reply.prompt_tokens for reply in self.replies],
      self._by_reply,
      on_progress=lambda done, _: on_progress(done, total),
    )
    depth = drafter.num_draft_tokens
    again = rescore.Rescore(
      self.loaded.model, num_nodes=depth + 1, max_len=self._max_len
    )
    found = lossless.compare(self.replies, outputs, self._by_reply, again)
    return self._row(label, outputs, decoder, depth, found)

  def _decoder(self, drafter):
    return generate.Decoder(
      self.loaded.model,
      drafter,
      num_rows=self.num_rows,
      max_len=self._max_len,
    )

  def _row(self, label, outputs, decoder, depth, found):
    num_tokens = sum(len(output.tokens) for output in outputs)
    num_ties = sum(difference['is_tie'] for difference in found)
    return Row(
      label=label,
      tokens_per_s=num_tokens / decoder.timing.decode_s,
      counts=acceptance.summarise_outputs(outputs, depth),
      identical=len(outputs) - len(found),
      ties=num_ties,
      failures=len(found) - num_ties,
    )


def table(rows: Sequence[Row]) -> str:
  """The comparison as text; the first row is the one compared with."""
  plain = rows[0]
  shown = table_text.number
  depth = max(len(row.counts['accepted_per_round']) for row in rows)

  def rates(row):
    values = row.counts['accepted_per_round']
    return [*(shown(v) for v in values), *([''] * (depth - len(values)))]

  return table_text.aligned(
    ['', 'tokens/s', 'speed-up', 'tokens/round', 'identical']
    + [f'draft {i + 1}' for i in range(depth)],
    [
      [
        row.label,
        shown(row.tokens_per_s, 1),
        shown(row.tokens_per_s / plain.tokens_per_s),
        shown(row.counts['tokens_per_round']),
        f'{row.identical}/{row.counts["num_replies"]}'
        + (f' + {row.ties} ties' if row.ties else '')
        + (f' + {row.failures} FAILED' if row.failures else ''),
        *rates(row),
      ]
      for row in rows
    ],
  )
