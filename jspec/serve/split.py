# SPDX-License-Identifier: MIT
"""The host's part of a split round: which drafts obey the rows' grammars.

  propose  ->  judge  ->  verify, commit
  device       host       device

Every node has a mask of its own; nodes that the grammar refuses, and what hangs
on them, go behind the others and are not verified. Rows without a grammar keep
their draft as it is.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jspec import tree
from jspec.decode import grammar
from jspec.serve import structured_draft, structured_matcher


def judge(
  draft: tree.Draft,
  matchers: Sequence[structured_matcher.Matcher | None],
  vocab_size: int,
  *,
  is_given: bool,
) -> dict[str, Any]:
  """What the host says of a round, a `Given` in plain containers (`bare`).

  Waits for the draft.

  Args:
    draft: on the device; of more rows than there are where some are padding.
    matchers: of the rows, each behind the anchor; None: no grammar, or nobody
      waits for what the row says.
    vocab_size: of the target.
    is_given: whether to verify the draft. Otherwise it is the anchors alone,
      and only the masks count.
  """
  tokens, parents, num_nodes = jax.device_get(
    (draft.tokens, draft.parents, draft.num_nodes)
  )
  num_rows, size = tokens.shape
  nodes = np.tile(np.arange(size, dtype=np.int32), (num_rows, 1))
  parents, num_nodes = parents.copy(), num_nodes.copy()
  words = np.zeros((num_rows, size, grammar.num_words(vocab_size)), np.uint32)
  has_mask = np.zeros((num_rows,), bool)
  for row, matcher in enumerate(matchers):
    if matcher is None:
      continue
    count = int(num_nodes[row]) if is_given else 1
    found = matcher.masks(tokens[row], parents[row], count)
    kept = structured_draft.verified(
      parents[row], count, found.is_allowed, is_sampled=draft.q is not None
    )
    nodes[row], parents[row] = kept.nodes, kept.parents
    num_nodes[row], has_mask[row] = kept.num_nodes, True
    words[row] = found.words[kept.nodes]
  return dict(
    is_given=np.bool_(is_given),
    draft=draft,
    nodes=nodes,
    parents=parents,
    num_nodes=num_nodes,
    words=words,
    has_mask=has_mask,
  )
