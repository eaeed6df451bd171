# SPDX-License-Identifier: MIT
"""D2SD's branches: a block, and K blocks that go on from its likely cuts.

The first drafter gives a block y_1 .. y_G with confidence c_i that y_i is right
given those before. The block dies behind y_i, i = 0 .. G-1, with probability

  r(i) = c_1 ... c_i (1 - c_{i+1}),        sum of r + c_1 ... c_G = 1.

At the K cuts of largest r a second drafter is given y_1 .. y_i and drafts what
comes after. Block and branches share prefixes; `trie` makes one tree of them
and `unmerged` leaves them side by side. (arXiv 2606.04446, sections 2.2, 2.3.)

Branch i matters when the block died behind y_i, so its first new token is worth
(1 - c_{i+1}) times the second drafter's confidence: the branch is worth r(i) as
a whole. The paper verifies all nodes and ranks none; this ranking is ours.
"""

import jax.numpy as jnp

from jspec import errors, tree
from jspec.trees import candidates, merge, select
from jspec.typing import Array, Float, Int


def boundaries(confidence: Float[Array, 'B G']) -> Float[Array, 'B G']:
  """r(i), the probability that exactly the first i drafts are right, i < G."""
  survival = jnp.cumprod(confidence, axis=1)
  before = jnp.concatenate(
    [jnp.ones_like(survival[:, :1]), survival[:, :-1]], axis=1
  )
  return before * (1 - confidence)


def cuts(
  confidence: Float[Array, 'B G'], num_cuts: int
) -> Int[Array, 'B cuts']:
  """Drafts kept before each of the likeliest boundaries, likeliest first.

  Raises:
    UserError: a block of G drafts has G boundaries.
  """
  num_drafts = confidence.shape[1]
  if not 0 <= num_cuts <= num_drafts:
    raise errors.UserError(
      f'{num_cuts} branches: a block of {num_drafts} drafts has 0 to'
      f' {num_drafts} places to branch'
    )
  _, kept = select.top(boundaries(confidence), num_cuts)
  return kept


def prompts(
  anchor: Int[Array, 'B'],
  tokens: Int[Array, 'B G'],
  kept: Int[Array, 'B cuts'],
  mask_token_id: int,
  num_slots: int,
) -> Int[Array, 'B cuts slots']:
  """What the second drafter is fed: anchor, the drafts kept, and masks.

  `num_slots` counts the anchor and may exceed the first block.
  """
  slot = jnp.arange(num_slots)
  block = jnp.concatenate([anchor[:, None], tokens], axis=1)
  block = _fit(block, num_slots)[:, None, :]
  return jnp.where(slot <= kept[:, :, None], block, mask_token_id)


def unmerged(
  anchor: Int[Array, 'B'],
  tokens: Int[Array, 'B G'],
  confidence: Float[Array, 'B G'],
  kept: Int[Array, 'B cuts'],
  redrafted: Int[Array, 'B cuts length'],
  second_confidence: Float[Array, 'B cuts length'],
) -> tree.Draft:
  """Block and branches as chains of their own, 1 + G + cuts * length nodes.

  The form that shares nothing but the committed prefix, in order of branches
  and not of survival. Branches begin with equal tokens, so a walk must keep all
  that agree with it alive; one that follows the first wants `trie`.

  Args:
    anchor: node 0.
    tokens: the block.
    confidence: of the block's tokens.
    kept: drafts kept by each branch, from `cuts`.
    redrafted: the second drafter's tokens, where entry d is depth d + 1; what
      it says of the kept prefix is replaced by the prefix.
    second_confidence: of those tokens.
  """
  pool = _pool(tokens, confidence, kept, redrafted, second_confidence)

  def behind(first, rest):
    first = jnp.broadcast_to(jnp.asarray(first, rest.dtype), anchor.shape)
    return jnp.concatenate([first[:, None], rest], axis=1)

  size = 1 + pool.tokens.shape[1]
  return tree.Draft(
    tokens=behind(anchor, pool.tokens.astype(anchor.dtype)),
    parents=behind(-1, pool.parents + 1),
    num_nodes=jnp.full(anchor.shape, size, jnp.int32),
    confidence=behind(1, jnp.exp(pool.log_probs)),
  )


def trie(
  anchor: Int[Array, 'B'],
  tokens: Int[Array, 'B G'],
  confidence: Float[Array, 'B G'],
  kept: Int[Array, 'B cuts'],
  redrafted: Int[Array, 'B cuts length'],
  second_confidence: Float[Array, 'B cuts length'],
  *,
  num_nodes: int | None = None,
) -> tree.Draft:
  """Block and branches as one tree, every path once, by falling survival.

  Arguments are those of `unmerged`, and `num_nodes`, T, for the best of them
  (None: room for all).
  """
  pool = _pool(tokens, confidence, kept, redrafted, second_confidence)
  if num_nodes is None:
    num_nodes = 1 + pool.tokens.shape[1]
  return select.draft(merge.merge(pool), anchor, num_nodes)


def _pool(tokens, confidence, kept, redrafted, second) -> select.Pool:
  """All nodes, the block first, branch by branch."""
  rows, num_cuts, length = redrafted.shape
  num_drafts = tokens.shape[1]
  depth = jnp.arange(length)
  is_kept = depth < kept[:, :, None]
  drafted = jnp.where(is_kept, _fit(tokens, length)[:, None], redrafted)
  # Behind the cut the block's own token has been wrong.
  left = jnp.take_along_axis(1 - confidence, kept, axis=1)[:, :, None]
  fresh = jnp.where(depth == kept[:, :, None], left * second, second)
  chance = jnp.where(is_kept, _fit(confidence, length)[:, None], fresh)
  block = _chain(tokens[:, None], confidence[:, None], 0)
  more = _chain(drafted, chance, num_drafts)
  return select.Pool(
    *(
      jnp.concatenate(
        [x.reshape(rows, num_drafts), y.reshape(rows, num_cuts * length)],
        axis=1,
      )
      for x, y in zip(block, more, strict=True)
    )
  )


def _chain(tokens, chance, first) -> select.Pool:
  """Pool entries [B, chains, length] from index `first`, each from the anchor.

  A loop, because a parallel sum may round a child above its parent.
  """
  _, chains, length = tokens.shape
  log_probs = candidates.clean(jnp.log(chance))
  scores = [log_probs[..., 0]]
  for depth in range(1, length):
    scores.append(select.path_score(scores[-1], log_probs[..., depth]))
  number = first + jnp.arange(chains * length, dtype=jnp.int32)
  parents = number.reshape(chains, length) - 1
  parents = parents.at[:, 0].set(-1)
  return select.Pool(
    tokens,
    jnp.broadcast_to(parents, tokens.shape),
    log_probs,
    jnp.stack(scores, axis=-1),
  )


def _fit(x, length):
  """Pads or cuts the last axis."""
  x = x[..., :length]
  missing = length - x.shape[-1]
  return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
