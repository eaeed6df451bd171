# SPDX-License-Identifier: MIT
"""The logits behind a prefix, computed again and in two ways.

Scoring one node and scoring several reduce in another order, so the two differ
in the last bits. `Rescore` prefills a fresh cache and scores the end of the
prefix both ways: as decoding without and with drafts would have seen it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.cache import paged
from jspec.decode import prefill
from jspec.decode import round as round_lib

_CHUNK = 64
_PAGE_SIZE = 32


class Rescore:
  """Scores prefixes of up to `max_len` tokens.

  Compiles when it is first called, so nobody pays for it where nothing differs.
  """

  def __init__(self, target, *, num_nodes: int, max_len: int):
    """Scores with one node and with `num_nodes`."""
    self._target = target
    self._num_nodes = num_nodes
    # Prefill may pad the last chunk beyond the prefix.
    self._max_len = max_len + _CHUNK
    self._prefill = jax.jit(
      lambda target, state, *args: prefill.prefill(target, None, state, *args),
      donate_argnums=1,
    )
    self._score = jax.jit(_score)

  def __call__(self, prefix: list[int]) -> np.ndarray:
    """Logits [2, V] of the token behind `prefix`: one node, several nodes."""
    several = min(self._num_nodes, len(prefix))
    return np.stack(
      [self._logits(prefix, num_nodes) for num_nodes in (1, several)]
    )

  def _logits(self, prefix, num_nodes):
    state = round_lib.init_state(
      self._target,
      None,
      num_rows=1,
      max_len=self._max_len,
      page_size=_PAGE_SIZE,
      num_stop_ids=1,
    )
    num_cached = len(prefix) - num_nodes
    for begin in range(0, num_cached, _CHUNK):
      num = min(_CHUNK, num_cached - begin)
      tokens = np.zeros((_CHUNK,), np.int32)
      tokens[:num] = prefix[begin : begin + num]
      state = self._prefill(
        self._target,
        state,
        np.int32(0),
        tokens,
        np.int32(num),
        np.int32(prefix[begin + num]),
      )
    nodes = np.asarray(prefix[num_cached:], np.int32)
    return np.asarray(self._score(self._target, state.cache, nodes[None]))


def _score(target, cache: paged.PagedCache, tokens):
  num_nodes = tokens.shape[1]
  scored = target.score(
    tokens,
    cache.table.lengths[:, None] + jnp.arange(num_nodes),
    tree.chain_words(1, num_nodes),
    cache,
    (),
  )
  return target.logits(scored.hidden[0, -1])
