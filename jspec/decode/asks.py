# SPDX-License-Identifier: MIT
"""What requests ask beyond sampling: changed logits, and log-probabilities.

An engine that serves strangers carries this beside the state; offline decoding
does not. What no row asks for is skipped on the device.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import adjust as adjust_lib
from jspec.decode import history as history_lib
from jspec.decode import logprobs as logprobs_lib
from jspec.decode import options as options_lib
from jspec.decode.verify import accepted as accepted_lib
from jspec.decode.verify import nodes
from jspec.typing import Array, Bool, Float, Int

UNLIMITED = tree.MAX_NODES  # `Asks.max_drafts`: no draft has so many.
ANY_POLICY = -1  # `Asks.policy`: the row has no wish.
NUM_LOGPROBS = 20  # OpenAI's most; a request's own number is cut on the host.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Asks:
  """Row by row, what is asked and what it depends on.

  Attributes:
    options: how logits are changed.
    history: what each row has committed.
    wants_logprobs: rows whose log-probabilities are kept.
    max_drafts: drafts of a round that a row verifies at most.
    policy: which depth policy plans a row; `ANY_POLICY`: that of the launch.
    chosen, rank, ids, values: those of the emitted tokens, see
      `logprobs.Logprobs`.
  """

  options: options_lib.Options
  history: history_lib.History
  wants_logprobs: Bool[Array, 'B']
  max_drafts: Int[Array, 'B']
  policy: Int[Array, 'B']
  chosen: Float[Array, 'B S']
  rank: Int[Array, 'B S']
  ids: Int[Array, 'B S k']
  values: Float[Array, 'B S k']


def init(num_rows: int, vocab_size: int) -> Asks:
  """Rows that ask for nothing, with no place for log-probabilities."""
  asks = Asks(
    options=options_lib.stack([options_lib.LogitOptions()] * num_rows),
    history=history_lib.init(num_rows, vocab_size),
    wants_logprobs=jnp.zeros((num_rows,), bool),
    max_drafts=jnp.full((num_rows,), UNLIMITED, jnp.int32),
    policy=jnp.full((num_rows,), ANY_POLICY, jnp.int32),
    **_places(num_rows, 0),
  )
  # Donated, so every leaf is a buffer of its own.
  return jax.tree.map(jnp.copy, asks)


def with_places(asks: Asks, size: int) -> Asks:
  """Empty places for the log-probabilities of `size` tokens a row."""
  return dataclasses.replace(
    asks, **_places(asks.wants_logprobs.shape[0], size)
  )


def _places(num_rows, size):
  return dict(
    chosen=jnp.zeros((num_rows, size), jnp.float32),
    rank=jnp.zeros((num_rows, size), jnp.int32),
    ids=jnp.zeros((num_rows, size, NUM_LOGPROBS), jnp.int32),
    values=jnp.zeros((num_rows, size, NUM_LOGPROBS), jnp.float32),
  )


def capped(asks: Asks, draft: tree.Draft) -> tree.Draft:
  """Cuts drafts to what rows may verify.

  The cap is fixed before anything is drafted, so sampled drafts stay lossless.
  """
  return dataclasses.replace(
    draft, num_nodes=jnp.minimum(draft.num_nodes, 1 + asks.max_drafts)
  )


def adjust(
  asks: Asks,
  stop_ids: Int[Array, 'B X'],
  logits: Array,
  draft: tree.Draft,
  packing: packing_lib.Packing | None,
) -> Array:
  """Changes logits [B, T, V], or packed [Q, V], as the rows ask."""
  of_rows = (asks.options, asks.history, stop_ids)
  if packing is None:
    return adjust_lib.adjust(logits, draft.tokens, draft.parents, *of_rows)
  path = adjust_lib.path_tokens(draft.tokens, draft.parents)
  return adjust_lib.adjust_packed(
    logits, packing.to_tokens(path), packing.row_of(), *of_rows
  )


def path_logprobs(
  asks: Asks,
  logits: Array,
  accepted: accepted_lib.Accepted,
  packing: packing_lib.Packing | None,
) -> dict[str, Array]:
  """Log-probabilities of a round's tokens, [B, T]; zeros if nobody asks.

  Args:
    asks: who asks.
    logits: the target's own, [B, T, V] or packed [Q, V].
    accepted: the tokens and where they were decided.
    packing: of packed logits.
  """
  num_rows, num_nodes = accepted.path.shape

  def at(step):
    node = accepted.path[:, step]
    row = (
      nodes.take(logits, node)
      if packing is None
      else packing.take(logits, node)
    )
    found = logprobs_lib.of(row, accepted.tokens[:, step], NUM_LOGPROBS)
    return dataclasses.asdict(found)

  def every():
    found = lax.map(at, jnp.arange(num_nodes))
    return {name: jnp.swapaxes(x, 0, 1) for name, x in found.items()}

  return lax.cond(
    jnp.any(asks.wants_logprobs), every, lambda: _places(num_rows, num_nodes)
  )


def record(
  asks: Asks,
  tokens: Int[Array, 'B T'],
  num_tokens: Int[Array, 'B'],
  num_output: Int[Array, 'B'],
  found: dict[str, Array],
) -> Asks:
  """Takes in the tokens of a round and their log-probabilities.

  Args:
    asks: before the round.
    tokens: emitted, the first `num_tokens` of each row.
    num_tokens: how many.
    num_output: places taken before.
    found: of `path_logprobs`.
  """
  rows = jnp.arange(tokens.shape[0])[:, None]
  step = jnp.arange(tokens.shape[1])
  # Past the end on purpose where there is nothing to write.
  place = jnp.where(
    step < num_tokens[:, None], num_output[:, None] + step, asks.rank.shape[1]
  )

  def written():
    return {
      name: getattr(asks, name).at[rows, place].set(x, mode='drop')
      for name, x in found.items()
    }

  def kept():
    return {name: getattr(asks, name) for name in found}

  return dataclasses.replace(
    asks,
    history=history_lib.commit(asks.history, tokens, num_tokens),
    **lax.cond(jnp.any(asks.wants_logprobs), written, kept),
  )
