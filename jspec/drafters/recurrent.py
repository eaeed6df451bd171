# SPDX-License-Identifier: MIT
"""Chains and trees of drafters that are run on their own output (EAGLE, MTP).

  hidden_0, logits_0        behind the anchor, from the last committed row
  token_i ~ logits_i        a child of the node
  hidden_{i+1}, logits_{i+1} = run(hidden_i, token_i)

Everything starts from the root (what the last `commit` left behind) and one
function that runs the drafter on the nodes of a level:

  memory, hidden, logits = run(memory, nodes)

`memory` is the drafter's own, usually scratch key and value rows (`scratch`),
and made by `start` for as many of them as a kind of draft needs. Four kinds
come of it: the greedy chain; a chain drawn from the Q most probable tokens at
the row's temperature, with that exact law; EAGLE-2's tree (`trees.
expand_rerank`); a tree of fixed shape with siblings drawn without replacement
(`trees.grow`).

Confidence is the node's probability at temperature 1 where drafts are a
function of the prefix. In a drawn chain it is the largest probability behind
the parent, which does not look at the token drawn; a drawn tree has fixed ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.drafters import pick, vocab
from jspec.trees import candidates, expand_rerank, expansion, grow, sequoia
from jspec.trees import draws as draws_lib
from jspec.typing import Array, Float, Int, Key, PyTree, UInt32


class Root(NamedTuple):
  """What is known behind the anchor before anything is drafted."""

  hidden: Float[Array, 'B D']
  logits: Float[Array, 'B Vd']


class Nodes(NamedTuple):
  """Nodes of one level that the drafter is run on.

  Attributes:
    tokens: ids of the target's vocabulary.
    hidden: what the drafter gave out behind each one's parent.
    ancestors: scratch rows each one sees, its own among them; the level's rows
      are level * W onwards.
    level: 0 for the nodes of depth 1, one behind the anchor.
  """

  tokens: Int[Array, 'B W']
  hidden: Float[Array, 'B W D']
  ancestors: UInt32[Array, 'B W words']
  level: Int[Array, '']


# New memory, hidden [B, W, D] and logits [B, W, Vd] behind every node.
Run = Callable[[PyTree, Nodes], tuple[PyTree, Array, Array]]
# The memory before the first level, with so many scratch rows.
Start = Callable[[int], PyTree]


def propose(
  run: Run,
  start: Start,
  root: Root,
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  *,
  depth: int,
  size: int,
  width: int,
  support: int,
) -> tree.Draft:
  """The kind of draft that the options ask for.

  Args:
    run: runs the drafter on nodes.
    start: makes its memory.
    root: behind the anchor.
    anchor: node 0.
    draft_token_ids: of a reduced vocabulary.
    temperature: of every row; None for a function of the committed prefix.
    keys: of the rows, where there is a temperature.
    depth: G, of the deepest draft token.
    size: draft tokens of a tree; 0 for a chain.
    width: of EAGLE-2's beam.
    support: Q, tokens of the law of a drawn draft.
  """
  args = (run, start, root, anchor, draft_token_ids)
  if not size:
    return chain(*args, temperature, keys, num_drafts=depth, support=support)
  if temperature is None:
    return best_tree(*args, depth=depth, size=size, width=width)
  return drawn_tree(
    *args, temperature, keys, depth=depth, size=size, support=support
  )


def chain(
  run: Run,
  start: Start,
  root: Root,
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  *,
  num_drafts: int,
  support: int,
) -> tree.Draft:
  """One token after the other; `run` is called `num_drafts - 1` times.

  Args:
    run: runs the drafter on one node a row.
    start: makes its memory.
    root: behind the anchor.
    anchor: node 0.
    draft_token_ids: of a reduced vocabulary.
    temperature: of every row; None for the most probable tokens (`q` is None).
    keys: of the rows, where there is a temperature.
    num_drafts: G.
    support: Q, tokens of the law of a drawn draft.
  """
  rows = anchor.shape[0]
  num_scratch = max(num_drafts - 1, 1)
  words = tree.chain_words(rows, num_scratch)
  count = 1 if temperature is None else support

  def draw(logits, depth):
    """The node behind `logits`: its token, confidence and law."""
    found = _candidates(logits, draft_token_ids, count)
    behind = candidates.Candidates(*(x[:, None] for x in found))
    tokens, law = draws_lib.children(
      behind, depth[None], 1, temperature, keys, 'independent'
    )
    law = None if law is None else tuple(x[:, 0] for x in law)
    return tokens[:, 0, 0], jnp.exp(found.log_probs[:, 0]), law

  def deepen(carry, level):
    memory, hidden, token = carry
    seen = jax.lax.dynamic_slice_in_dim(words, level, 1, axis=1)
    nodes = Nodes(token[:, None], hidden[:, None], seen, level)
    memory, hidden, logits = run(memory, nodes)
    node = draw(logits[:, 0], level + 1)
    return (memory, hidden[:, 0], node[0]), node

  first = draw(root.logits, jnp.int32(0))
  carry = (start(num_scratch), root.hidden, first[0])
  levels = jnp.arange(num_drafts - 1, dtype=jnp.int32)
  _, rest = jax.lax.scan(deepen, carry, levels)
  drawn = jax.tree.map(
    lambda one, more: jnp.concatenate(
      [one[:, None], jnp.moveaxis(more, 0, 1)], axis=1
    ),
    first,
    rest,
  )
  tokens, confidence, law = drawn
  if law is not None:
    nothing = ((0, 0), (0, 1), (0, 0))  # The last node has no child.
    ids, probs = (jnp.pad(x, nothing) for x in law)
    law = tree.SparseLaw(ids, probs, draws='independent')
  return tree.Draft(
    tokens=jnp.concatenate(
      [anchor[:, None], tokens.astype(anchor.dtype)], axis=1
    ),
    parents=tree.chain_parents(rows, num_drafts + 1),
    num_nodes=jnp.full((rows,), num_drafts + 1, jnp.int32),
    confidence=jnp.concatenate([jnp.ones((rows, 1)), confidence], axis=1),
    q=law,
  )


def best_tree(
  run: Run,
  start: Start,
  root: Root,
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  *,
  depth: int,
  size: int,
  width: int,
) -> tree.Draft:
  """EAGLE-2's tree: the best `size` of what a beam of `width` nodes saw.

  `run` is called `depth - 1` times on `width` nodes a row, and each node has
  `width` candidates. A function of the committed prefix.
  """
  memory = start(max(depth - 1, 1) * width)
  draft, _ = expand_rerank.build(
    _step(run, draft_token_ids, width),
    (memory, _every_slot(root.hidden, width)),
    _candidates(root.logits, draft_token_ids, width),
    anchor,
    num_nodes=size + 1,
    width=width,
    num_steps=depth - 1,
  )
  return draft


def drawn_tree(
  run: Run,
  start: Start,
  root: Root,
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'],
  keys: Key[Array, 'B'],
  *,
  depth: int,
  size: int,
  support: int,
) -> tree.Draft:
  """A Sequoia tree of `size` tokens, siblings drawn without replacement.

  Its shape and its confidence are fixed, so that drawn drafts stay lossless
  however the draft is cut.
  """
  num_ranks = min(size, support, root.logits.shape[-1])
  topology = sequoia.build(
    pick.FIRST_CHILD * pick.NEXT_CHILD ** np.arange(num_ranks), size + 1, depth
  )
  width = grow.beam_width(topology)
  memory = start(max(topology.depth - 1, 1) * width)
  draft, _ = grow.build(
    topology,
    _step(run, draft_token_ids, support),
    (memory, _every_slot(root.hidden, width)),
    _candidates(root.logits, draft_token_ids, support),
    anchor,
    temperature,
    keys,
  )
  # Depth and ranks may be used up before `size`.
  return pick.padded(draft, size + 1)


def _step(run, draft_token_ids, count) -> expansion.Step:
  """`run` as tree builders call it; their state has the hidden by slot."""

  def step(state, beam):
    memory, hidden = state
    parents = beam.parents[:, :, None]
    hidden = jnp.take_along_axis(hidden, parents, axis=1)
    memory, hidden, logits = run(
      memory, Nodes(beam.tokens, hidden, beam.ancestors, beam.level)
    )
    return (memory, hidden), _candidates(logits, draft_token_ids, count)

  return step


def _candidates(logits, draft_token_ids, count) -> candidates.Candidates:
  found = pick.best(logits) if count == 1 else candidates.top(logits, count)
  return found._replace(ids=vocab.to_target(found.ids, draft_token_ids))


def _every_slot(hidden, width):
  return jnp.repeat(hidden[:, None], width, axis=1)
