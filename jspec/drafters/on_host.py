# SPDX-License-Identifier: MIT
"""Drafters that think on the host, and their place on the device.

Offline decoding reaches them from inside its program, by a callback. A serving
engine looks at every round of theirs instead: it asks the host for drafts of
the rows' texts and hands them to the round, so that no program waits for
Python, and a drafter that raises costs drafts and not answers.
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.drafters import base
from jspec.typing import Array, Float, Int, Key

# Tokens [B, T], parents [B, T], num_nodes [B], confidence [B, T].
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@runtime_checkable
class Host(Protocol):
  """What proposes, in Python."""

  def propose(
    self,
    buffer: np.ndarray,
    lengths: np.ndarray,
    anchor: np.ndarray,
    rows: np.ndarray | None = None,
  ) -> Arrays:
    """Drafts as functions of the texts: the arrays of a `tree.Draft`.

    Args:
      buffer: committed tokens [B, S].
      lengths: how many are real [B].
      anchor: the token behind them [B].
      rows: numbers [B] that stay the same while a text grows; None: 0, 1, ...
    """


@runtime_checkable
class OnHost(Protocol):
  """A drafter whose proposals come from `host`."""

  host: Host
  num_draft_tokens: int


class Place(nnx.Module):
  """Stands for such a drafter on the device, and drafts nothing itself."""

  def __init__(self, num_draft_tokens: int):
    self.taps = ()
    self.num_draft_tokens = num_draft_tokens
    self.confidence_depends = 'prefix'  # The host's drafts are functions of it.

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> None:
    """Nothing: the host knows the texts."""
    return None

  def propose(
    self,
    state: None,
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """The anchors alone, where the host gave no drafts."""
    del state, table, temperature, keys
    alone = tree.plain(anchor)
    num_rows, num_nodes = anchor.shape[0], self.num_draft_tokens + 1
    return tree.Draft(
      tokens=jnp.broadcast_to(alone.tokens, (num_rows, num_nodes)),
      parents=tree.chain_parents(num_rows, num_nodes),
      num_nodes=alone.num_nodes,
      confidence=jnp.ones((num_rows, num_nodes), jnp.float32),
    )

  def commit(
    self, state: None, table: paged.PageTable, rows: base.Committed
  ) -> None:
    """Nothing to take in."""
    return None
