# SPDX-License-Identifier: MIT
"""One training step as a pure function of state and batch.

  loss, grads = drafter.loss(batch, fold_in(key, step))
  state       = optimiser(grads)      if loss and gradient norm are finite
              = state, num_skipped+1  otherwise

The step counts batches, so it goes on over a skipped one; the optimiser's own
count (the learning rate) and the average do not. Every draw comes from the
run's key and the step, so a resumed run draws what the uninterrupted one draws.

The average of parameters, if there is one, follows the n steps made by

  average += (1 - d) (params - average)
  d = min(ema_decay, (1 + n) / (10 + n))

so that it forgets the initial weights early.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jspec.drafters import base
from jspec.drafters import parts as parts_lib
from jspec.targets import branches
from jspec.train import accumulation
from jspec.typing import Array, Float, Key, PyTree

# The target's normed states [B, A, G + 1, D] behind proposed blocks.
Judge = Callable[..., Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that training changes: arrays, or their shapes, or where they lie.

  Attributes:
    params: path -> array, the drafter's `nnx.Param`s and nothing borrowed.
    opt_state: of the optimiser.
    step: batches seen, a whole number.
    num_skipped: batches whose loss or gradient was not finite.
    key: the run's key; a step folds its number in.
    average: of `params` over the steps; None in a run without.
  """

  params: PyTree
  opt_state: PyTree
  step: Any
  num_skipped: Any
  key: Any
  average: PyTree = None

  @property
  def result(self) -> PyTree:
    """The parameters to evaluate and to export."""
    return self.params if self.average is None else self.average


@dataclasses.dataclass(frozen=True)
class Parts:
  """A drafter taken apart: `merge(params, frozen)` puts it together.

  Of arrays, or of their shapes.

  `frozen` holds what is borrowed from the target; it is an argument of the
  step, so it is neither a constant of the program nor donated.
  """

  params: dict[str, Any]
  frozen: PyTree
  merge: Callable[[dict[str, Any], PyTree], Any]


def split(drafter: Any) -> Parts:
  """Takes a drafter apart into named parameters and the rest."""
  graphdef, trainable, frozen = nnx.split(drafter, nnx.Param, ...)
  named, treedef = jax.tree_util.tree_flatten_with_path(trainable)
  names = [
    jax.tree_util.keystr(path, simple=True, separator='.').removesuffix(
      '.value'
    )
    for path, _ in named
  ]

  def merge(params, frozen):
    leaves = [params[name] for name in names]
    trainable = jax.tree_util.tree_unflatten(treedef, leaves)
    return nnx.merge(graphdef, trainable, frozen)

  params = {name: leaf for name, (_, leaf) in zip(names, named, strict=True)}
  return Parts(params, frozen, merge)


def init(
  parts: Parts,
  optimizer: optax.GradientTransformation,
  key: Key[Array, ''],
  *,
  has_average: bool = False,
) -> TrainState:
  """Builds the state of step 0."""
  # Own buffers for all: the step donates the state.
  average = jax.tree.map(jnp.array, parts.params) if has_average else None
  return TrainState(
    params=jax.tree.map(jnp.array, parts.params),
    opt_state=optimizer.init(parts.params),
    step=jnp.zeros((), jnp.int32),
    num_skipped=jnp.zeros((), jnp.int32),
    key=key,
    average=average,
  )


def train_step(
  merge: Callable[[dict[str, Array], PyTree], Any],
  taps_of: Callable[..., tuple[Array, base.LastHidden | None]],
  optimizer: optax.GradientTransformation,
  judge: Judge | None,
  state: TrainState,
  frozen: PyTree,
  target: PyTree,
  batch: dict[str, Array],
  *,
  ema_decay: float = 0.0,
  num_micro_batches: int = 1,
  dtype: Any = jnp.float32,
) -> tuple[TrainState, dict[str, Array]]:
  """Makes one step; jit it with the first four bound and `state` donated.

  Args:
    merge: from `split`.
    taps_of: gives the taps and last states of a batch, from the store or from
      the target.
    optimizer: from `optim.optimizer`.
    judge: from `judge_of`, for a drafter that wants its proposals judged.
    state: of the step before.
    frozen: what the drafter borrows.
    target: the target's arrays when training online, else an empty tree.
    batch: packed rows.
    ema_decay: of the average, in a state that has one.
    num_micro_batches: portions of the batch to go through one by one.
    dtype: of the states of the target that the drafter gets.

  Returns:
    The new state and metrics: the drafter's, `loss`, `grad_norm`, `skipped`
    (0 or 1 for this step), `num_tokens` (of the batch, without padding).

  What the device does shows in traces under the scopes `target`, `draft` (with
  `loss` inside) and `optimizer`.
  """
  key = jax.random.fold_in(state.key, state.step)

  def loss_of(params, batch, key):
    with jax.named_scope('target'):
      draft_batch = as_draft_batch(batch, *taps_of(target, batch), dtype)
    drafter = merge(params, frozen)
    seen = judged(judge, drafter, target, draft_batch, key)
    with jax.named_scope('draft'):
      return drafter.loss(seen, key)

  loss, metrics, grads = accumulation.value_and_grad(
    loss_of, num_micro_batches, state.params, batch, key
  )
  with jax.named_scope('optimizer'):
    new_state, grad_norm = update(optimizer, state, loss, grads, ema_decay)
  metrics = dict(
    metrics,
    loss=loss,
    grad_norm=grad_norm,
    skipped=new_state.num_skipped - state.num_skipped,
    num_tokens=jnp.count_nonzero(batch['segments']),
  )
  return new_state, metrics


def update(
  optimizer: optax.GradientTransformation,
  state: TrainState,
  loss: Float[Array, ''],
  grads: PyTree,
  ema_decay: float,
) -> tuple[TrainState, Float[Array, '']]:
  """Moves the state by a gradient; also returns the gradient's norm."""
  grad_norm = optax.tree.norm(grads)
  is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)

  def keep(new, old):
    return jax.tree.map(lambda n, o: jnp.where(is_finite, n, o), new, old)

  skipped = 1 - is_finite.astype(jnp.int32)
  new_state = TrainState(
    params=keep(params, state.params),
    opt_state=keep(opt_state, state.opt_state),
    step=state.step + 1,
    num_skipped=state.num_skipped + skipped,
    key=state.key,
  )
  if state.average is not None:
    num_made = new_state.step - new_state.num_skipped
    rate = 1 - jnp.minimum(ema_decay, (1 + num_made) / (10 + num_made))
    average = jax.tree.map(
      lambda mean, x: mean + rate * (x - mean), state.average, params
    )
    new_state = dataclasses.replace(
      new_state, average=keep(average, state.average)
    )
  return new_state, grad_norm


def eval_step(
  merge: Callable[[dict[str, Array], PyTree], Any],
  taps_of: Callable[..., tuple[Array, base.LastHidden | None]],
  judge: Judge | None,
  params: dict[str, Array],
  frozen: PyTree,
  target: PyTree,
  batch: dict[str, Array],
  key: Key[Array, ''],
  *,
  dtype: Any = jnp.float32,
) -> dict[str, Array]:
  """Measures a batch on the anchors that `key` fixes."""
  draft_batch = as_draft_batch(batch, *taps_of(target, batch), dtype)
  drafter = merge(params, frozen)
  seen = judged(judge, drafter, target, draft_batch, key)
  loss, metrics = drafter.loss(seen, key)
  return dict(parts_lib.take(metrics)[0], loss=loss)


def as_draft_batch(
  batch: dict[str, Array],
  taps: Array,
  last: base.LastHidden | None,
  dtype: Any = jnp.float32,
) -> base.DraftBatch:
  """Names the arrays of the pipeline as the drafters know them.

  Args:
    batch: packed rows.
    taps: the target's states.
    last: its last states, or None.
    dtype: of the states that the drafter gets.
  """
  if last is not None:
    last = dataclasses.replace(last, hidden=last.hidden.astype(dtype))
  return base.DraftBatch(
    tokens=batch['tokens'],
    positions=batch['positions'],
    segments=batch['segments'],
    is_answer=batch['is_answer'].astype(bool),
    taps=taps.astype(dtype),
    last=last,
  )


def captured(
  drafter: base.TrainableDrafter, num_layers: int
) -> tuple[int, ...]:
  """Target layers a store must hold for a drafter: its taps, and the last."""
  taps = tuple(drafter.taps)
  last = num_layers - 1
  return taps + (last,) if drafter.needs_last and last not in taps else taps


def stored_taps(
  taps: tuple[int, ...], last_layer: int | None
) -> Callable[..., tuple[Array, base.LastHidden | None]]:
  """Builds a function that takes the taps that came with the batch.

  Args:
    taps: layers of the drafter; the first of the captured ones.
    last_layer: number of the target's last layer, if the drafter wants it.
  """

  def taps_of(target, batch):
    del target
    states = batch['taps'].astype(jnp.float32)
    if last_layer is None:
      return states, None
    index = taps.index(last_layer) if last_layer in taps else len(taps)
    # A store holds what layers give out: the final norm is still to come.
    last = base.LastHidden(states[:, :, index], is_normed=False)
    return states[:, :, : len(taps)], last

  return taps_of


def online_taps(
  graphdef: Any, taps: tuple[int, ...], *, needs_last: bool
) -> Callable[..., tuple[Array, base.LastHidden | None]]:
  """Builds a function that runs the frozen target on the batch."""

  def taps_of(target, batch):
    model = nnx.merge(graphdef, target)
    hidden, states = jax.lax.stop_gradient(
      model.encode(batch['tokens'], batch['positions'], batch['segments'], taps)
    )
    last = base.LastHidden(hidden, is_normed=True) if needs_last else None
    return states, last

  return taps_of


def judge_of(graphdef: Any) -> Judge:
  """Builds a function that runs the frozen target on proposed blocks."""

  def judge(target, batch, anchors, tokens):
    return branches.score(
      nnx.merge(graphdef, target),
      batch.tokens,
      batch.positions,
      batch.segments,
      jnp.where(anchors.keep, anchors.index, -1),
      tokens,
    )

  return judge


def judged(
  judge: Judge | None,
  drafter: Any,
  target: PyTree,
  batch: base.DraftBatch,
  key: Key[Array, ''],
) -> base.DraftBatch:
  """The batch with the drafter's own proposals, if its loss reads them."""
  if judge is None:
    return batch
  # Other draws than those of the loss.
  with jax.named_scope('draft'):
    anchors, tokens = drafter.rollout(batch, jax.random.fold_in(key, 1))
  with jax.named_scope('target'):
    hidden = jax.lax.stop_gradient(judge(target, batch, anchors, tokens))
  hidden = hidden.astype(batch.taps.dtype)
  return dataclasses.replace(
    batch, judged=base.Judged(anchors.index, anchors.keep, tokens, hidden)
  )
