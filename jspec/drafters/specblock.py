# SPDX-License-Identifier: MIT
"""SpecBlock: K tokens a pass, then again where it doubts (arXiv 2605.07243).

Every position i carries K slots. All are fed the token that follows, i + 1, and
told apart by a learned query; slot k drafts token i + 2 + k:

  x = [norm(condition); norm(E[token]); norm(Q[k])] W_fuse
  condition  first block: [tap_1; ..; tap_C] W_condition of position i
             later ones: the state of the slot they start behind
  hidden = layers(x)                         slots shift right between layers
  logits = norm(hidden) W_head               its own head, may be reduced
  class  = rank head: how wide to branch here

Fresh weights: the head is the target's where the widths agree, the shift does
nothing; both then train. `specblock_layer` has the layers, `_attention` who
sees whom, `_loss` the training and `_decode` the drafting.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import (
  base,
  borrowed,
  fusion,
  method,
  rank_head,
  specblock_config,
  specblock_decode,
  specblock_layer,
  specblock_loss,
)
from jspec.drafters import options as options_lib
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key

Config = specblock_config.Config
LossConfig = specblock_config.LossConfig
CONFIG_KEYS = specblock_config.CONFIG_KEYS
OPTIONS = specblock_config.OPTIONS
rules = specblock_config.rules
choose_taps = specblock_config.choose_taps


class SpecBlock(nnx.Module):
  """A SpecBlock drafter; implements `drafters.base.TrainableDrafter`."""

  def __init__(
    self,
    config: specblock_config.Config,
    loss_config: specblock_config.LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights over the borrowed arrays.

    Raises:
      UserError: the borrowed arrays do not fit the config.
    """
    c = config
    _check_borrowed(c, arrays)
    self.method = METHOD.name
    self.config = c
    self.loss_config = loss_config
    self.taps = c.taps
    self.num_draft_tokens = c.tree_size or c.num_draft_tokens
    self.confidence_depends = 'prefix'  # Only parallel slots are sampled.
    self.needs_last = loss_config.labels == 'teacher'
    self.embedding = borrowed.Frozen(arrays.embedding)
    self.teacher_head = borrowed.Frozen(arrays.head)
    self.target_head = borrowed.frozen(arrays.target_head)
    self.target_norm = borrowed.frozen(arrays.final_norm)
    self.target_norm_eps = arrays.norm_eps
    self.draft_token_ids = borrowed.frozen(arrays.draft_token_ids)
    self.tap_scale = borrowed.Frozen(jnp.ones((len(c.taps), c.target_width)))
    keys = iter(jax.random.split(key, 6 + c.num_layers))

    def dense(*shape):
      weights = jax.random.normal(next(keys), shape)
      return nnx.Param(shape[0] ** -0.5 * weights)

    self.condition_proj = dense(len(c.taps) * c.target_width, c.width)
    self.fuse_proj = dense(2 * c.width + c.target_width, c.width)
    self.rank_in = dense(c.width + rank_head.NUM_FEATURES, rank_head.WIDTH)
    self.rank_out = dense(rank_head.WIDTH, rank_head.NUM_CLASSES)
    shape = (c.block_size, c.width)
    self.queries = nnx.Param(0.02 * jax.random.normal(next(keys), shape))
    if c.width == c.target_width:  # A copy: the trainer donates parameters.
      self.head = nnx.Param(jnp.array(arrays.head))
    else:
      self.head = dense(c.width, c.num_columns)
    self.condition_norm = nnx.Param(jnp.ones(c.width))
    self.token_norm = nnx.Param(jnp.ones(c.target_width))
    self.query_norm = nnx.Param(jnp.ones(c.width))
    self.final_norm = nnx.Param(jnp.ones(c.width))
    self.layers = nnx.List(
      specblock_layer.Layer(c, next(keys), is_first=i == 0)
      for i in range(c.num_layers)
    )

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `OPTIONS`.

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    self.config = config = options_lib.replaced(self.config, OPTIONS, options)
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens

  def split_layers(self) -> None:
    """Nothing to do: every layer has arrays of its own already."""

  # --- parts ---

  def condition(self, taps: Float[Array, 'B R C Dt']) -> Float[Array, 'B R D']:
    """The first block's condition."""
    scaled = (taps * self.tap_scale[...]).reshape(*taps.shape[:2], -1)
    return scaled @ self.condition_proj[...]

  def fuse(
    self, condition: Float[Array, 'B R D'], tokens: Int[Array, 'B R']
  ) -> Float[Array, 'B R slots D']:
    """What the layers are given: a row's condition and token in every slot."""
    c = self.config
    parts = (
      (condition, self.condition_norm),
      (self.embedding[...][tokens], self.token_norm),
      (self.queries[...], self.query_norm),
    )
    sizes = np.cumsum([c.width, c.target_width])
    weights = jnp.split(self.fuse_proj[...], sizes)
    condition, token, query = (
      layers.rms_norm(x, norm[...], c.norm_eps) @ weight
      for (x, norm), weight in zip(parts, weights, strict=True)
    )
    return (condition + token)[:, :, None] + query

  def normed(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch D']:
    """What both heads read."""
    return layers.rms_norm(hidden, self.final_norm[...], self.config.norm_eps)

  def rank_scores(
    self, normed: Float[Array, '*batch D'], largest: Float[Array, '*batch 20']
  ) -> Float[Array, '*batch 4']:
    """The rank head's logits."""
    return rank_head.scores(
      normed,
      rank_head.features(largest),
      self.rank_in[...],
      self.rank_out[...],
    )

  def token_ids(self) -> Int[Array, 'Vd'] | None:
    """Target tokens of the head's columns; None for all."""
    return borrowed.value(self.draft_token_ids)

  def whole_head(self) -> Float[Array, 'Dt V']:
    """The target's head over its whole vocabulary."""
    if self.draft_token_ids is None:
      return self.teacher_head[...]
    if self.target_head is None:
      raise errors.UserError(
        'SpecBlock with a reduced vocabulary: the whole head of the target was'
        ' not borrowed (`borrowed.from_target`), so its argmax is unknown'
      )
    return self.target_head[...]

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Scales every captured channel to its median size in `batch`.

    `saved` folds the scale into `condition_proj`.
    """
    self.tap_scale[...] = fusion.tap_scale(fusion.live(batch))

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss of `specblock_loss` on freshly drawn rows and transitions."""
    draws = specblock_loss.draw(self, batch, key)
    return specblock_loss.loss_at(self, batch, draws)

  def leaves(self) -> dict[str, nnx.Param]:
    """The parameters by the names of `rules`."""
    found = {
      'condition_proj': self.condition_proj,
      'condition_norm': self.condition_norm,
      'token_norm': self.token_norm,
      'queries': self.queries,
      'query_norm': self.query_norm,
      'fuse': self.fuse_proj,
      'final_norm': self.final_norm,
      'head': self.head,
      'rank_in': self.rank_in,
      'rank_out': self.rank_out,
    }
    names = ('attn_norm', 'q', 'kv', 'out', 'mlp_norm', 'gate_up', 'down')
    for i, layer in enumerate(self.layers):
      of_layer = names if layer.shift is None else ('shift', *names)
      found |= {f'layers.{i}.{name}': getattr(layer, name) for name in of_layer}
    return found

  def saved(self) -> dict[str, Array]:
    """The parameters as a checkpoint holds them: for taps as captured."""
    found = {name: leaf[...] for name, leaf in self.leaves().items()}
    found['condition_proj'] *= self.tap_scale[...].reshape(-1, 1)
    return found

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> specblock_decode.State:
    """An empty pool, and no newest row."""
    return specblock_decode.init_state(self, table, num_pages, page_size)

  def propose(
    self,
    state: specblock_decode.State,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Drafts behind the anchor, which `commit` was told as `next_token`."""
    return specblock_decode.propose(
      self, state, table, anchor, temperature, keys
    )

  def commit(
    self,
    state: specblock_decode.State,
    table: paged.PageTable,
    rows: base.Committed,
  ) -> specblock_decode.State:
    """Runs the first block on accepted rows and writes its rows."""
    return specblock_decode.commit(self, state, table, rows)


def _check_borrowed(config, arrays):
  size = config.draft_vocab_size
  borrowed.check(
    arrays,
    embedding=(config.vocab_size, config.target_width),
    head=(config.target_width, config.num_columns),
    draft_token_ids=size and (size,),
  )


METHOD = method.PlainMethod(
  name='specblock',
  keys=CONFIG_KEYS,
  config_class=Config,
  loss_class=LossConfig,
  drafter_class=SpecBlock,
  rules=rules,
)
