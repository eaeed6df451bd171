# SPDX-License-Identifier: MIT
"""A row gets a request and reads its prompt, on the device."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from jspec.decode import asks as asks_lib
from jspec.decode import history as history_lib
from jspec.decode import logprobs as logprobs_lib
from jspec.decode import options as options_lib
from jspec.decode import prefill as prefill_lib
from jspec.decode import recall as recall_lib
from jspec.decode import round as round_lib
from jspec.decode import sampling
from jspec.drafters import mixed
from jspec.serve import packed
from jspec.typing import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Start:
  """What a row starts from.

  Attributes:
    row: which row.
    tokens: the prompt and what was emitted before a preemption, padded.
    num_prompt: tokens of the prompt.
    num_tokens: tokens in all; the last of them is the anchor.
    num_cached: tokens whose rows lie in the pages already.
    page_ids: pages of the row, in order of position, -1 behind.
    sampling: of the request.
    stop_ids: tokens that end the row, padded with -1.
    options: how the request wants logits changed.
    wants_logprobs: whether log-probabilities of its answer are kept.
    max_drafts: drafts of a round that it verifies at most.
    policy: which depth policy plans it, as in `decode.asks.Asks`.
    drafter: which member of a mixture drafts (`mixed.State.choice`); without
      one it says nothing.
  """

  row: Int[Array, '']
  tokens: Int[Array, 'S']
  num_prompt: Int[Array, '']
  num_tokens: Int[Array, '']
  num_cached: Int[Array, '']
  page_ids: Int[Array, 'M']
  sampling: sampling.Sampling
  stop_ids: Int[Array, 'X']
  options: options_lib.Options
  wants_logprobs: Bool[Array, '']
  max_drafts: Int[Array, '']
  policy: Int[Array, '']
  drafter: Int[Array, '']


def layout(max_len: int, capacity: int, num_stop_ids: int) -> packed.Layout:
  """How the fields of a `Start` travel, as a tree of dicts."""
  whole = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  return packed.layout(
    dict(
      row=whole(()),
      tokens=whole((max_len,)),
      num_prompt=whole(()),
      num_tokens=whole(()),
      num_cached=whole(()),
      page_ids=whole((capacity,)),
      sampling=sampling.columns([sampling.SamplingParams()]),
      stop_ids=whole((num_stop_ids,)),
      options=options_lib.columns([options_lib.LogitOptions()]),
      wants_logprobs=jax.ShapeDtypeStruct((), jnp.bool_),
      max_drafts=whole(()),
      policy=whole(()),
      drafter=whole(()),
    )
  )


def admit_packed(
  drafter,
  state: round_lib.State,
  whole: Int[Array, 'I'],
  real: Float[Array, 'F'],
  *,
  of: packed.Layout,
) -> round_lib.State:
  """`admit`, from what `Layout.pack` made of a start."""
  fields = of.unpack(whole, real)
  fields['sampling'] = sampling.Sampling(**fields['sampling'])
  fields['options'] = options_lib.Options(**fields['options'])
  return admit(drafter, state, Start(**fields))


def admit(drafter, state: round_lib.State, start: Start) -> round_lib.State:
  """Gives a row to a request; it is decoded once it is started."""
  row = start.row
  state = prefill_lib.admit(
    drafter,
    state,
    row,
    start.tokens[start.num_tokens - 1],
    start.num_cached,
    start.sampling,
    start.stop_ids,
    start.page_ids,
  )
  if isinstance(drafter, mixed.Mixed):
    chosen = mixed.choose(state.drafter, row, start.drafter)
    state = dataclasses.replace(state, drafter=chosen)
  state = recall_lib.recall(drafter, state, row, start.tokens, start.num_cached)
  asks = state.asks
  history = history_lib.reset(asks.history, row)
  history = history_lib.admit(history, row, start.tokens, start.num_prompt)
  # Emitted tokens are prefilled like a prompt, but count as output.
  history = history_lib.restore(
    history,
    row,
    jnp.roll(start.tokens, -start.num_prompt),
    start.num_tokens - start.num_prompt,
  )
  asks = dataclasses.replace(
    asks,
    history=history,
    options=jax.tree.map(
      lambda leaf, one: leaf.at[row].set(one[0]), asks.options, start.options
    ),
    wants_logprobs=asks.wants_logprobs.at[row].set(start.wants_logprobs),
    max_drafts=asks.max_drafts.at[row].set(start.max_drafts),
    policy=asks.policy.at[row].set(start.policy),
  )
  scores = state.scores.at[row].set(jnp.nan)  # It drafted nothing so far.
  return dataclasses.replace(state, asks=asks, scores=scores)


def prefill(
  target,
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  tokens: Int[Array, 'T'],
  num_tokens: Int[Array, ''],
  next_token: Int[Array, ''],
  wants_logprobs: Bool[Array, ''],
) -> tuple[round_lib.State, dict[str, Array]]:
  """Reads a chunk of a prompt.

  Returns:
    The state, and the log-probabilities of the token behind each of the chunk
    by the names of `logprobs.Logprobs`; zeros if they are not wanted.
  """
  state, hidden = prefill_lib.prefill_hidden(
    target, drafter, state, row, tokens, num_tokens, next_token
  )
  size = tokens.shape[0]
  is_last = jnp.arange(size) == num_tokens - 1
  following = jnp.where(is_last, next_token, jnp.roll(tokens, -1))
  k = asks_lib.NUM_LOGPROBS
  found = lax.cond(
    wants_logprobs,
    lambda: dataclasses.asdict(
      logprobs_lib.of(target.logits(hidden), following, k)
    ),
    lambda: dict(
      chosen=jnp.zeros((size,), jnp.float32),
      rank=jnp.zeros((size,), jnp.int32),
      ids=jnp.zeros((size, k), jnp.int32),
      values=jnp.zeros((size, k), jnp.float32),
    ),
  )
  return state, found
