# SPDX-License-Identifier: MIT
"""How many drafts a target accepts, and what that is worth in time.

  tokens_per_round        emitted tokens / rounds; the bonus counts
  num_accepted            accepted drafts / rounds; the bonus does not count
  accepted_if_drafted[j]  rounds that accepted draft j / rounds that drafted it
  accepted_per_round[j]   rounds that accepted draft j / all rounds (joint: a
                          draft is only accepted behind accepted ones)

Draft 0 is the first one. Only emitted tokens count: what a stop id or the
budget cut off was never accepted. With K drafts a perfect drafter has rates of
1 and K + 1 tokens a round; a useless one has rates of 0 and 1 token a round.
A rate over nothing is None in JSON and n/a in the table, never 1 or 0.

Acceptance is not speed, so the same prompts are also decoded plainly in the
same process. An answer that repeats itself (`repetition`) is easy to draft and
says nothing about the drafter: it is named and left out of all these numbers.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jspec import conversation, loading
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import prompts as prompts_lib
from jspec.evals import repetition, settings, table_text

Progress = Callable[[int, int], None] | None

_WARM_UP_TOKENS = 4


def run(
  loaded: loading.LoadedTarget,
  drafter: Any,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  *,
  num_rows: int = 8,
  drafter_name: str | None = None,
  against_plain: bool = True,
  rule: str = 'walk',
  on_progress: Progress = None,
) -> dict[str, Any]:
  """Decodes the prompts with the drafter, and plainly for the speed.

  Args:
    loaded: the target.
    drafter: the drafter; None measures plain decoding.
    prompts: whose turns are answered; those with a `domain` are also summed up
      by it.
    params: for all prompts; each gets its own seed (`conversation.seeded`).
    num_rows: answers decoded at the same time.
    drafter_name: for the report; None takes the class name.
    against_plain: also decode plainly, for the ratio of speeds.
    rule: how drafts are verified, see `decode.verify.api`.
    on_progress: called with (answers done, answers in all), in each run.

  Returns:
    JSON values; `table` shows them.

  Raises:
    errors.UserError: no prompts, or a prompt that does not fit the context.
  """
  depth = getattr(drafter, 'num_draft_tokens', 0)
  result = {
    'eval': 'acceptance',
    'settings': settings.describe(loaded, prompts, params, num_rows),
    'drafter': drafter_name or settings.name_of(drafter),
    'num_draft_tokens': depth,
    'rule': rule,
  }
  max_len = conversation.needed_len(loaded, prompts, params.max_tokens)
  requests = conversation.seeded(params, len(prompts))
  decoder = generate.Decoder(
    loaded.model, drafter, num_rows=num_rows, max_len=max_len, rule=rule
  )
  _warm_up(decoder)
  before = decoder.timing.decode_s
  replies = conversation.answer(
    loaded, decoder, prompts, requests, on_progress=on_progress
  )
  seconds = decoder.timing.decode_s - before
  is_clean = [not repetition.repeats(reply.output.tokens) for reply in replies]
  clean = list(itertools.compress(replies, is_clean))
  of_reply = settings.by_reply(requests, prompts)
  clean_requests = list(itertools.compress(of_reply, is_clean))
  # Waiting for the turns of a conversation left rows idle. Plain decoding below
  # has all prompts at once, and so must this have, to be compared.
  has_turns = any(len(prompt.turns) > 1 for prompt in prompts)
  if has_turns or len(clean) < len(replies):
    seconds, _ = _again(decoder, clean, clean_requests, on_progress)
  plain_seconds, num_same = None, None
  if drafter is not None and against_plain:
    del decoder  # and its cache, before there is another one
    decoder = generate.Decoder(
      loaded.model, None, num_rows=num_rows, max_len=max_len
    )
    _warm_up(decoder)
    plain_seconds, num_same = _again(
      decoder, clean, clean_requests, on_progress
    )
  return {
    **result,
    'overall': summarise(clean, depth),
    'domains': _by_domain(replies, is_clean, prompts, depth),
    'repeating': [
      [reply.id, reply.turn]
      for reply, keep in zip(replies, is_clean, strict=True)
      if not keep
    ],
    'overall_with_repeating': summarise(replies, depth),
    'speed': _speed(clean, seconds),
    'plain_speed': _speed(clean, plain_seconds),
    'speedup': _ratio(plain_seconds, seconds if clean else None),
    'num_same_as_plain': num_same,
  }


def summarise(
  replies: Sequence[conversation.Reply], depth: int
) -> dict[str, Any]:
  """`summarise_outputs` of the replies."""
  return summarise_outputs([reply.output for reply in replies], depth)


def summarise_outputs(
  outputs: Sequence[generate.Output], depth: int
) -> dict[str, Any]:
  """The numbers of the module docstring, over all rounds of the answers.

  Args:
    outputs: answers with their counts.
    depth: draft tokens in a round, at most.
  """
  num_rounds = sum(output.num_rounds for output in outputs)
  num_tokens = sum(len(output.tokens) for output in outputs)
  drafted = _by_depth([output.num_drafted for output in outputs], depth)
  accepted = _by_depth([output.num_accepted for output in outputs], depth)
  return {
    'num_replies': len(outputs),
    'num_tokens': num_tokens,
    'num_rounds': num_rounds,
    'tokens_per_round': _ratio(num_tokens, num_rounds),
    # None where nothing was drafted: there was nothing to accept.
    'num_accepted': _ratio(sum(accepted), num_rounds) if any(drafted) else None,
    'drafted_at': drafted,
    'accepted_at': accepted,
    'accepted_if_drafted': [
      _ratio(a, d) for a, d in zip(accepted, drafted, strict=True)
    ],
    'accepted_per_round': [
      _ratio(a, num_rounds) if d else None
      for a, d in zip(accepted, drafted, strict=True)
    ],
  }


def table(result: dict[str, Any]) -> str:
  """The result as text."""
  shown = table_text.number
  # A tree has more draft tokens than depths.
  drafted = result['overall']['drafted_at']
  deepest = max((j for j, count in enumerate(drafted, 1) if count), default=0)
  depths = range(1, deepest + 1)
  parts = {**result['domains'], 'overall': result['overall']}
  lines = [
    f'target {result["settings"]["target"]}, drafter {result["drafter"]},'
    f' {result["settings"]["num_rows"]} rows, temperature'
    f' {result["settings"]["temperature"]:g}',
    f'prompts through chat template {result["settings"]["template"] or "none"},'
    ' without variables',
    '',
    table_text.aligned(
      ['', 'answers', 'tokens', 'tokens/round', 'accepted/round'],
      [
        [
          name,
          part['num_replies'],
          part['num_tokens'],
          shown(part['tokens_per_round']),
          shown(part['num_accepted']),
        ]
        for name, part in parts.items()
      ],
    ),
  ]
  if depths:
    rates = [
      [f'{name}, {label}', *(shown(rate, 3) for rate in part[key][:deepest])]
      for name, part in parts.items()
      for label, key in (
        ('if drafted', 'accepted_if_drafted'),
        ('of all rounds', 'accepted_per_round'),
      )
    ]
    lines += ['', table_text.aligned(['accepted, draft', *depths], rates)]
  speeds = [('with drafter', 'speed'), ('plain', 'plain_speed')]
  lines += [
    '',
    table_text.aligned(
      ['', 'tokens/s', 'ms/token', 'ratio'],
      [
        [
          name,
          shown(result[key]['tokens_per_s'], 1),
          shown(result[key]['ms_per_token'], 1),
          shown(result['speedup'] if key == 'speed' else None),
        ]
        for name, key in speeds
      ],
    ),
    '',
    'tokens/round counts the bonus, accepted/round does not.',
  ]
  if result['num_same_as_plain'] is not None:
    lines.append(
      f'{result["num_same_as_plain"]} of {result["overall"]["num_replies"]}'
      ' answers have the tokens of plain decoding (`lossless` tells ties).'
    )
  if result['repeating']:
    everything = result['overall_with_repeating']
    lines.append(
      f'{len(result["repeating"])} of {everything["num_replies"]} answers'
      ' repeat themselves and are left out; with them'
      f' {shown(everything["tokens_per_round"])} tokens/round.'
    )
  return '\n'.join(lines)


def _warm_up(decoder):
  """Touches weights and programs once, so that no run pays for it."""
  params = sampling.SamplingParams(max_tokens=_WARM_UP_TOKENS)
  decoder.generate([[0, 0]], params)


def _by_domain(replies, is_clean, prompts, depth):
  names = [prompts_lib.domain_of(prompt) for prompt in prompts]
  parts = {name: [] for name in sorted(set(names)) if name}
  of_reply = settings.by_reply(names, prompts)
  for reply, keep, name in zip(replies, is_clean, of_reply, strict=True):
    if keep and name:
      parts[name].append(reply)
  return {name: summarise(part, depth) for name, part in parts.items()}


def _again(decoder, replies, requests, on_progress):
  """Decodes the prompts of replies; seconds, and how many came out equal."""
  total = len(replies)
  before = decoder.timing.decode_s
  outputs = decoder.generate(
    [reply.prompt_tokens for reply in replies],
    requests,
    on_progress=on_progress and (lambda done, _: on_progress(done, total)),
  )
  num_same = sum(
    output.tokens == reply.output.tokens
    for output, reply in zip(outputs, replies, strict=True)
  )
  return decoder.timing.decode_s - before, num_same


def _speed(replies, seconds):
  num_tokens = sum(len(reply.output.tokens) for reply in replies)
  known = seconds if num_tokens else None
  return {
    'seconds': known,
    'tokens_per_s': _ratio(num_tokens, known),
    'ms_per_token': _ratio(known and 1000 * known, num_tokens),
  }


def _by_depth(counts, depth):
  return [sum(count[j] for count in counts) for j in range(depth)]


def _ratio(part, whole):
  """A quotient; None where a side is not known or there is nothing."""
  return part / whole if part is not None and whole else None
