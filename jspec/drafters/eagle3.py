# SPDX-License-Identifier: MIT
"""EAGLE-3: one layer, run on true features and then on its own output.

  feature_t = fc([tap_1, ..., tap_C])                 low, middle, high layers
  h_t = layer(embedding of token t + 1, feature_t)    sees the rows up to t
  logits of token t + 2 = norm(h_t) head
  h_{t+1} = layer(embedding of token t + 2, h_t)      and so on, a step a token

(Li et al., arXiv 2503.01840.) The embedding is the target's, frozen; the head
is the drafter's own, over the whole or a reduced vocabulary. The state that is
fed back is what the layer gives out, or with `norm_output` its norm.

Because the layer is fed its own output when it drafts, it is trained on it:
test-time training runs every row for several steps with the tokens of the text.
At step s a row sees the keys that rows up to its own wrote from true features,
and those it wrote itself at steps 1 to s, at position row + s (`nn.
prefix_attention`). That is exactly a chain of drafts: committed rows in pages,
drafted ones in scratch rows, and after verification the accepted rows are
written again from true features.

State: the layer's key and value rows, in pages under the target's page ids, and
the output of the last committed row.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  borrowed,
  eagle3_config,
  eagle3_layer,
  eagle3_loss,
  eagle3_steps,
  fusion,
  method,
  recurrent,
  scratch,
  sequential,
  teacher,
)
from jspec.drafters import options as options_lib
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key

Config = eagle3_config.Config
LossConfig = eagle3_loss.LossConfig
OPTIONS = eagle3_config.OPTIONS
CONFIG_KEYS = eagle3_config.CONFIG_KEYS
rules = eagle3_config.rules
State = recurrent.State


class Eagle3(nnx.Module):
  """An EAGLE-3 drafter; implements `drafters.base.TrainableDrafter`."""

  def __init__(
    self,
    config: Config,
    loss_config: LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights, the head from the target's own.

    Raises:
      UserError: the borrowed arrays do not fit the config.
    """
    _check_borrowed(config, loss_config, arrays)
    self.method = METHOD.name
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens
    self.needs_last = loss_config.needs_teacher
    self.embedding = borrowed.Frozen(arrays.embedding)
    self.draft_token_ids = borrowed.frozen(arrays.draft_token_ids)
    is_taught = self.needs_last
    self.target_norm = borrowed.frozen(arrays.final_norm if is_taught else None)
    self.target_head = borrowed.frozen(
      arrays.target_head if is_taught else None
    )
    self.target_norm_eps = arrays.norm_eps
    num_taps = len(config.taps)
    self.tap_scale = borrowed.Frozen(jnp.ones((num_taps, config.target_width)))
    key_fc, key_layer = jax.random.split(key)
    shape = (num_taps * config.target_width, config.width)
    scale = shape[0] ** -0.5
    self.fc = nnx.Param(scale * jax.random.normal(key_fc, shape))
    self.fc_norm = nnx.data(
      nnx.Param(jnp.ones((num_taps, config.target_width)))
      if config.fc_norm
      else None
    )
    self.layer = eagle3_layer.Layer(
      config.layer, eagle3_layer.random_arrays(config.layer, key_layer)
    )
    gain = arrays.final_norm
    self.norm = nnx.Param(
      jnp.ones((config.width,)) if gain is None else jnp.array(gain)
    )
    self.head = nnx.Param(jnp.array(arrays.head))

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `OPTIONS`.

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    self.config = config = options_lib.replaced(self.config, OPTIONS, options)
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens

  @property
  def confidence_depends(self) -> str:
    """As `base.confidence_depends` says."""
    return sequential.depends(self.config.tree_size)

  # --- parts ---

  def feature(self, taps: Float[Array, 'B T C Dt']) -> Float[Array, 'B T D']:
    """Fuses the captured layers into one row a token."""
    if self.fc_norm is not None:
      taps = layers.rms_norm(
        taps, jnp.ones((taps.shape[-1],)), self.config.norm_eps
      )
      taps = taps * self.fc_norm[...]
    taps = taps * self.tap_scale[...]
    return taps.reshape(*taps.shape[:2], -1) @ self.fc[...]

  def normed(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch D']:
    """What the head sees."""
    return layers.rms_norm(hidden, self.norm[...], self.config.norm_eps)

  def fed_back(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch D']:
    """What the next step takes for a feature."""
    return self.normed(hidden) if self.config.norm_output else hidden

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Scales every captured channel to its median size in `batch`.

    A checkpoint holds the scale folded into `fc`. With `fc_norm` the gains of
    the norms do this.
    """
    if self.fc_norm is None:
      self.tap_scale[...] = fusion.tap_scale(fusion.live(batch))

  def train_hidden(
    self, batch: base.DraftBatch, at: anchors_lib.Anchors, num_steps: int
  ) -> Float[Array, 'B A G D']:
    """Outputs of steps 0, 1, .. of the row before every anchor, not normed."""
    return eagle3_steps.run(
      self.layer,
      self.embedding[...],
      self.feature(batch.taps),
      self.fed_back,
      batch,
      at,
      num_steps,
    )

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss of test-time training on freshly drawn rows."""
    return self.loss_at(
      batch, eagle3_loss.anchors(batch, self.loss_config, key)
    )

  def loss_at(
    self, batch: base.DraftBatch, at: anchors_lib.Anchors
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss of the rows before given anchors."""
    config = self.loss_config
    wanted = eagle3_loss.labels(batch, at, config.ttt_length)
    law = self._teacher(batch, at)
    hidden = self.train_hidden(batch, at, config.ttt_length)
    return eagle3_loss.loss(
      config,
      self.normed(hidden),
      self.head[...],
      self.token_ids(),
      wanted,
      law,
    )

  def _teacher(self, batch, at):
    """The law of each label: the state of the token before it."""
    if not self.loss_config.needs_teacher:
      return None
    states = teacher.states(
      batch.last,
      borrowed.value(self.target_norm),
      self.target_norm_eps,
      'EAGLE-3',
    )
    steps = range(self.loss_config.ttt_length)
    return eagle3_loss.Teacher(
      anchors_lib.near(states, at, steps), self.target_head[...]
    )

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> State:
    """No rows."""
    c = self.config
    layer = (c.num_kv_heads, c.head_width, c.width, self.fc[...].dtype)
    return recurrent.empty_state(table, num_pages, page_size, *layer)

  def propose(
    self,
    state: State,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """A chain or a tree behind the anchor."""
    config = self.config
    return recurrent.propose(
      *self.recurrence(state, table),
      anchor,
      self.token_ids(),
      temperature,
      keys,
      depth=config.num_draft_tokens,
      size=config.tree_size,
      width=config.tree_width,
      support=config.support,
    )

  def recurrence(
    self, state: State, table: paged.PageTable
  ) -> tuple[recurrent.Run, recurrent.Start, recurrent.Root]:
    """The drafter as `recurrent` takes it: run, start and root."""

    def start(num_scratch):
      return scratch.empty(state.hidden.shape[0], num_scratch, state.pages)

    def run(memory, nodes):
      turns = self.layer.turns(recurrent.positions(nodes, table))
      x = self.layer.inputs(self.embedding[...][nodes.tokens], nodes.hidden)
      heads = (self.layer.queries(x, *turns), *self.layer.rows(x, *turns))
      memory, mixed = recurrent.attend(
        memory, *heads, nodes, state.pages, table
      )
      out = self.layer.finish(nodes.hidden, mixed)
      return memory, self.fed_back(out), self._logits(out)

    hidden = state.hidden
    root = recurrent.Root(self.fed_back(hidden), self._logits(hidden))
    return run, start, root

  def commit(
    self, state: State, table: paged.PageTable, rows: base.Committed
  ) -> State:
    """Writes rows made of true features; runs the layer on the last one."""
    features = self.feature(rows.taps)
    tokens = rows.following()
    x = self.layer.inputs(self.embedding[...][tokens], features)
    positions = table.lengths[:, None] + jnp.arange(tokens.shape[1])
    k, v = self.layer.rows(x, *self.layer.turns(positions))
    last_x, last_feature, last_position = (
      recurrent.at_last(y, rows) for y in (x, features, positions)
    )
    q = self.layer.queries(last_x, *self.layer.turns(last_position))
    pages, mixed = recurrent.write(state.pages, table, rows, q, k, v)
    hidden = self.layer.finish(last_feature, mixed)
    return recurrent.newest(state, pages, hidden, rows)

  def _logits(self, hidden):
    return (self.normed(hidden) @ self.head[...]).astype(jnp.float32)

  def token_ids(self) -> Int[Array, 'Vd'] | None:
    """Target ids of the head's columns; None for all."""
    return borrowed.value(self.draft_token_ids)

  # --- checkpoints ---

  def leaves(self) -> dict[str, nnx.Param]:
    """The parameters by the names of `rules`."""
    found = {'fc': self.fc, 'norm': self.norm, 'head': self.head}
    if self.fc_norm is not None:
      found['fc_norm'] = self.fc_norm
    for name in eagle3_layer.array_shapes(self.config.layer):
      found[name] = getattr(self.layer, name)
    return found

  def saved(self) -> dict[str, Array]:
    """What a checkpoint holds: `fc` takes in the scales of the taps."""
    found = {name: leaf[...] for name, leaf in self.leaves().items()}
    found['fc'] = self.tap_scale[...].reshape(-1, 1) * found['fc']
    return found


def _check_borrowed(config, loss_config, arrays):
  size, gain = config.draft_vocab_size, arrays.final_norm
  borrowed.check(
    arrays,
    embedding=(config.vocab_size, config.width),
    head=(config.width, size or config.vocab_size),
    draft_token_ids=size and (size,),
    final_norm=None if gain is None else (config.width,),
  )
  if loss_config.needs_teacher and arrays.target_head is None:
    raise errors.UserError(
      'eagle3: kl, tv and lk_hybrid compare with the law of the target, whose'
      ' head is not borrowed: use `borrowed.from_target`, or train with ce=1'
      ' and the others 0'
    )


METHOD = method.PlainMethod(
  name='eagle3',
  keys=CONFIG_KEYS,
  config_class=Config,
  loss_class=LossConfig,
  drafter_class=Eagle3,
  rules=rules,
)
