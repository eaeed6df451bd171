# SPDX-License-Identifier: MIT
"""Compares the tokens of decoding with a drafter with those of plain decoding.

Rule R1 promises the same tokens at any temperature, up to rounding: one node
and eight nodes reduce in another order. So the first difference of an answer is
rescored (`rescore`) and judged (`ties`): a tie is listed apart, anything else
is a failure. All turns are compared behind the conversation that plain decoding
had, so an earlier tie cannot make a later turn differ.

  identical + ties + failures = total
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jspec import conversation, errors, loading
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import rescore, settings, table_text, ties


def run(
  loaded: loading.LoadedTarget,
  drafter: Any,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  *,
  num_rows: int = 8,
  drafter_name: str | None = None,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Decodes the prompts both ways and compares token by token.

  Args:
    loaded: the target, in float32.
    drafter: the drafter; not None.
    prompts: whose turns are answered.
    params: for all prompts; each gets its own seed (`conversation.seeded`).
    num_rows: answers decoded at the same time with the drafter. Plain decoding
      uses the same number.
    drafter_name: for the report; None takes the class name.
    on_progress: called with (answers done, answers in all), both runs together.

  Returns:
    JSON values; `table` shows them.

  Raises:
    errors.UserError: no drafter, no prompts, a target that is not float32 or
      has a cache that is not, or a prompt that does not fit the context.
  """
  if drafter is None:
    raise errors.UserError(
      'lossless compares a drafter with plain decoding: name a drafter other'
      ' than none'
    )
  dtype = loaded.model.embed(jnp.zeros((1,), jnp.int32)).dtype
  if dtype != jnp.float32:
    raise errors.UserError(
      f'target {loaded.name} computes in {dtype}, where tokens may differ by'
      ' rounding: compare in float32'
    )
  if loaded.model.cache_form is not None:
    # At the edge between two steps a number tips by the order of sums; that
    # moves what later layers compute by more, so more of it tips.
    raise errors.UserError(
      f'target {loaded.name} keeps its cache in {loaded.model.cache_form},'
      ' where tokens may differ by rounding: compare without cache='
    )
  described = settings.describe(loaded, prompts, params, num_rows)
  max_len = conversation.needed_len(loaded, prompts, params.max_tokens)
  requests = conversation.seeded(params, len(prompts))
  progress = _Progress(on_progress, 2 * described['num_turns'])
  # Elsewhere than on a CPU, float32 matmuls are not float32 by default.
  with jax.default_matmul_precision('highest'):
    decoder = generate.Decoder(
      loaded.model, None, num_rows=num_rows, max_len=max_len
    )
    replies = conversation.answer(
      loaded, decoder, prompts, requests, on_progress=progress.first
    )
    del decoder  # and its cache, before there is another one
    decoder = generate.Decoder(
      loaded.model, drafter, num_rows=num_rows, max_len=max_len
    )
    outputs = decoder.generate(
      [reply.prompt_tokens for reply in replies],
      settings.by_reply(requests, prompts),
      on_progress=progress.second,
    )
    del decoder
    again = rescore.Rescore(
      loaded.model,
      num_nodes=drafter.num_draft_tokens + 1,
      max_len=max_len,
    )
    found = compare(
      replies, outputs, settings.by_reply(requests, prompts), again
    )
  return {
    'eval': 'lossless',
    'settings': described,
    'drafter': drafter_name or settings.name_of(drafter),
    'num_draft_tokens': drafter.num_draft_tokens,
    'epsilon': ties.EPSILON,
    'identical': len(replies) - len(found),
    'ties': sum(difference['is_tie'] for difference in found),
    'failures': sum(not difference['is_tie'] for difference in found),
    'total': len(replies),
    'num_tokens': sum(len(reply.output.tokens) for reply in replies),
    'differences': found,
  }


def compare(
  replies: Sequence[conversation.Reply],
  outputs: Sequence[generate.Output],
  requests: Sequence[sampling.SamplingParams],
  logits_behind: Callable[[list[int]], Any],
) -> list[dict[str, Any]]:
  """The first difference of every answer that has one.

  Args:
    replies: plain decoding.
    outputs: decoding with the drafter, of the same prompts.
    requests: how each samples.
    logits_behind: gives logits [2, V] behind a prefix; see `rescore`.
  """
  found = []
  for reply, output, request in zip(replies, outputs, requests, strict=True):
    plain, drafted = reply.output, output
    at = first_difference(plain.tokens, drafted.tokens)
    if at is None and plain.finish_reason == drafted.finish_reason:
      continue
    at = len(plain.tokens) if at is None else at
    position = len(reply.prompt_tokens) + at
    verdict = None
    # Where one answer goes on behind the end of the other, or ends for another
    # reason, no rounding is to blame.
    if at < min(len(plain.tokens), len(drafted.tokens)):
      verdict = ties.judge(
        logits_behind([*reply.prompt_tokens, *plain.tokens[:at]]),
        request,
        position,
        (plain.tokens[at], drafted.tokens[at]),
      )
    found.append(
      {
        'id': reply.id,
        'turn': reply.turn,
        'position': position,
        'answer_position': at,
        'plain': _token(plain, at),
        'drafted': _token(drafted, at),
        **(dataclasses.asdict(verdict) if verdict else _NOT_JUDGED),
      }
    )
  return found


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
  """The first index at which the lists differ; None where they are equal."""
  for i, (x, y) in enumerate(zip(a, b, strict=False)):
    if x != y:
      return i
  return None if len(a) == len(b) else min(len(a), len(b))


def table(result: dict[str, Any]) -> str:
  """The result as text."""
  lines = [
    f'target {result["settings"]["target"]}, drafter {result["drafter"]},'
    f' {result["settings"]["num_rows"]} rows, temperature'
    f' {result["settings"]["temperature"]:g}',
    f'{result["total"]} answers, {result["num_tokens"]} tokens:'
    f' {result["identical"]} identical, {result["ties"]} ties,'
    f' {result["failures"]} failures',
  ]
  if result['differences']:
    rows = [
      [
        f'{d["id"]}, turn {d["turn"] + 1}',
        d['position'],
        'n/a' if d['plain'] is None else d['plain'],
        'n/a' if d['drafted'] is None else d['drafted'],
        'n/a' if d['gap'] is None else f'{d["gap"]:.2e} {d["unit"]}',
        'tie' if d['is_tie'] else 'FAILURE',
      ]
      for d in result['differences']
    ]
    header = ['answer', 'position', 'plain', 'drafted', 'gap', '']
    lines += ['', table_text.aligned(header, rows), '']
    lines.append(f'A gap of at most {result["epsilon"]:g} is a tie.')
  return '\n'.join(lines)


_NOT_JUDGED = {
  'is_tie': False,
  'gap': None,
  'unit': None,
  'top2_gaps': None,
  'scoring_gap': None,
}


def _token(output, at):
  return output.tokens[at] if at < len(output.tokens) else None


class _Progress:
  """Counts two runs as one; a part that is None is not reported."""

  def __init__(self, report, total):
    self._total = total
    self.first = report and (lambda done, _: report(done, total))
    self.second = report and (lambda done, _: report(total // 2 + done, total))
