# SPDX-License-Identifier: MIT
"""The endless order in which documents are drawn, by domain if weighted.

  no weights       every epoch a new order of all documents
  math 2, chat 1   m c m m c m m c m ...    each domain in epochs of its own

The next domain is the one that is furthest behind its share of the documents
drawn so far. Where the order stands is how many were drawn of each domain: it
says nothing of processes. A weight is a share of documents, not of tokens.
"""

import collections
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jspec import errors


class Order:
  """Draws documents.

  Attributes:
    drawn: how many documents of each domain; without weights, all are of ''.
  """

  def __init__(
    self,
    numbers: Sequence[int],
    *,
    seed: int,
    domains: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
  ):
    """Begins at the first document.

    Args:
      numbers: the documents to draw.
      seed: fixes the order.
      domains: of these documents, in their order; needed with weights.
      weights: of every domain, relative to the others; 0 leaves it out. None
        draws every document equally often.

    Raises:
      UserError: a domain without a weight, or a weight without documents.
    """
    self._seed = seed
    if weights:
      groups = _groups(numbers, domains, weights)
      total = sum(weights[name] for name in groups)
      self._shares = {name: weights[name] / total for name in groups}
    else:
      groups, self._shares = {'': list(numbers)}, {'': 1.0}
    self._groups = groups
    # Of each domain: its epoch, and the order in it.
    self._shuffles: dict[str, tuple[int, np.ndarray]] = {}
    self.drawn = dict.fromkeys(groups, 0)

  def draw(self) -> int:
    """The next document."""
    num = sum(self.drawn.values()) + 1
    name = max(
      self._shares, key=lambda name: self._shares[name] * num - self.drawn[name]
    )
    group = self._groups[name]
    epoch, at = divmod(self.drawn[name], len(group))
    self.drawn[name] += 1
    if self._shuffles.get(name, (None,))[0] != epoch:
      mark = f'{self._seed}/{name}/{epoch}'
      self._shuffles[name] = epoch, _permutation(len(group), mark)
    return group[self._shuffles[name][1][at]]


def drawn_domains(
  there: Iterable[str], weights: Mapping[str, float]
) -> list[str]:
  """The domains that are drawn at all, by name.

  Args:
    there: the domains that have documents.
    weights: see `Order`.

  Raises:
    UserError: a domain without a weight, or a weight without documents.
  """
  there = set(there)
  unsaid = sorted(there - weights.keys())
  if unsaid:
    raise errors.UserError(
      f'data.weights has no `{unsaid[0]}`, of which there are documents: give'
      ' it a weight, 0 to leave it out'
    )
  drawn = sorted(name for name, weight in weights.items() if weight > 0)
  absent = [name for name in drawn if name not in there]
  if absent:
    raise errors.UserError(
      f'data.weights names `{absent[0]}`, of which there is no document to'
      f' train on; there are {sorted(there)}'
    )
  return drawn


def _permutation(num: int, mark: str) -> np.ndarray:
  """An order of `num` things, the same for a mark in every version of NumPy.

  They are sorted by the numbers of a SplitMix64 generator that begins at a hash
  of the mark.
  """
  begin = int.from_bytes(hashlib.sha256(mark.encode()).digest()[:8], 'little')
  x = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
  x += np.uint64(begin)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return np.argsort(x ^ (x >> np.uint64(31)), kind='stable')


def _groups(numbers, domains, weights):
  """Documents by domain, for domains that are drawn, by name."""
  groups = collections.defaultdict(list)
  for number, domain in zip(numbers, domains, strict=True):
    groups[domain].append(number)
  return {name: groups[name] for name in drawn_domains(groups, weights)}
