# SPDX-License-Identifier: MIT
"""The teacher: the target's law of the token behind every token.

  p(token behind t) = softmax(final_norm(h_t) head)

where h_t is the output of the target's last layer. Some captures hand it over
before the final norm and some after; which, goes with the states
(`base.LastHidden.is_normed`), so the norm is applied exactly once. No states,
no teacher: that is an error, never a loss term left out.
"""

import jax

from jspec import errors
from jspec.drafters import base
from jspec.nn import layers
from jspec.typing import Array, Float


def states(
  last: base.LastHidden | None,
  final_norm: Float[Array, 'D'] | None,
  norm_eps: float,
  wanted_by: str,
) -> Float[Array, 'B S D']:
  """What the target's head is applied to, without gradient.

  Args:
    last: of the batch.
    final_norm: the target's gain.
    norm_eps: the target's.
    wanted_by: who needs it, for the message.

  Raises:
    UserError: the batch has no last states, or they lack the norm and the
      drafter borrowed none.
  """
  if last is None:
    raise errors.UserError(
      f'{wanted_by} needs the last states of the target and the batch has none:'
      ' capture the last layer too (data.store_taps), or train online'
    )
  if last.is_normed:
    return jax.lax.stop_gradient(last.hidden)
  if final_norm is None:
    raise errors.UserError(
      f'{wanted_by}: the last states are not normed and the drafter has no'
      ' final norm of the target: borrow it (`borrowed.from_target`)'
    )
  normed = layers.rms_norm(last.hidden, final_norm, norm_eps)
  return jax.lax.stop_gradient(normed)
