# SPDX-License-Identifier: MIT
"""DFlash: drafts a whole block in one pass (arXiv 2602.06036).

  context = context_norm(context_proj([tap_1, ..., tap_C]))      one row a token
  hidden  = final_norm(block([anchor, MASK, MASK, ...], context))
  logits  = hidden head                                     the target's LM head

Embedding and head are the target's, frozen. Which token a slot predicts differs
between published checkpoints, so it is a field (`label_shift`):

  slots        anchor  MASK  MASK  MASK      at positions a, a+1, a+2, a+3
  label_shift 0   -     a+1   a+2   a+3      block_size - 1 drafts
  label_shift 1  a+1    a+2   a+3   a+4      block_size drafts

In decoding the trained block is always fed whole, because its slots see each
other; `num_draft_tokens` cuts the list of drafts. With `tree_size` the drafts
are a tree over the slots' marginals, as deep as that list: the most probable
prefixes (`trees.ddtree`), or when sampled a fixed shape (`trees.sequoia`).

State: the context's key and value rows, in pages under the target's page ids.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import base, block, borrowed, losses, pick, vocab
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlashConfig:
  """What a DFlash checkpoint must say; nothing has a silent default.

  Attributes:
    taps: 0-based target layers whose outputs make the context.
    mask_token_id: a row of the target's embedding that no text uses.
    block_size: slots fed, anchor included.
    num_draft_tokens: drafts of a proposal, or the depth of its tree.
    label_shift: 0 or 1, see above.
    draft_vocab_size: columns of the reduced head, None for the target's own.
    support: Q, tokens in the law of a sampled draft.
    min_expected_accepted: a proposal that expects fewer accepted drafts (the
      sum of its survival probabilities) is withdrawn, since scoring the anchor
      alone is cheaper; 0 always drafts. It looks at marginals only, so it is
      lossless with sampled drafts too (non-anticipation).
    tree_size: draft tokens of a tree; 0 drafts a chain.
  """

  width: int
  ff_width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float
  taps: tuple[int, ...]
  target_width: int
  target_num_layers: int
  vocab_size: int
  mask_token_id: int
  block_size: int
  num_draft_tokens: int
  label_shift: int
  draft_vocab_size: int | None
  support: int = 32
  min_expected_accepted: float = 0.0
  tree_size: int = 0

  def __post_init__(self):
    _need(4 <= self.block_size <= 32, 'block_size', self.block_size, '4..32')
    _need(self.label_shift in (0, 1), 'label_shift', self.label_shift, '0 or 1')
    _need(
      1 <= self.num_draft_tokens <= self.num_labels,
      'num_draft_tokens',
      self.num_draft_tokens,
      f'1..{self.num_labels} (block_size - 1 + label_shift)',
    )
    _need(
      0 <= self.tree_size < tree.MAX_NODES,
      'tree_size',
      self.tree_size,
      f'0 (a chain) to {tree.MAX_NODES - 1}',
    )
    distinct = len(set(self.taps)) == len(self.taps) > 0
    in_range = all(0 <= tap < self.target_num_layers for tap in self.taps)
    _need(
      distinct and in_range,
      'taps',
      self.taps,
      f'distinct layers in 0..{self.target_num_layers - 1}',
    )
    _need(
      0 <= self.mask_token_id < self.vocab_size,
      'mask_token_id',
      self.mask_token_id,
      f'0..{self.vocab_size - 1}',
    )
    _need(
      self.num_heads % self.num_kv_heads == 0,
      'num_heads',
      self.num_heads,
      f'a multiple of num_kv_heads ({self.num_kv_heads})',
    )

  @property
  def num_labels(self) -> int:
    """Slots that predict a token: the most drafts a block can give."""
    return self.block_size - 1 + self.label_shift

  @property
  def block(self) -> block.BlockConfig:
    """The shapes of the backbone."""
    names = [field.name for field in dataclasses.fields(block.BlockConfig)]
    return block.BlockConfig(**{name: getattr(self, name) for name in names})


# Fields that say how to decode and that any checkpoint may be given anew.
OPTIONS = ('num_draft_tokens', 'tree_size', 'support', 'min_expected_accepted')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """How blocks are drawn and weighted in training.

  Attributes:
    num_anchors: blocks drawn from every sequence.
    decay_gamma: gamma of the positional decay; 0 turns it off. The paper has
      4, 5, 7 for blocks of 8, 10, 16.
    chunk: anchors of a sequence whose logits are held at once.
  """

  num_anchors: int = 64
  decay_gamma: float = 4.0
  chunk: int = 16


def choose_taps(num_layers: int, count: int) -> tuple[int, ...]:
  """`count` layers spread from the second to the third last (36, 5 -> 1 .. 33).

  Raises:
    UserError: the target has too few layers for that many distinct ones.
  """
  if count == 1:
    return (num_layers // 2,)
  step = (num_layers - 4) / (count - 1)
  taps = tuple(round(1 + i * step) for i in range(count))
  if list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] >= num_layers:
    raise errors.UserError(
      f'{count} taps do not fit a target of {num_layers} layers: give `taps`'
      ' (distinct 0-based layers) or ask for fewer'
    )
  return taps


class DFlash(nnx.Module):
  """A DFlash drafter; implements `drafters.base.TrainableDrafter`."""

  def __init__(
    self,
    config: DFlashConfig,
    loss_config: LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights over the borrowed arrays.

    Raises:
      UserError: the borrowed arrays do not fit the config.
    """
    _check_borrowed(config, arrays)
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens
    self.embedding = borrowed.Frozen(arrays.embedding)
    self.head = borrowed.Frozen(arrays.head)
    self.draft_token_ids = (
      None
      if arrays.draft_token_ids is None
      else borrowed.Frozen(arrays.draft_token_ids)
    )
    self.tap_scale = borrowed.Frozen(
      jnp.ones((len(config.taps), config.target_width))
    )
    key_proj, key_block = jax.random.split(key)
    shape = (len(config.taps) * config.target_width, config.width)
    scale = shape[0] ** -0.5
    self.context_proj = nnx.Param(scale * jax.random.normal(key_proj, shape))
    self.context_norm = nnx.Param(jnp.ones((config.width,)))
    self.final_norm = nnx.Param(jnp.ones((config.width,)))
    self.block = block.Block(
      config.block, block.random_arrays(config.block, key_block)
    )

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `OPTIONS`.

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    for name, value in options.items():
      if name not in OPTIONS:
        raise errors.UserError(
          f'{name}: no option of this drafter; there are {", ".join(OPTIONS)}'
        )
      kind = type(getattr(self.config, name))
      _need(isinstance(value, (kind, int)), name, repr(value), kind.__name__)
      self.config = dataclasses.replace(self.config, **{name: kind(value)})
    self.num_draft_tokens = (
      self.config.tree_size or self.config.num_draft_tokens
    )

  # --- parts ---

  def context(self, taps: Float[Array, 'B S C Dt']) -> Float[Array, 'B S D']:
    """Fuses the captured layers into one row a token."""
    scaled = taps * self.tap_scale[...]
    flat = scaled.reshape(*taps.shape[:2], -1) @ self.context_proj[...]
    return layers.rms_norm(flat, self.context_norm[...], self.config.norm_eps)

  def slots(self, anchor: Int[Array, '*batch']) -> Float[Array, '*batch T D']:
    """Embeds [anchor, MASK, MASK, ...]."""
    mask = jnp.full(
      (*anchor.shape, self.config.block_size - 1),
      self.config.mask_token_id,
      anchor.dtype,
    )
    return self.embedding[...][jnp.concatenate([anchor[..., None], mask], -1)]

  def predicting(
    self, x: Float[Array, '*batch T D']
  ) -> Float[Array, '*batch G D']:
    """Final norm of the slots that predict depth 1, 2, ..."""
    x = x[..., 1 - self.config.label_shift :, :]
    return layers.rms_norm(x, self.final_norm[...], self.config.norm_eps)

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Scales every captured channel to its median size in `batch`.

    Channels of a residual stream differ by orders of magnitude, and the few
    large ones would drown the rest in `context_proj`. A checkpoint holds the
    scale folded into `context_proj`, so the architecture stays as published.
    """
    taps = np.asarray(batch.taps)[np.asarray(batch.segments) > 0]
    size = np.median(np.abs(taps), axis=0)
    self.tap_scale[...] = jnp.asarray(1 / np.maximum(size, 1e-6), jnp.float32)

  def folded_context_proj(self) -> Float[Array, 'CD D']:
    """`context_proj` for states that are not scaled."""
    return self.tap_scale[...].reshape(-1, 1) * self.context_proj[...]

  def train_hidden(
    self, batch: base.DraftBatch, anchors: anchors_lib.Anchors
  ) -> Float[Array, 'B A G D']:
    """States of the predicting slots of every block."""
    anchor_tokens = jnp.take_along_axis(batch.tokens, anchors.index, axis=1)
    start = jnp.take_along_axis(batch.positions, anchors.index, axis=1)
    x = self.block.train(
      self.slots(anchor_tokens),
      start[..., None] + jnp.arange(self.config.block_size),
      self.context(batch.taps),
      batch.positions,
      anchors_lib.rows(anchors),
      batch.segments,
    )
    return self.predicting(x)

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """Cross-entropy with positional decay on freshly drawn anchors."""
    anchors = anchors_lib.sample(
      batch.is_answer, batch.segments, self.loss_config.num_anchors, key
    )
    return self.loss_at(batch, anchors)

  def loss_at(
    self, batch: base.DraftBatch, anchors: anchors_lib.Anchors
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss on given anchors.

    A label outside the draft vocabulary has no weight and ends its block; it
    counts as a miss in the acceptance metrics, as it would in decoding.
    """
    num_labels = self.config.num_labels
    index, exists = anchors_lib.label_run(
      anchors, batch.is_answer, batch.segments, num_labels
    )
    labels, inside = vocab.to_draft(
      anchors_lib.gather(batch.tokens, index), self._draft_token_ids()
    )
    hidden = self.train_hidden(batch, anchors)
    ce, is_hit = losses.cross_entropy(
      hidden, self.head[...], labels, self.loss_config.chunk
    )
    counts = jnp.cumprod(exists & inside, axis=-1)
    weights = counts * losses.decay_weights(
      num_labels, self.loss_config.decay_gamma
    )
    loss = losses.weighted_mean(ce, weights)
    metrics = losses.acceptance(is_hit & inside, exists)
    metrics['weight'] = jnp.sum(weights)
    metrics['num_out_of_vocabulary'] = jnp.sum(exists & ~inside)
    return loss, {'loss': loss, **metrics}

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
      self.context_proj[...].dtype,
    )

  def propose(
    self,
    state: paged.Pages,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts behind the anchor in one pass."""
    config = self.config
    x = self.block.score(self.slots(anchor), state, table)
    hidden = self.predicting(x)[:, : config.num_draft_tokens]
    logits = (hidden @ self.head[...]).astype(jnp.float32)
    ids = self._draft_token_ids()
    size, support = config.tree_size, config.support
    if not size:
      draft = pick.chain(logits, anchor, ids, temperature, keys, support)
    elif temperature is None:
      draft = pick.best_tree(logits, anchor, ids, size, support)
    else:
      draft = pick.sampled_tree(
        logits, anchor, ids, temperature, keys, size, support
      )
    survival = tree.survival(draft)[:, 1:]
    is_worth_it = jnp.sum(survival, axis=1) >= config.min_expected_accepted
    return dataclasses.replace(
      draft, num_nodes=jnp.where(is_worth_it, draft.num_nodes, 1)
    )

  def commit(
    self, state: paged.Pages, table: paged.PageTable, rows: base.Committed
  ) -> paged.Pages:
    """Writes the context rows of accepted tokens behind the prefix."""
    num_rows, num_steps = rows.tokens.shape
    steps = jnp.broadcast_to(jnp.arange(num_steps), (num_rows, num_steps))
    k, v = self.block.context_rows(
      self.context(rows.taps), table.lengths[:, None] + steps
    )
    # A row without a page shows in the target's own commit: same table.
    pages, _ = paged.write(state, table, k, v, steps, rows.num_rows)
    return pages

  def _draft_token_ids(self) -> Int[Array, 'Vd'] | None:
    ids = self.draft_token_ids
    return None if ids is None else ids[...]


def _need(holds: bool, name: str, value, expected: str):
  if not holds:
    raise errors.UserError(f'{name}={value}: expected {expected}')


def _check_borrowed(config, arrays):
  size = config.draft_vocab_size
  ids = arrays.draft_token_ids
  shapes = (
    (arrays.embedding.shape, (config.vocab_size, config.width), 'embedding'),
    (arrays.head.shape, (config.width, size or config.vocab_size), 'head'),
    (None if ids is None else ids.shape, size and (size,), 'draft_token_ids'),
  )
  for shape, expected, name in shapes:
    if shape != expected:
      raise errors.UserError(
        f'borrowed {name} has shape {shape}, the drafter expects {expected};'
        ' is this the target it was made for?'
      )
