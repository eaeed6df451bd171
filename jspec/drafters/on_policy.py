# SPDX-License-Identifier: MIT
"""On-policy distillation: the target judges what the drafter proposed.

Tokens are the drafter's own, so KL(q || p) is estimated at them (AngelSpec):

  Delta = log p - log q,      k3 = e^Delta - Delta - 1  >= 0

in two streams. Proposals up to the first that the target's argmax contradicts
are accepted, the rest rejected, and the rejected fade with their depth:

  loss = (a sum_acc k3 + r sum_rej w_k k3) / (a num_acc + r sum_rej w_k)
  w_k  = decay^(k - 1)

Logarithms are held from below and k3 from above, where they give no gradient.
The first G rows of `targets.branches.score` are the states that judge them.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.kernels.linear_xent import api as linear_xent
from jspec.typing import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicy:
  """Weights of the two streams.

  Attributes:
    accepted: weight a of the accepted prefix.
    rejected: weight r of what follows.
    decay: factor of a rejected proposal per depth; 1 for none.
    max_loss: k3 counts as this at most; None for no limit.
    min_logp: log p and log q count as this at least; None for no limit.
    chunk: blocks of a row whose logits are held at once.
  """

  accepted: float = 1.0
  rejected: float = 1.0
  decay: float = 0.8
  max_loss: float | None = 10.0
  min_logp: float | None = -10.0
  chunk: int = 16

  def __post_init__(self):
    checks = (
      ('accepted', self.accepted >= 0, 'at least 0'),
      ('rejected', self.rejected >= 0, 'at least 0'),
      ('rejected', self.accepted + self.rejected > 0, 'one of the two above 0'),
      ('decay', 0 < self.decay <= 1, 'above 0, at most 1'),
      ('max_loss', self.max_loss is None or self.max_loss > 0, 'above 0'),
      ('min_logp', self.min_logp is None or self.min_logp < 0, 'below 0'),
      ('chunk', self.chunk >= 1, 'at least 1'),
    )
    for name, holds, expected in checks:
      if not holds:
        raise errors.UserError(
          f'on-policy {name}={getattr(self, name)}: expected {expected}'
        )


def loss(
  config: OnPolicy,
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D V'],
  proposed: Int[Array, 'B A G'],
  counts: Bool[Array, 'B A G'],
  teacher_hidden: Float[Array, 'B A G Dt'],
  teacher_head: Float[Array, 'Dt V'],
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss of blocks of proposals, without the logits of all slots.

  Args:
    config: weights.
    hidden: slots after the final norm, as they were when they proposed.
    head: of the drafter.
    proposed: columns of the head that the slots proposed.
    counts: slots that hold a proposal, a prefix of every block.
    teacher_hidden: the target's normed states that judge each proposal (of the
      row before it).
    teacher_head: the target's, with the same columns.

  Returns:
    The loss and metrics: 'on_policy_weight' is the sum it was divided by, for
    the mean over several batches.
  """

  def logs(hidden, head):
    rows, _, num_slots, width = hidden.shape
    out = linear_xent.linear_xent(
      hidden.reshape(rows, -1, width),
      head,
      labels=proposed.reshape(rows, -1),
      row_chunk=config.chunk * num_slots,
    )
    return [out[name].reshape(proposed.shape) for name in ('ce', 'is_hit')]

  logq, _ = logs(hidden, head)
  logp, is_match = logs(*jax.lax.stop_gradient((teacher_hidden, teacher_head)))
  return streams(config, -logp, -logq, is_match, counts)


def streams(
  config: OnPolicy,
  logp: Float[Array, '*any G'],
  logq: Float[Array, '*any G'],
  is_match: Bool[Array, '*any G'],
  counts: Bool[Array, '*any G'],
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss from the log-probabilities of the proposed tokens.

  Args:
    config: weights.
    logp: of the target.
    logq: of the drafter.
    is_match: whether the target's argmax is the proposal.
    counts: as in `loss`.
  """
  if config.min_logp is not None:
    logp, logq = (jnp.maximum(x, config.min_logp) for x in (logp, logq))
  delta = jax.lax.stop_gradient(logp) - logq
  k3 = jnp.exp(delta) - delta - 1
  num_clamped = jnp.zeros(())
  if config.max_loss is not None:
    num_clamped = jnp.sum((k3 > config.max_loss) & counts)
    k3 = jnp.minimum(k3, config.max_loss)
  is_accepted = jnp.cumprod(is_match & counts, axis=-1).astype(bool)
  fade = config.decay ** jnp.arange(logp.shape[-1], dtype=jnp.float32)
  rejected = fade * (counts & ~is_accepted)
  weights = config.accepted * is_accepted + config.rejected * rejected
  total = jnp.sum(weights)
  value = jnp.sum(weights * k3) / jnp.maximum(total, 1e-6)
  return value, {
    'on_policy': value,
    'on_policy_weight': total,
    'on_policy_accepted': jnp.sum(is_accepted * k3),
    'on_policy_rejected': jnp.sum(rejected * k3),
    'num_accepted': jnp.sum(is_accepted),
    'num_rejected': jnp.sum(counts & ~is_accepted),
    'num_clamped': num_clamped,
  }
