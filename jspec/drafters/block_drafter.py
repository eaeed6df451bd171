# SPDX-License-Identifier: MIT
"""A drafter of the DFlash family: one backbone, and the parts a method adds.

  context_l = fusion_l(taps)                            `fusion`
  hidden    = final_norm(block([anchor, MASK, MASK, ...], context))   `block`
  logits    = hidden head                               the target's LM head
  or          token_head(hidden, token before) head     `correction`, `markov`
  or          its best K, rescored given the token before             `selector`

Embedding and head are the target's, frozen. In decoding the trained block is
always fed whole, because its slots see each other; `num_draft_tokens` cuts the
list of drafts. With `tree_size` the drafts are a tree as deep as that list: the
most probable prefixes, or when sampled a fixed shape (`trees.sequoia`).

State: the context's key and value rows, in pages under the target's page ids.
The loss is in `block_loss`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  block,
  block_config,
  block_loss,
  block_rollout,
  block_steps,
  borrowed,
  confidence,
  correction,
  fusion,
  markov,
  pick,
  selector,
  sequential,
  token_head,
)
from jspec.drafters import options as options_lib
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key


class BlockDrafter(nnx.Module):
  """Implements `drafters.base.TrainableDrafter`; parts it lacks are None."""

  def __init__(
    self,
    config: block_config.BlockDrafterConfig,
    loss_config: block_loss.LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights over the borrowed arrays.

    Raises:
      UserError: the borrowed arrays do not fit the config, or a loss term lacks
        its part.
    """
    _check_parts(config)
    _check_borrowed(config, arrays)
    loss_config.check(config)
    self.method = config.method
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens
    self.needs_last = loss_config.needs_teacher
    self.needs_judge = loss_config.on_policy > 0
    self.target_norm_eps = arrays.norm_eps
    for name in ('embedding', 'head', 'draft_token_ids'):
      setattr(self, name, borrowed.frozen(getattr(arrays, name)))
    self.target_norm = borrowed.frozen(arrays.final_norm)
    keys = jax.random.split(key, 4)
    self.fusion = fusion.Fusion(config, keys[0])
    self.block = block.Block(
      config.block, block.random_arrays(config.block, keys[1])
    )
    self.final_norm = nnx.Param(jnp.ones((config.width,)))
    self.token_head = _token_head(config, keys[2])
    self.selector, self.confidence = nnx.data(None), nnx.data(None)
    if config.selector_rank:
      self.selector = selector.Selector(
        config.selector_rank,
        min(config.selector_size, _num_columns(config)),
        config.width,
        config.vocab_size,
        _num_columns(config),
        keys[2],
      )
    if config.has_confidence:
      seen = config.markov_rank if config.confidence_sees_token else 0
      self.confidence = confidence.Confidence(config.width + seen, keys[3])

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `block_config.OPTIONS`.

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    allowed = block_config.OPTIONS
    config = options_lib.replaced(self.config, allowed, options)
    _check_parts(config)
    self.config = config
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens

  def split_layers(self) -> None:
    """Takes the form for decoding on a CPU."""
    self.block.split_layers()

  @property
  def confidence_depends(self) -> str:
    """As `base.confidence_depends` says."""
    c = self.config
    sees_slot_only = c.has_confidence and not c.confidence_sees_token
    if sees_slot_only or not self._sees_token():
      return 'prefix'
    return sequential.depends(c.tree_size)

  # --- parts ---

  def slots(self, anchor: Int[Array, '*batch']) -> Float[Array, '*batch T D']:
    """Embeds [anchor, MASK, MASK, ...]."""
    mask = jnp.full(
      (*anchor.shape, self.config.block_size - 1),
      self.config.mask_token_id,
      anchor.dtype,
    )
    return self.embed(jnp.concatenate([anchor[..., None], mask], axis=-1))

  def embed(self, tokens: Int[Array, '*batch']) -> Float[Array, '*batch D']:
    """The target's embeddings, in the drafter's own dtype."""
    return self.embedding[...][tokens].astype(self.final_norm[...].dtype)

  def predicting(
    self, x: Float[Array, '*batch T D']
  ) -> Float[Array, '*batch G D']:
    """Final norm of the slots that predict depth 1, 2, ..."""
    x = x[..., 1 - self.config.label_shift :, :]
    return layers.rms_norm(x, self.final_norm[...], self.config.norm_eps)

  def confidence_logits(
    self, hidden: Float[Array, '*batch D'], before: Int[Array, '*batch']
  ) -> Float[Array, '*batch']:
    """The confidence head behind the tokens `before`."""
    extra = None
    if self.config.confidence_sees_token:
      extra = self.token_head.embed(before)
    return self.confidence(hidden, extra)

  def token_ids(self) -> Int[Array, 'Vd'] | None:
    """Target ids of the head's columns; None for all."""
    return borrowed.value(self.draft_token_ids)

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Scales every captured channel to its median size in `batch`."""
    self.fusion.calibrate(fusion.live(batch))

  def train_hidden(
    self,
    batch: base.DraftBatch,
    anchors: anchors_lib.Anchors,
    slots: Float[Array, 'B A T D'] | None = None,
  ) -> Float[Array, 'B A G D']:
    """States of the predicting slots of every block.

    Args:
      batch: the sequences.
      anchors: where blocks start.
      slots: embedded slots, if not the anchor and masks.
    """
    if slots is None:
      tokens = jnp.take_along_axis(batch.tokens, anchors.index, axis=1)
      slots = self.slots(tokens)
    start = jnp.take_along_axis(batch.positions, anchors.index, axis=1)
    x = self.block.train(
      slots,
      start[..., None] + jnp.arange(self.config.block_size),
      functools.partial(self.fusion.context, self.fusion.prepare(batch.taps)),
      batch.positions,
      anchors_lib.rows(anchors),
      batch.segments,
    )
    return self.predicting(x)

  def teacher_forced(
    self, hidden: Float[Array, 'B A G D'], before: Int[Array, 'B A G']
  ) -> tuple[Float[Array, 'B A G Dr'], Float[Array, 'Dr Vd']]:
    """States and the matrix that make the logits behind the tokens `before`."""
    head = self.head[...]
    if self.token_head is None:
      return hidden, head
    states = token_head.teacher_forced(
      self.token_head, hidden, self.embed(before), before
    )
    return states, self.token_head.matrix(head)

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The configured mix of losses on freshly drawn anchors."""
    anchors = anchors_lib.sample(
      batch.is_answer, batch.segments, self.loss_config.num_anchors, key
    )
    return self.loss_at(batch, anchors)

  def rollout(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[anchors_lib.Anchors, Int[Array, 'B A G']]:
    """Its own proposals at freshly drawn anchors, for the target to judge."""
    return block_rollout.propose(self, batch, key)

  def loss_at(
    self, batch: base.DraftBatch, anchors: anchors_lib.Anchors
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss on given anchors (see `block_loss`)."""
    return block_loss.loss(
      self, batch, anchors, self.train_hidden(batch, anchors)
    )

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> paged.Pages:
    """An empty pool of context rows."""
    del table
    c = self.config
    return paged.init_pages(
      c.num_layers,
      num_pages,
      page_size,
      c.num_kv_heads,
      c.head_width,
      self.final_norm[...].dtype,
    )

  def propose(
    self,
    state: paged.Pages,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts behind the anchor; the backbone runs once."""
    x = self.block.score(self.slots(anchor), state, table)
    hidden = self.predicting(x)[:, : self.config.num_draft_tokens]
    draft = self.pick(hidden, anchor, temperature, keys)
    if self._sees_token() and temperature is not None:
      # The chance of later drafts depends on tokens drawn before them, so
      # withdrawing all by it would anticipate.
      return draft
    survival = tree.survival(draft)[:, 1:]
    is_worth_it = jnp.sum(survival, axis=1) >= self.config.min_expected_accepted
    return dataclasses.replace(
      draft, num_nodes=jnp.where(is_worth_it, draft.num_nodes, 1)
    )

  @property
  def extends(self) -> bool:
    """Whether `extend` may be called: drafts are chains."""
    return not self.config.tree_size

  def extend(
    self,
    state: paged.Pages,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    offset: Int[Array, 'B'],
  ) -> tree.Draft:
    """Drafts another block behind a draft token, as if it were the anchor.

    The target has not read the tokens in between, so the context ends where it
    did. Deterministic drafts only.

    Args:
      state: as in `propose`.
      table: likewise.
      anchor: the last draft token.
      offset: how far it is from the anchor of the round.
    """
    x = self.block.score(self.slots(anchor), state, table, offset)
    hidden = self.predicting(x)[:, : self.config.num_draft_tokens]
    return self.pick(hidden, anchor, None, None)

  def pick(
    self,
    hidden: Float[Array, 'B G D'],
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """From the slots' states to a chain or a tree."""
    size, support = self.config.tree_size, self.config.support
    if self.selector is not None:
      support = min(support, self.selector.size)
    if not self._sees_token():
      logits = (hidden @ self.head[...]).astype(jnp.float32)
      ids = self.token_ids()
      if not size:
        return pick.chain(logits, anchor, ids, temperature, keys, support)
      if temperature is None:
        return pick.best_tree(logits, anchor, ids, size, support)
      return pick.sampled_tree(
        logits, anchor, ids, temperature, keys, size, support
      )
    sure = None
    if self.confidence is not None:
      sure = functools.partial(self._sure, hidden)
    return sequential.propose(
      block_steps.build(self, hidden, anchor),
      anchor,
      temperature,
      keys,
      depth=hidden.shape[1],
      size=size,
      width=min(self.config.beam_width, support),
      support=support,
      confidence_of=sure,
    )

  def commit(
    self, state: paged.Pages, table: paged.PageTable, rows: base.Committed
  ) -> paged.Pages:
    """Writes the context rows of accepted tokens behind the prefix."""
    num_rows, num_steps = rows.tokens.shape
    steps = jnp.broadcast_to(jnp.arange(num_steps), (num_rows, num_steps))
    k, v = self.block.context_rows(
      functools.partial(self.fusion.context, self.fusion.prepare(rows.taps)),
      table.lengths[:, None] + steps,
    )
    # A row without a page shows in the target's own commit: same table.
    pages, _ = paged.write(state, table, k, v, steps, rows.num_rows)
    return pages

  def _sees_token(self):
    parts = (self.token_head, self.selector, self.confidence)
    return any(part is not None for part in parts)

  def _sure(self, hidden, depth, before):
    return jax.nn.sigmoid(self.confidence_logits(hidden[:, depth], before))


def _num_columns(config):
  return config.draft_vocab_size or config.vocab_size


def _token_head(config, key):
  if config.correction_width:
    return correction.Correction(
      config.width, config.correction_width, config.norm_eps, key
    )
  if config.markov_rank:
    return markov.Markov(
      config.markov_kind,
      config.markov_rank,
      config.width,
      config.vocab_size,
      _num_columns(config),
      key,
    )
  return nnx.data(None)


def _check_parts(config):
  options_lib.need(
    config.method == 'd2sd' or (config.num_cuts == 0 and config.shared),
    'num_cuts, shared',
    (config.num_cuts, config.shared),
    f'0 and True, which d2sd alone may change ({config.method})',
  )


def _check_borrowed(config, arrays):
  size = config.draft_vocab_size
  borrowed.check(
    arrays,
    embedding=(config.vocab_size, config.width),
    head=(config.width, _num_columns(config)),
    draft_token_ids=size and (size,),
  )
