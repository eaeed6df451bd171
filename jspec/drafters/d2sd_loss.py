# SPDX-License-Identifier: MIT
"""The loss of a variable-prefix drafter (arXiv 2606.04446, section 2.5).

A block is given l true tokens behind its anchor and learns the rest:

  slots  anchor  t_1 .. t_l  MASK .. MASK     Pr(l = j) ~ beta^j, j < G
  loss   sum_{k > l} w_k L_k / sum_{k > l} w_k,   w_k = exp(-(k - l - 1) / tau)

With l = 0 that is DFlash's loss, so beta = 0 trains a DFlash. The paper gives
neither beta nor tau; tau is the mix's `decay_gamma`. A block whose run of
labels ends within its prefix has nothing to learn and no weight.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jspec import errors
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  block_drafter,
  block_loss,
)
from jspec.trees import branches
from jspec.typing import Array, Float, Int, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """What is minimised.

  Attributes:
    block: anchors and terms, for both drafters.
    prefix_decay: beta; 0 gives no block a prefix, 1 makes all lengths as
      likely.
  """

  block: block_loss.LossConfig = block_loss.LossConfig()
  prefix_decay: float = 0.85

  def __post_init__(self):
    if not 0 <= self.prefix_decay <= 1:
      raise errors.UserError(
        f'loss prefix_decay={self.prefix_decay}: expected 0..1'
      )
    if self.block.on_policy:
      raise errors.UserError(
        f'loss on_policy={self.block.on_policy}: d2sd has no such term; set it'
        ' to 0'
      )


def prefix_lengths(
  key: Key[Array, ''], shape: tuple[int, ...], num_labels: int, decay: float
) -> Int[Array, 'B A']:
  """Draws how many true tokens every block is given, 0 .. num_labels - 1."""
  share = decay ** np.arange(num_labels)  # 0 ** 0 is 1.
  below = jnp.asarray(np.cumsum(share)[:-1] / share.sum(), jnp.float32)
  uniform = jax.random.uniform(key, shape)
  return jnp.sum(uniform[..., None] >= below, axis=-1, dtype=jnp.int32)


def slots(
  drafter: block_drafter.BlockDrafter,
  batch: base.DraftBatch,
  anchors: anchors_lib.Anchors,
  given: Int[Array, 'B A'],
) -> Float[Array, 'B A T D']:
  """Embeds anchors, their `given` next tokens, and masks."""
  size = drafter.config.block_size
  index, _ = anchors_lib.label_index(anchors, size - 1, batch.tokens.shape[1])
  # Fed as in decoding, one row a block.
  fed = branches.prompts(
    jnp.take_along_axis(batch.tokens, anchors.index, axis=1).reshape(-1),
    anchors_lib.gather(batch.tokens, index).reshape(-1, size - 1),
    given.reshape(-1, 1),
    drafter.config.mask_token_id,
    size,
  )
  return drafter.embed(fed.reshape(*given.shape, size))


def loss(
  drafter: block_drafter.BlockDrafter,
  batch: base.DraftBatch,
  anchors: anchors_lib.Anchors,
  given: Int[Array, 'B A'],
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The configured mix over the slots behind each block's prefix.

  Args:
    drafter: the variable-prefix drafter; it has no heads of its own.
    batch: the sequences.
    anchors: where blocks start.
    given: true tokens behind each anchor.

  Returns:
    The loss, and `objective.compute`'s metrics; acceptance is that of blocks
    that were given nothing.

  Raises:
    UserError: a term needs a teacher and the batch has none.
  """
  hidden = drafter.train_hidden(
    batch, anchors, slots(drafter, batch, anchors, given)
  )
  return block_loss.loss(drafter, batch, anchors, hidden, given)
