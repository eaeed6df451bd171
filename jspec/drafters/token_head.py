# SPDX-License-Identifier: MIT
"""Heads that see the token before the slot: the interface, and training form.

A block drafter's slots are independent given the context. Such a head makes
slot k depend on the token of slot k - 1 (the anchor for the first): in training
on the true one, for all slots at once; in decoding on the drafted one, slot by
slot, while the backbone runs once.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int, PyTree


@runtime_checkable
class TokenHead(Protocol):
  """Turns a slot's state and the token before it into logits."""

  def start(self, hidden: Float[Array, '*batch D']) -> PyTree:
    """What is carried into the first slot of these states; None for nothing."""

  def states(
    self,
    hidden: Float[Array, '*batch D'],
    embedded: Float[Array, '*batch D'],
    tokens: Int[Array, '*batch'],
    carry: PyTree,
  ) -> tuple[Float[Array, '*batch Dr'], PyTree]:
    """States for `matrix` or `logits`, and what the next slot is carried."""

  def matrix(self, head: Float[Array, 'D V']) -> Float[Array, 'Dr V']:
    """What states are multiplied by to give logits: the form of losses."""

  def base(
    self, hidden: Float[Array, '*batch D'], head: Float[Array, 'D V']
  ) -> Float[Array, '*batch V'] | None:
    """What of the logits can be made for all slots at once."""

  def logits(
    self,
    states: Float[Array, '*batch Dr'],
    base: Float[Array, '*batch V'] | None,
    head: Float[Array, 'D V'],
  ) -> Float[Array, '*batch V']:
    """The same logits, from `base` (the form decoding takes)."""


def teacher_forced(
  head: TokenHead,
  hidden: Float[Array, 'B A G D'],
  embedded: Float[Array, 'B A G D'],
  tokens: Int[Array, 'B A G'],
) -> Float[Array, 'B A G Dr']:
  """States of all slots, given the true tokens before them."""
  first = head.start(hidden[:, :, 0])
  if first is None:
    return head.states(hidden, embedded, tokens, None)[0]

  def step(carry, inputs):
    states, carry = head.states(*inputs, carry)
    return carry, states

  by_depth = [jnp.moveaxis(x, 2, 0) for x in (hidden, embedded, tokens)]
  _, states = jax.lax.scan(step, first, tuple(by_depth))
  return jnp.moveaxis(states, 0, 2)
