# SPDX-License-Identifier: MIT
"""MTP: one more decoder layer that predicts the token after next, repeatedly.

  x_i   = eh_proj [enorm(E[token_{i+1}]), hnorm(state_i)]
  out   = final_layernorm(layer(x))
  logits of token_{i+2} = out head          embedding and head are the target's

Row i's first state is what the target's last layer said about token i; each
further token runs the same layer on its own output, one position on (DeepSeek
-V3, arXiv 2412.19437, section 2.2, applied recursively as servers do). Where
published heads differ is in the config: the order of the two halves
(`embedding_first`), and which side of a final norm the states come from
(`input_postnorm`: the target's; `feedback_postnorm`: the layer's own).

Training simulates these steps from every row at once (test-time training): at
step s row i sees the keys that rows up to i wrote at step 0, and its own keys
of steps 1..s, which is what decoding sees.

State while decoding: the layer's key and value rows of committed tokens, made
from the target's true states, and the last row's output.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  borrowed,
  losses,
  method,
  mtp_config,
  mtp_layer,
  mtp_loss,
  mtp_steps,
  recurrent,
  scratch,
  sequential,
  teacher,
)
from jspec.drafters import options as options_lib
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import layers, spread
from jspec.typing import Array, Bool, Float, Int, Key

Config = mtp_config.Config
LossConfig = mtp_loss.LossConfig
OPTIONS = mtp_config.OPTIONS
State = recurrent.State


class MTP(nnx.Module):
  """An MTP drafter; implements `drafters.base.TrainableDrafter`."""

  # The teacher's states are the drafter's own tap.
  needs_last = False

  def __init__(
    self,
    config: Config,
    loss_config: LossConfig,
    arrays: borrowed.Borrowed,
    key: Key[Array, ''],
  ):
    """Starts from random weights over the borrowed arrays.

    Raises:
      UserError: the borrowed arrays do not fit the config.
    """
    mtp_config.check_borrowed(config, arrays)
    self.method = METHOD.name
    self.config = config
    self.loss_config = loss_config
    self.taps = config.taps
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens
    self.embedding = borrowed.Frozen(arrays.embedding)
    self.head = borrowed.Frozen(arrays.head)
    self.target_norm = borrowed.Frozen(arrays.final_norm)
    self.target_norm_eps = arrays.norm_eps
    self.draft_token_ids = borrowed.frozen(arrays.draft_token_ids)
    key_in, key_hidden, key_layer = jax.random.split(key, 3)
    shapes = mtp_config.array_shapes(config)
    self.enorm = nnx.Param(jnp.ones(shapes['enorm']))
    self.hnorm = nnx.Param(jnp.ones(shapes['hnorm']))
    self.final_layernorm = nnx.Param(jnp.ones(shapes['final_layernorm']))
    self.eh_proj = _matrix(key_in, shapes['eh_proj'])
    self.hidden_proj = _matrix(key_hidden, shapes.get('hidden_proj'))
    # With the target's own width its head is the drafter's head.
    head = None if self.hidden_proj is None else arrays.target_head
    self.target_head = borrowed.frozen(head)
    self.layer = mtp_layer.Layer(
      config.layer, mtp_layer.random_arrays(config.layer, key_layer)
    )

  def set_options(self, **options) -> None:
    """Changes how it decodes: fields of `OPTIONS`.

    Raises:
      UserError: no such option, or a value that does not fit.
    """
    self.config = config = options_lib.replaced(self.config, OPTIONS, options)
    self.num_draft_tokens = config.tree_size or config.num_draft_tokens

  def leaves(self) -> dict[str, nnx.Param]:
    """The parameters by the names of `rules`."""
    own = ('enorm', 'hnorm', 'eh_proj', 'final_layernorm', 'hidden_proj')
    found = {name: getattr(self, name) for name in own}
    found = {name: leaf for name, leaf in found.items() if leaf is not None}
    return found | self.layer.leaves()

  def saved(self) -> dict[str, Array]:
    """What a checkpoint holds; nothing is folded."""
    return {name: leaf[...] for name, leaf in self.leaves().items()}

  @property
  def confidence_depends(self) -> str:
    """As `base.confidence_depends` says."""
    return sequential.depends(self.config.tree_size)

  # --- parts ---

  def inputs(
    self,
    tokens: Int[Array, 'B T'],
    states: Float[Array, 'B T D'],
    is_zeroed: Bool[Array, 'B T'],
  ) -> Float[Array, 'B T D']:
    """Joins the next token's embedding with the state before it."""
    eps = self.config.norm_eps
    embedded = spread.lookup(self.embedding[...], tokens)
    embedded = jnp.where(is_zeroed[..., None], 0, embedded)
    halves = [
      layers.rms_norm(embedded, self.enorm[...], eps),
      layers.rms_norm(states, self.hnorm[...], eps),
    ]
    if not self.config.embedding_first:
      halves.reverse()
    return jnp.concatenate(halves, axis=-1) @ self.eh_proj[...]

  def first_states(
    self, taps: Float[Array, 'B S 1 Dt']
  ) -> Float[Array, 'B S D']:
    """The states of step 0, from the target's last layer."""
    states = taps[:, :, 0].astype(self.eh_proj[...].dtype)
    if self.config.input_postnorm:
      states = layers.rms_norm(
        states, self.target_norm[...], self.target_norm_eps
      )
    if self.hidden_proj is not None:
      states = states @ self.hidden_proj[...]
    return states

  def outputs(
    self, x: Float[Array, 'B T D']
  ) -> tuple[Float[Array, 'B T D'], Float[Array, 'B T D']]:
    """The state for the next step, and what the head sees."""
    normed = self._final(x)
    return (normed if self.config.feedback_postnorm else x), normed

  def _final(self, x):
    return layers.rms_norm(x, self.final_layernorm[...], self.config.norm_eps)

  # --- training ---

  def calibrate(self, batch: base.DraftBatch) -> None:
    """Nothing to fit: both inputs are normed."""
    del batch

  def train_hidden(
    self, batch: base.DraftBatch, rows: Int[Array, 'B A'] | None = None
  ) -> Float[Array, 'B A G D']:
    """What the head sees at every simulated step of some rows, or of all."""
    return mtp_steps.run(self, batch, rows)[0]

  def loss(
    self, batch: base.DraftBatch, key: Key[Array, '']
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss over all rows, or over `num_anchors` of each sequence.

    The labels of row i are the contiguous run of answer tokens from i + 2 on. A
    label outside the draft vocabulary ends it.
    """
    config, rows = self.loss_config, None
    labels = mtp_loss.labels(batch, self.token_ids(), config.ttt_length)
    if config.num_anchors:
      rows, labels = mtp_loss.sample(labels, config.num_anchors, key)
    counts = jnp.cumprod(labels.exists & labels.inside, axis=-1)
    return self.loss_at(batch, labels, counts.astype(bool), rows)

  def loss_at(
    self,
    batch: base.DraftBatch,
    labels: mtp_loss.Labels,
    counts: Bool[Array, 'B A G'],
    rows: Int[Array, 'B A'] | None = None,
  ) -> tuple[Float[Array, ''], dict[str, Array]]:
    """The loss over the slots that `counts` names, of some rows or of all.

    `tokens_per_round` and the accuracies are those of a chain against the text;
    with the target's argmax for labels, `teacher_tokens_per_round` is against
    that.
    """
    config = self.loss_config
    hidden, drafted = mtp_steps.run(self, batch, rows)
    head, columns = self.head[...], None
    if self.target_head is not None:
      head, columns = self.target_head[...], self.token_ids()
    states = None
    if config.needs_teacher:
      states = teacher.states(
        base.LastHidden(batch.taps[:, :, 0], is_normed=False),
        self.target_norm[...],
        self.target_norm_eps,
        'MTP',
      )

    def behind(x):
      found = mtp_loss.window(x, batch.segments, 1, config.ttt_length)
      return found if rows is None else anchors_lib.gather(found, rows)

    goal = labels.columns
    if config.ce_of_teacher:
      choice = linear_xent.linear_argmax(
        spread.flat(states[:, :, None]),
        head if columns is None else jnp.take(head, columns, axis=1),
        row_chunk=config.chunk,
      )
      goal = behind(choice.reshape(states.shape[:2]))
    loss, metrics, is_hit = mtp_loss.compute(
      config,
      hidden,
      self.head[...],
      goal,
      counts,
      behind(states) if config.compared else None,
      head,
      columns,
    )
    if config.ce_of_teacher:
      agrees = losses.acceptance(is_hit & labels.inside, labels.exists)
      metrics['teacher_tokens_per_round'] = agrees['tokens_per_round']
      is_hit = drafted == labels.columns
    metrics |= losses.acceptance(is_hit & labels.inside, labels.exists)
    return loss, {'loss': loss, **metrics}

  # --- decoding ---

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> State:
    """An empty pool, and zeros behind nothing."""
    c = self.config
    layer = (c.num_kv_heads, c.head_width, c.width, self.eh_proj[...].dtype)
    return recurrent.empty_state(table, num_pages, page_size, *layer)

  def propose(
    self,
    state: State,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Runs the layer on its own output behind the last committed row."""
    config, num_rows = self.config, anchor.shape[0]

    def start(num_scratch):
      return scratch.empty(num_rows, num_scratch, state.pages)

    def run(memory, nodes):
      positions = recurrent.positions(nodes, table)
      # No draft stands at position 0.
      x = self.inputs(nodes.tokens, nodes.hidden, positions < 0)
      heads = self.layer.before_attention(x, positions)
      memory, mixed = recurrent.attend(
        memory, *heads, nodes, state.pages, table
      )
      hidden, normed = self.outputs(self.layer.after_attention(x, mixed))
      return memory, hidden, self._logits(normed)

    normed = state.hidden
    if not config.feedback_postnorm:
      normed = self._final(normed)
    return recurrent.propose(
      run,
      start,
      recurrent.Root(state.hidden, self._logits(normed)),
      anchor,
      self.token_ids(),
      temperature,
      keys,
      depth=config.num_draft_tokens,
      size=config.tree_size,
      width=config.tree_width,
      support=config.support,
    )

  def commit(
    self, state: State, table: paged.PageTable, rows: base.Committed
  ) -> State:
    """Writes rows made of true states; runs the layer on the last one."""
    positions = table.lengths[:, None] + jnp.arange(rows.tokens.shape[1])
    x = self.inputs(
      rows.following(),
      self.first_states(rows.taps),
      mtp_steps.is_zeroed(self, positions, 0),
    )
    q, k, v = self.layer.before_attention(x, positions)
    pages, mixed = recurrent.write(
      state.pages, table, rows, recurrent.at_last(q, rows), k, v
    )
    last = self.layer.after_attention(recurrent.at_last(x, rows), mixed)
    return recurrent.newest(state, pages, self.outputs(last)[0], rows)

  def _logits(self, normed):
    return (normed @ self.head[...]).astype(jnp.float32)

  def token_ids(self) -> Int[Array, 'Vd'] | None:
    """Target ids of the head's columns; None for all."""
    return borrowed.value(self.draft_token_ids)


def _matrix(key, shape):
  """A random matrix, scaled by its inputs; none without a shape."""
  if shape is None:
    return None
  return nnx.Param(shape[0] ** -0.5 * jax.random.normal(key, shape))


METHOD = method.PlainMethod(
  name='mtp',
  keys=mtp_config.CONFIG_KEYS,
  config_class=Config,
  loss_class=LossConfig,
  drafter_class=MTP,
  rules=mtp_config.rules,
)
