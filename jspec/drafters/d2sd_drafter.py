# SPDX-License-Identifier: MIT
"""D2SD: draft a block, then draft again behind its likely ends.

The first drafter gives a block y_1 .. y_G (a DFlash, greedy at any temperature)
and says how sure it is of every token. The block most likely dies behind one of
K cuts; for each cut i a second, variable-prefix drafter is given y_1 .. y_i and
drafts what follows, all cuts of all rows in one pass (arXiv 2606.04446):

  first    anchor MASK MASK MASK MASK  ->  y_1 y_2 y_3 y_4
  cut 1    anchor y_1  MASK MASK MASK  ->  y_1 z_2 z_3 z_4
  cut 3    anchor y_1  y_2  y_3  MASK  ->  y_1 y_2 y_3 z'_4

Block and branches make one tree (`trees.branches`), a function of the committed
tokens (rule R1). The drafters may be one model: given nothing, a
variable-prefix drafter is a DFlash. With `num_cuts` 0 there is only the block.

State: the first drafter's pages, and the second's if it has weights of its own.
The K branches of a row read its pages K times.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  block_config,
  block_drafter,
  borrowed,
  d2sd_loss,
)
from jspec.drafters import options as options_lib
from jspec.trees import branches
from jspec.typing import Array, Float, Int, Key


class D2SD(nnx.Module):
  """Implements `drafters.base.TrainableDrafter`.

  `second` is None where one model is both.
  """

  def __init__(
    self,
    config: block_config.BlockDrafterConfig,
    loss_config: d2sd_loss.LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights over the borrowed arrays.

    Raises:
      UserError: the config has parts of other methods or asks for too large a
        tree, or the borrowed arrays do not fit.
    """
    _check(config)
    self.method = config.method
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    keys = jax.random.split(key)
    made = (_of_block(config), loss_config.block, arrays)
    self.first = block_drafter.BlockDrafter(*made, keys[0])
    self.second = nnx.data(None)
    if not config.shared:
      self.second = block_drafter.BlockDrafter(*made, keys[1])
    self.num_draft_tokens = _num_nodes(config)
    self.confidence_depends = 'prefix'  # As its drafts, at any temperature.
    self.needs_last = self.first.needs_last

  @property
  def drafters(self) -> tuple[block_drafter.BlockDrafter, ...]:
    """Whatever has weights: one or two."""
    return (self.first,) if self.second is None else (self.first, self.second)

  @property
  def draft_token_ids(self) -> nnx.Variable | None:
    """Target ids of the head's columns; None for all."""
    return self.first.draft_token_ids

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `block_config.OPTIONS`.

    `num_draft_tokens` is the depth of the tree, `tree_size` its draft nodes (0:
    room for all of them).

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    config = options_lib.replaced(self.config, block_config.OPTIONS, options)
    _check(config)
    self.config = config
    self.num_draft_tokens = _num_nodes(config)
    inner = _of_block(config)
    for drafter in self.drafters:
      drafter.set_options(
        **{name: getattr(inner, name) for name in block_config.OPTIONS}
      )

  def split_layers(self) -> None:
    """Takes the form for decoding on a CPU."""
    for drafter in self.drafters:
      drafter.split_layers()

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Scales every captured channel to its median size in `batch`."""
    for drafter in self.drafters:
      drafter.calibrate(batch)

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """`loss_at` on freshly drawn anchors and prefixes."""
    anchors = anchors_lib.sample(
      batch.is_answer, batch.segments, self.loss_config.block.num_anchors, key
    )
    given = d2sd_loss.prefix_lengths(
      jax.random.fold_in(key, 1),
      anchors.index.shape,
      self.config.num_labels,
      self.loss_config.prefix_decay,
    )
    return self.loss_at(batch, anchors, given)

  def loss_at(
    self,
    batch: base.DraftBatch,
    anchors: anchors_lib.Anchors,
    given: Int[Array, 'B A'],
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss of blocks that are `given` some true tokens.

    A first drafter of its own has DFlash's loss on the same anchors added.
    Acceptance in the metrics is that of a first block.
    """
    if self.second is None:
      return d2sd_loss.loss(self.first, batch, anchors, given)
    total, metrics = self.first.loss_at(batch, anchors)
    more, others = d2sd_loss.loss(self.second, batch, anchors, given)
    metrics |= {
      f'second_{name}': value
      for name, value in others.items()
      if not name.startswith('num_')
    }
    metrics['loss'] = total + more
    return total + more, metrics

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> tuple[paged.Pages, ...]:
    """An empty pool of context rows for every drafter."""
    return tuple(
      drafter.init_state(table, num_pages, page_size)
      for drafter in self.drafters
    )

  def propose(
    self,
    state: tuple[paged.Pages, ...],
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts behind the anchor, the likeliest tokens at any temperature."""
    del temperature, keys
    config = self.config
    block = self.first.propose(state[0], table, anchor, None, None)
    if not config.num_cuts:
      return block
    tokens, sure = block.tokens[:, 1:], block.confidence[:, 1:]
    kept = branches.cuts(sure, config.num_cuts)
    fed = branches.prompts(
      anchor, tokens, kept, config.mask_token_id, config.block_size
    )
    hidden = self.redraft(state, table, fed)[:, :, : tokens.shape[1]]
    again = self.drafters[-1].pick(
      hidden.reshape(-1, *hidden.shape[2:]),
      jnp.repeat(anchor, config.num_cuts),
      None,
      None,
    )
    draft = branches.trie(
      anchor,
      tokens,
      sure,
      kept,
      again.tokens[:, 1:].reshape(hidden.shape[:3]),
      again.confidence[:, 1:].reshape(hidden.shape[:3]),
      num_nodes=1 + self.num_draft_tokens,
    )
    survival = tree.survival(draft)[:, 1:]
    is_worth_it = jnp.sum(survival, axis=1) >= config.min_expected_accepted
    return dataclasses.replace(
      draft, num_nodes=jnp.where(is_worth_it, draft.num_nodes, 1)
    )

  def redraft(
    self,
    state: tuple[paged.Pages, ...],
    table: paged.PageTable,
    fed: Int[Array, 'B cuts T'],
  ) -> Float[Array, 'B cuts G D']:
    """The second drafter's slots behind every prompt, from one pass.

    Args:
      state: of both drafters.
      table: where the anchor comes next.
      fed: anchor, given tokens and masks.
    """
    drafter, num_cuts = self.drafters[-1], fed.shape[1]
    per_branch = paged.PageTable(
      jnp.repeat(table.page_ids, num_cuts, axis=0),
      jnp.repeat(table.lengths, num_cuts),
      table.dropped,
    )
    embedded = drafter.embed(fed.reshape(-1, fed.shape[-1]))
    x = drafter.block.score(embedded, state[-1], per_branch)
    hidden = drafter.predicting(x)
    return hidden.reshape(-1, num_cuts, *hidden.shape[1:])

  def commit(
    self,
    state: tuple[paged.Pages, ...],
    table: paged.PageTable,
    rows: base.Committed,
  ) -> tuple[paged.Pages, ...]:
    """Writes the context rows of accepted tokens, for every drafter."""
    return tuple(
      drafter.commit(pages, table, rows)
      for drafter, pages in zip(self.drafters, state, strict=True)
    )


def _of_block(config):
  """The config of each drafter: a chain, unless the block is all there is."""
  if not config.num_cuts:
    return config
  return dataclasses.replace(
    config, num_cuts=0, tree_size=0, min_expected_accepted=0.0
  )


def _num_nodes(config):
  """Draft nodes of a proposal, at most.

  Cuts differ, so the K prefixes have at least 0 + 1 + .. + (K - 1) tokens, and
  all of them are the block's own.
  """
  depth, num_cuts = config.num_draft_tokens, config.num_cuts
  if not num_cuts:
    return config.tree_size or depth
  most = depth * (1 + num_cuts) - num_cuts * (num_cuts - 1) // 2
  return min(config.tree_size or most, most)


def _check(config):
  for name in ('correction_width', 'markov_rank', 'selector_rank'):
    value = getattr(config, name)
    options_lib.need(value == 0, name, value, '0, d2sd has no such head')
  options_lib.need(
    not config.has_confidence,
    'has_confidence',
    True,
    'False, d2sd goes by the largest probability',
  )
  options_lib.need(
    config.fusion != 'gated', 'fusion', config.fusion, 'any but gated for d2sd'
  )
  size = _num_nodes(config)
  options_lib.need(
    size < tree.MAX_NODES,
    'num_cuts',
    config.num_cuts,
    f'block and branches of at most {tree.MAX_NODES - 1} nodes, not {size}:'
    ' take fewer cuts or num_draft_tokens, or set tree_size',
  )
