# SPDX-License-Identifier: MIT
"""Drafts of a drafter on the host, until it breaks.

What breaks in somebody's Python is no reason to lose an answer: the drafter is
switched off, visibly, and decoding goes on without.
"""

import warnings
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jspec import tree
from jspec.drafters import on_host


class HostDrafts:
  """Asks a drafter on the host.

  Attributes:
    problem: what it raised; empty while it drafts.
  """

  def __init__(self, host: on_host.Host):
    self.problem = ''
    self._host = host

  def propose(
    self,
    texts: Mapping[int, tuple[int, Sequence[int]]],
    shape: tuple[int, int],
  ) -> tree.Draft:
    """Drafts of a launch; the anchors alone once the drafter broke.

    Args:
      texts: by place in the launch, the row and all its tokens; the last one is
        the anchor. Places that are left out get no drafts.
      shape: rows of the launch and nodes of each.

    Warns:
      RuntimeWarning: the drafter raised, or returned what is no draft.
    """
    draft = tree.Draft(*jax.device_put(_anchors(shape)))
    if texts and not self.problem:
      try:
        draft = _ask(self._host, texts, shape)
      except Exception as error:  # Whatever it is.
        self.problem = f'{type(error).__name__}: {error}'
        warnings.warn(
          f'the drafter on the host raised and is switched off: {self.problem}',
          RuntimeWarning,
          stacklevel=2,
        )
    return draft


def _ask(
  host: on_host.Host,
  texts: Mapping[int, tuple[int, Sequence[int]]],
  shape: tuple[int, int],
) -> tree.Draft:
  places = np.array(list(texts), np.int32)
  longest = max((len(tokens) for _, tokens in texts.values()), default=1)
  buffer = np.zeros((len(texts), longest), np.int32)
  for i, (_, tokens) in enumerate(texts.values()):
    buffer[i, : len(tokens)] = tokens
  lengths = np.array([len(t) - 1 for _, t in texts.values()], np.int32)
  found = host.propose(
    buffer,
    lengths,
    buffer[np.arange(len(texts)), lengths],
    np.array([row for row, _ in texts.values()], np.int32),
  )
  wholes = _anchors(shape)
  for whole, of_rows in zip(wholes, found, strict=True):
    whole[places] = of_rows
  draft = tree.Draft(*jax.device_put(wholes))
  tree.check(draft)
  return draft


def _anchors(shape):
  num_rows, num_nodes = shape
  parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
  return (
    np.zeros(shape, np.int32),
    np.tile(parents, (num_rows, 1)),
    np.ones((num_rows,), np.int32),
    np.ones(shape, np.float32),
  )
