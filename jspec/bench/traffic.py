# SPDX-License-Identifier: MIT
"""A recorded trace, made to fit a smaller machine than it was recorded on.

The shape of the load is kept, its size is not:

  lengths    one factor for prompts and answers, so that nine answers of ten are
             no longer than `max_tokens` (never above 1); then both are cut to
             what there is room for
  arrivals   divided by a speed-up; or chosen so that answers come at a given
             rate, such as a share of what plain decoding yields. Reading
             prompts comes on top: a share of 1 is more than there is
  prompts    the texts of a prompt file, one after another: each request ends
             with the next one, so that there is something to answer, and begins
             with as much of those before it as its length wants

No text of a trace was published; prefix sharing (hash_ids) is not replayed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jspec import errors
from jspec.sim import traces

_QUANTILE = 0.9


class Traffic(NamedTuple):
  """N requests for one engine.

  Attributes:
    arrival_s: [N], ascending, from 0.
    prompts: token ids.
    max_tokens: of the answers, [N].
    scale: factor of the lengths.
    num_cut: requests whose prompt or answer was cut behind it.
    speed_up: of the arrivals.
  """

  arrival_s: np.ndarray
  prompts: list[tuple[int, ...]]
  max_tokens: np.ndarray
  scale: float
  num_cut: int
  speed_up: float


def make(
  recorded: traces.Requests,
  texts: Sequence[Sequence[int]],
  *,
  max_len: int,
  max_tokens: int,
  speed_up: float | None = None,
  tokens_per_s: float | None = None,
) -> Traffic:
  """Fits a trace to an engine.

  Args:
    recorded: the trace.
    texts: token ids of prompts.
    max_len: most tokens of prompt and answer together.
    max_tokens: most tokens of an answer.
    speed_up: arrivals are so many times as fast.
    tokens_per_s: instead: answers together come at this rate.

  Raises:
    UserError: nothing fits; or requests that all come at once have no rate.
  """
  room = max_len - max_tokens
  if room < 1:
    raise errors.UserError(
      f'--max-tokens {max_tokens} leaves no room for a prompt in --max-len'
      f' {max_len}: lower the one or raise the other'
    )
  usual = float(np.quantile(recorded.output_len, _QUANTILE))
  scale = min(1.0, max_tokens / usual)
  wanted = [
    np.maximum(np.rint(length * scale).astype(int), 1)
    for length in (recorded.prompt_len, recorded.output_len)
  ]
  prompt_len = np.minimum(wanted[0], room)
  answer_len = np.minimum(wanted[1], max_tokens)
  is_cut = (prompt_len < wanted[0]) | (answer_len < wanted[1])
  if speed_up is None:
    seconds = float(recorded.arrival_s[-1])
    if not seconds:
      raise errors.UserError(
        f'trace: its {len(answer_len)} requests all arrive at once, so no'
        ' --load can be had: raise --requests, or give --speed-up 1'
      )
    speed_up = tokens_per_s * seconds / float(answer_len.sum())
  return Traffic(
    arrival_s=recorded.arrival_s / speed_up,
    prompts=[_prompt(texts, i, n) for i, n in enumerate(prompt_len.tolist())],
    max_tokens=answer_len,
    scale=scale,
    num_cut=int(is_cut.sum()),
    speed_up=speed_up,
  )


def _prompt(texts, index, length):
  """The last `length` tokens of text `index` and of those before it."""
  tokens = ()
  while len(tokens) < length:
    tokens = (*texts[index % len(texts)], *tokens)
    index -= 1
  return tuple(tokens[len(tokens) - length :])


def about(traffic: Traffic) -> dict[str, Any]:
  """What was made of the trace, for JSON."""
  prompt_len = [len(prompt) for prompt in traffic.prompts]
  return {
    'num_requests': len(prompt_len),
    'speed_up': traffic.speed_up,
    'length_scale': traffic.scale,
    'num_cut': traffic.num_cut,
    'seconds': float(traffic.arrival_s[-1]),
    'mean_prompt_tokens': float(np.mean(prompt_len)),
    'mean_answer_tokens': float(np.mean(traffic.max_tokens)),
  }
