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

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
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
  method,
  recurrent,
  scratch,
  teacher,
)
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.nn import layers
from jspec.typing import Array, Float, Int, Key

Config = eagle3_config.Config
LossConfig = eagle3_loss.LossConfig
OPTIONS = eagle3_config.OPTIONS
CONFIG_KEYS = eagle3_config.CONFIG_KEYS
rules = eagle3_config.rules


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """What changes while decoding.

  Attributes:
    pages: key and value rows of the committed tokens.
    hidden: output of each row's last committed one; 0 before the first.
  """

  pages: paged.Pages
  hidden: Float[Array, 'B D']


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
    self.method = 'eagle3'
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens
    self.needs_last = loss_config.needs_teacher
    self.embedding = borrowed.Frozen(arrays.embedding)
    self.draft_token_ids = _frozen(arrays.draft_token_ids)
    is_taught = self.needs_last
    self.teacher_norm = _frozen(arrays.final_norm if is_taught else None)
    self.teacher_head = _frozen(arrays.target_head if is_taught else None)
    self.teacher_eps = arrays.norm_eps
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
    for name, value in options.items():
      if name not in OPTIONS:
        raise errors.UserError(
          f'{name}: no option of this drafter; there are {", ".join(OPTIONS)}'
        )
      if not isinstance(value, int):
        raise errors.UserError(f'{name}={value!r}: expected int')
    self.config = dataclasses.replace(self.config, **options)
    self.num_draft_tokens = (
      self.config.tree_size or self.config.num_draft_tokens
    )

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

    Channels of a residual stream differ by orders of magnitude, and the few
    large ones would drown the rest in `fc`. A checkpoint holds the scale folded
    into `fc`. With `fc_norm` the gains of the norms do this.
    """
    if self.fc_norm is not None:
      return
    taps = np.asarray(batch.taps)[np.asarray(batch.segments) > 0]
    size = np.median(np.abs(taps), axis=0)
    self.tap_scale[...] = jnp.asarray(1 / np.maximum(size, 1e-6), jnp.float32)

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
    law = self._teacher(batch, wanted)
    hidden = self.train_hidden(batch, at, config.ttt_length)
    return eagle3_loss.loss(
      config,
      self.normed(hidden),
      self.head[...],
      self._value(self.draft_token_ids),
      wanted,
      law,
    )

  def _teacher(self, batch, wanted):
    """The law of each label: the state of the token before it."""
    if not self.loss_config.needs_teacher:
      return None
    states = teacher.states(
      batch.last, self._value(self.teacher_norm), self.teacher_eps, 'eagle3'
    )
    before = jnp.maximum(wanted.index - 1, 0)
    flat = before.reshape(before.shape[0], -1, 1)
    rows = jnp.take_along_axis(states, flat, axis=1)
    return eagle3_loss.Teacher(
      rows.reshape(*before.shape, -1), self.teacher_head[...]
    )

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> State:
    """No rows."""
    c = self.config
    dtype = self.fc[...].dtype
    pages = paged.init_pages(
      1, num_pages, page_size, c.num_kv_heads, c.head_width, dtype
    )
    rows = table.page_ids.shape[0]
    return State(pages, jnp.zeros((rows, c.width), dtype))

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
      self._value(self.draft_token_ids),
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
      first = nodes.level * nodes.tokens.shape[1]
      position = jnp.broadcast_to(
        (table.lengths + nodes.level)[:, None], nodes.tokens.shape
      )
      turns = self.layer.turns(position)
      x = self.layer.inputs(self.embedding[...][nodes.tokens], nodes.hidden)
      memory = scratch.write(memory, *self.layer.rows(x, *turns), first)
      mixed = scratch.attend(
        self.layer.queries(x, *turns),
        *memory,
        nodes.ancestors,
        state.pages,
        table,
        layer=0,
        first=first,
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
    num_rows, num_steps = rows.tokens.shape
    steps = jnp.broadcast_to(jnp.arange(num_steps), rows.tokens.shape)
    last = jnp.maximum(rows.num_rows - 1, 0)[:, None]
    following = jnp.roll(rows.tokens, -1, axis=1)
    following = jnp.where(steps == last, rows.next_token[:, None], following)
    features = self.feature(rows.taps)
    x = self.layer.inputs(self.embedding[...][following], features)
    k, v = self.layer.rows(x, *self.layer.turns(table.lengths[:, None] + steps))
    # A row without a page shows in the target's own commit: same table.
    pages, _ = paged.write(
      state.pages, table, k[None], v[None], steps, rows.num_rows
    )

    def at_last(values):
      index = last.reshape(num_rows, *(1,) * (values.ndim - 1))
      return jnp.take_along_axis(values, index, axis=1)

    # The last row sees itself as a node, and what is in the pages before it.
    before = jnp.maximum(table.lengths + rows.num_rows - 1, 0)
    mixed = block_tree_attention.block_tree_attention(
      self.layer.queries(at_last(x), *self.layer.turns(before[:, None])),
      at_last(k),
      at_last(v),
      pages.k,
      pages.v,
      layer=jnp.zeros((), jnp.int32),
      page_ids=table.page_ids,
      lengths=before,
      ancestors=tree.chain_words(num_rows, 1),
    )
    hidden = self.layer.finish(at_last(features), mixed)[:, 0]
    is_live = (rows.num_rows > 0)[:, None]
    return State(pages, jnp.where(is_live, hidden, state.hidden))

  def _logits(self, hidden):
    return (self.normed(hidden) @ self.head[...]).astype(jnp.float32)

  def _value(self, frozen):
    return None if frozen is None else frozen[...]

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


def _frozen(array):
  return nnx.data(None if array is None else borrowed.Frozen(array))


def _check_borrowed(config, loss_config, arrays):
  size = config.draft_vocab_size
  ids, gain = arrays.draft_token_ids, arrays.final_norm
  shapes = (
    ('embedding', arrays.embedding.shape, (config.vocab_size, config.width)),
    ('head', arrays.head.shape, (config.width, size or config.vocab_size)),
    ('draft_token_ids', None if ids is None else ids.shape, size and (size,)),
    ('final_norm', () if gain is None else gain.shape, (config.width,)),
  )
  for name, shape, expected in shapes:
    if shape not in (expected, ()):
      raise errors.UserError(
        f'borrowed {name} has shape {shape}, the drafter expects {expected};'
        ' is this the target it was made for?'
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
