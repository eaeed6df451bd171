# SPDX-License-Identifier: MIT
"""What a row has seen: the part of logit options that grows with the output.

  prompt  a b a      prompt_seen     a b
  output  c b c      output_counts   b: 1, c: 2
                     recent          -1 -1 -1 -1 -1 c b c
                     num_output      3

Only committed tokens are in it; what a round drafts is added on the fly, node
by node (`adjust.py`), so nothing is ever taken back. The anchor is committed:
it is the last prompt token, or the last output token of the round before.

Every function writes one row or a few entries a row; inside jit, with the
history donated, that happens in place. A row whose request asks for nothing may
be left out of `admit` and `restore`; what it then holds is never read.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Int

NUM_RECENT = 8  # no bad word is longer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
  """Tokens of every row, by id and by age.

  Attributes:
    prompt_seen: tokens that the prompt holds.
    output_counts: how often each came up in the output.
    recent: the last output tokens, the newest last; -1 before the first.
    num_output: output tokens.
  """

  prompt_seen: Bool[Array, 'B V']
  output_counts: Int[Array, 'B V']
  recent: Int[Array, 'B recent']
  num_output: Int[Array, 'B']


def init(num_rows: int, vocab_size: int) -> History:
  """Rows that have seen nothing."""
  return History(
    prompt_seen=jnp.zeros((num_rows, vocab_size), bool),
    output_counts=jnp.zeros((num_rows, vocab_size), jnp.int32),
    recent=jnp.full((num_rows, NUM_RECENT), -1, jnp.int32),
    num_output=jnp.zeros((num_rows,), jnp.int32),
  )


def reset(history: History, row: Int[Array, '']) -> History:
  """Makes `row` forget, for the next request."""
  return History(
    prompt_seen=history.prompt_seen.at[row].set(False),
    output_counts=history.output_counts.at[row].set(0),
    recent=history.recent.at[row].set(-1),
    num_output=history.num_output.at[row].set(0),
  )


def admit(
  history: History,
  row: Int[Array, ''],
  tokens: Int[Array, 'T'],
  num_tokens: Int[Array, ''],
) -> History:
  """Adds `tokens[:num_tokens]` of the prompt to `row`.

  In any chunks, but all of the prompt: also its last token (the first anchor,
  which prefill leaves out) and those whose rows came from a prefix cache.
  """
  ids = _ids(history, tokens, num_tokens)
  return dataclasses.replace(
    history, prompt_seen=history.prompt_seen.at[row, ids].set(True, mode='drop')
  )


def restore(
  history: History,
  row: Int[Array, ''],
  tokens: Int[Array, 'T'],
  num_tokens: Int[Array, ''],
) -> History:
  """Adds `tokens[:num_tokens]` of the output to `row` alone, in any chunks.

  `reset`, the prompt through `admit` and the emitted tokens through `restore`
  give a preempted row the history it had. Its request is then prefilled with
  prompt and output; only `admit` sees the prompt, or emitted tokens would count
  as prompt.
  """
  ids = _ids(history, tokens, num_tokens)
  recent = _shift(history.recent[row][None], tokens[None], num_tokens[None])
  return dataclasses.replace(
    history,
    output_counts=history.output_counts.at[row, ids].add(1, mode='drop'),
    recent=history.recent.at[row].set(recent[0]),
    num_output=history.num_output.at[row].add(num_tokens),
  )


def commit(
  history: History, tokens: Int[Array, 'B T'], num_tokens: Int[Array, 'B']
) -> History:
  """Adds the `num_tokens[b]` first tokens that row b emitted in a round.

  They are what the round appends to the output: accepted drafts and bonus after
  the cut at a stop id, without the anchor, which the round before added.
  """
  rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
  ids = _ids(history, tokens, num_tokens[:, None])
  return dataclasses.replace(
    history,
    output_counts=history.output_counts.at[rows, ids].add(1, mode='drop'),
    recent=_shift(history.recent, tokens, num_tokens),
    num_output=history.num_output + num_tokens,
  )


def _ids(history, tokens, num_tokens):
  """The tokens that are real; the others fall outside the vocabulary.

  So does -1, a row without a law, which would else count for the last token.
  """
  step = jnp.arange(tokens.shape[-1], dtype=jnp.int32)
  is_real = (step < num_tokens) & (tokens >= 0)
  return jnp.where(is_real, tokens, history.output_counts.shape[1])


def _shift(recent, tokens, num_tokens):
  """The last tokens of `recent` and `tokens[:num_tokens]` together."""
  both = jnp.concatenate([recent, tokens.astype(recent.dtype)], axis=1)
  window = num_tokens[:, None] + jnp.arange(NUM_RECENT, dtype=jnp.int32)
  return jnp.take_along_axis(both, window, axis=1)
