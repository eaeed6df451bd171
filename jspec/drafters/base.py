# SPDX-License-Identifier: MIT
"""The `Drafter` interface and the batch it trains on.

A drafter proposes; it never decides. Its state is a value that only `commit`
changes, with prefill chunks and rounds alike, so after any schedule of chunks,
rejections and rounds without drafts it equals one fresh prefill of the accepted
text. Whatever else it computes while proposing is scratch.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.typing import Array, Bool, Float, Int, Key, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Committed:
  """Rows that were just accepted, in order of position.

  Row b's first `num_rows[b]` entries are real. The token after the last of them
  (`next_token`: the next prompt token at a chunk edge, the bonus in a round) is
  known but has no row and no taps yet.

  Attributes:
    tokens: the tokens of the rows (a prompt chunk, or anchor + accepted).
    taps: the target's captured states of the rows.
    num_rows: how many rows of each batch row are real.
    next_token: the token that follows the last real row.
  """

  tokens: Int[Array, 'B T']
  taps: Float[Array, 'B T C D']
  num_rows: Int[Array, 'B']
  next_token: Int[Array, 'B']

  def following(self) -> Int[Array, 'B T']:
    """The token behind each real row's."""
    is_last = jnp.arange(self.tokens.shape[1]) == self.num_rows[:, None] - 1
    shifted = jnp.roll(self.tokens, -1, axis=1)
    return jnp.where(is_last, self.next_token[:, None], shifted)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LastHidden:
  """What the target's LM head sees, or will see after the final norm.

  Attributes:
    hidden: output of the last layer, for every token.
    is_normed: whether the final norm has been applied. Captures differ in it,
      and a teacher made of the wrong one trains without a word.
  """

  hidden: Float[Array, 'B S D']
  is_normed: bool = dataclasses.field(metadata={'static': True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Judged:
  """What a drafter proposed in training, and what the target makes of it.

  Attributes:
    index: token index of each anchor; 0 where there is none.
    keep: whether the anchor is real.
    tokens: proposed behind it.
    hidden: the target's normed states of the anchor and of the proposals.
  """

  index: Int[Array, 'B A']
  keep: Bool[Array, 'B A']
  tokens: Int[Array, 'B A G']
  hidden: Float[Array, 'B A G+1 D']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DraftBatch:
  """Packed sequences with the target's states.

  Attributes:
    tokens: packed documents.
    positions: position of each token in its own document.
    segments: document number of each token, from 1; 0 is padding.
    is_answer: tokens the target wrote (the only ones that are labels).
    taps: the target's captured states.
    last: its last states, for drafters that set `needs_last`.
    judged: the drafter's own proposals, for those that set `needs_judge`.
  """

  tokens: Int[Array, 'B S']
  positions: Int[Array, 'B S']
  segments: Int[Array, 'B S']
  is_answer: Bool[Array, 'B S']
  taps: Float[Array, 'B S C D']
  last: LastHidden | None = None
  judged: Judged | None = None


# What the confidence of a sampled draft may depend on beside the prefix, from
# the least: nothing, the tokens drafted before it on its path, its own as well.
DEPENDS = ('prefix', 'before', 'token')


@runtime_checkable
class Drafter(Protocol):
  """A method of drafting, bound to the target whose weights it borrows.

  `taps` are the 0-based target layers it wants captured; `num_draft_tokens`
  the most draft tokens a proposal holds (num_nodes is one more). A drafter with
  an attribute `confidence_depends` says what its confidence looks at where
  drafts are sampled (`confidence_depends` below).
  """

  taps: tuple[int, ...]
  num_draft_tokens: int

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> PyTree:
    """The state of empty rows, sharing the target's page ids."""

  def propose(
    self,
    state: PyTree,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts behind the anchor, which sits at position `table.lengths`.

    With `temperature` None the draft is a function of the committed prefix and
    `q` is None. Else tokens are sampled at that temperature (0: argmax) with
    the row's key, and `q` is the exact law they were drawn from.
    """

  def commit(
    self, state: PyTree, table: paged.PageTable, rows: Committed
  ) -> PyTree:
    """Takes in rows at `table.lengths` onwards; `table` is from before."""


@runtime_checkable
class TrainableDrafter(Drafter, Protocol):
  """A drafter with parameters; it owns its targets, masks and loss.

  `needs_last` says that the loss reads `DraftBatch.last` (a teacher's law). A
  drafter with an attribute `needs_judge` that is true has a method `rollout`,
  and its loss reads `DraftBatch.judged` (on-policy distillation).
  """

  needs_last: bool

  def calibrate(self, batch: DraftBatch) -> None:
    """Fits what is not trained (input scales) to a first batch, once.

    Called on fresh weights and again before a restore, with the same batch.
    """

  def loss(
    self, batch: DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Float[Array, '...']]]:
    """Training loss of the batch and metrics, as (sum, count) free scalars.

    Every draw (anchors, corruption) comes from `key`. A loss that is a sum of
    means tells them (`jspec.drafters.parts`), so that gradients can be
    accumulated.
    """


def confidence_depends(drafter) -> str:
  """What the confidence of its sampled drafts depends on, one of `DEPENDS`.

  Whether a sampled draft is verified must not depend on itself, so policies
  that go by confidence are allowed by this. A drafter that does not say is
  taken to look at the drafted token: its drafts stay lossless, at the price of
  such policies. It may change with the drafter's options.
  """
  return getattr(drafter, 'confidence_depends', DEPENDS[-1])
