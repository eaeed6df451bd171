# SPDX-License-Identifier: MIT
"""Chains and trees of a drafter that is given as a table of laws.

The drafter's hidden state is the number of its context (`tests/trees/laws`);
its memory are scratch rows that hold the tokens, so that a builder that mixes
up parents, rows or levels is seen.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.drafters import recurrent
from tests.trees import laws, shape

ANCHOR, VOCAB, ROWS, DEPTH = 9, 4, 3, 4
DRAFT_IDS = np.array([2, 3, 11, 40], np.int32)


def _drafter(log_probs, draft_token_ids):
  """`run`, `start` and the root of a table [B, contexts, V]."""
  log_probs = jnp.asarray(log_probs)

  def columns(tokens):
    if draft_token_ids is None:
      return tokens
    return jnp.searchsorted(draft_token_ids, tokens).astype(jnp.int32)

  def run(memory, nodes):
    width = nodes.tokens.shape[1]
    drawn = columns(nodes.tokens)
    context = nodes.hidden[..., 0].astype(jnp.int32) * VOCAB + drawn + 1
    memory = jax.lax.dynamic_update_slice(
      memory, drawn, (0, nodes.level * width)
    )
    # The same context, from the scratch rows that the node sees.
    index = jnp.arange(memory.shape[1])
    words = nodes.ancestors[:, :, index // 32]
    seen = (words >> (index % 32).astype(jnp.uint32)) & 1
    by_rows = jnp.zeros_like(context)
    for row in range(memory.shape[1]):
      deeper = by_rows * VOCAB + memory[:, None, row] + 1
      by_rows = jnp.where(seen[:, :, row] == 1, deeper, by_rows)
    inside = jnp.clip(context, 0, log_probs.shape[1] - 1)
    logits = jnp.take_along_axis(log_probs, inside[..., None], axis=1)
    # Two ways to remember that disagree make drafts that cannot be.
    logits = jnp.where((by_rows == context)[..., None], logits, jnp.nan)
    return memory, context[..., None].astype(jnp.float32), logits

  rows = log_probs.shape[0]
  root = recurrent.Root(jnp.zeros((rows, 1)), log_probs[:, 0])
  return run, lambda size: jnp.zeros((rows, size), jnp.int32), root


def _table(kind='plain', rows=ROWS, seed=0):
  return laws.table(np.random.default_rng(seed), rows, VOCAB, DEPTH, kind)


def _propose(log_probs, temperature=None, ids=None, seed=0, **sizes):
  ids = None if ids is None else jnp.asarray(ids)
  rows = log_probs.shape[0]
  sizes = {'depth': DEPTH, 'size': 0, 'width': 3, 'support': VOCAB, **sizes}

  @jax.jit
  def propose(log_probs, temperature, keys):
    return recurrent.propose(
      *_drafter(log_probs, ids),
      jnp.full((rows,), ANCHOR, jnp.int32),
      ids,
      temperature,
      keys,
      **sizes,
    )

  keys = None
  if temperature is not None:
    temperature = jnp.broadcast_to(jnp.float32(temperature), (rows,))
    keys = jax.random.split(jax.random.key(seed), rows)
  return propose(log_probs, temperature, keys)


@pytest.mark.parametrize('ids', [None, DRAFT_IDS], ids=['full', 'reduced'])
def test_greedy_chain_takes_the_best_token_every_time(ids):
  log_probs = _table()
  draft = _propose(log_probs, ids=ids)
  tree.check(draft)
  assert draft.q is None
  np.testing.assert_array_equal(draft.num_nodes, DEPTH + 1)
  np.testing.assert_array_equal(draft.parents, [np.arange(-1, DEPTH)] * ROWS)
  for row in range(ROWS):
    path = ()
    for depth in range(DEPTH):
      before = laws.path_log_prob(log_probs[row], path)
      path = laws.best_children(log_probs[row], path, 1)[0]
      want = np.exp(laws.path_log_prob(log_probs[row], path) - before)
      assert draft.confidence[row, depth + 1] == pytest.approx(want, rel=1e-5)
    want = path if ids is None else ids[list(path)]
    np.testing.assert_array_equal(draft.tokens[row], [ANCHOR, *want])


def test_tree_with_one_candidate_is_the_greedy_chain():
  log_probs = _table()
  chain = _propose(log_probs, ids=DRAFT_IDS)
  draft = _propose(log_probs, ids=DRAFT_IDS, size=DEPTH, width=1)
  for mine, other in zip(
    jax.tree.leaves(chain), jax.tree.leaves(draft), strict=True
  ):
    np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_tree_holds_the_best_paths_of_its_beam():
  log_probs = _table()
  draft = _propose(log_probs, size=12, width=3)
  tree.check(draft)
  assert draft.q is None
  for row in range(ROWS):
    recorded = laws.best_children(log_probs[row], (), 3)
    level = recorded
    for _ in range(DEPTH - 1):
      scores = [laws.path_log_prob(log_probs[row], path) for path in level]
      beam = [level[i] for i in np.argsort(scores)[::-1][:3]]
      level = [
        child
        for path in beam
        for child in laws.best_children(log_probs[row], path, 3)
      ]
      recorded = recorded + level
    scores = {p: laws.path_log_prob(log_probs[row], p) for p in recorded}
    want = sorted(recorded, key=lambda path: -scores[path])[:12]
    assert shape.paths(draft, row) == [(), *want]
    assert max(map(len, want)) > 2


@pytest.mark.parametrize('temperature', [0.0, 0.7])
def test_drawn_chain_says_the_law_of_every_token(temperature):
  log_probs = _table()
  draft = _propose(log_probs, temperature, DRAFT_IDS, support=3)
  tree.check(draft)
  for row in range(ROWS):
    path = ()
    for depth in range(DEPTH):
      law = np.exp(log_probs[row, _context(path)])
      best = np.argsort(-law, kind='stable')[:3]
      scaled = (
        law[best] ** (1 / temperature) if temperature else best == best[0]
      )
      np.testing.assert_array_equal(draft.q.ids[row, depth], DRAFT_IDS[best])
      np.testing.assert_allclose(
        draft.q.probs[row, depth], scaled / np.sum(scaled), rtol=1e-4
      )
      np.testing.assert_allclose(
        draft.confidence[row, depth + 1], law.max(), rtol=1e-5
      )
      path += (int(np.searchsorted(DRAFT_IDS, draft.tokens[row, depth + 1])),)
      assert path[-1] in best
  np.testing.assert_array_equal(draft.q.probs[:, DEPTH], 0)
  if not temperature:
    greedy = _propose(log_probs, ids=DRAFT_IDS)
    np.testing.assert_array_equal(draft.tokens, greedy.tokens)


def test_drawn_chain_follows_its_law():
  """First and second token over many rows with one table."""
  num_rows = 4000
  log_probs = np.repeat(_table(rows=1), num_rows, axis=0)
  draft = _propose(log_probs, 1.0, depth=2)
  law = np.exp(log_probs[0])
  first, second = np.asarray(draft.tokens)[:, 1:].T
  want = law[0, :, None] * law[1 : VOCAB + 1]
  got = np.zeros((VOCAB, VOCAB))
  np.add.at(got, (first, second), 1 / num_rows)
  error = np.sqrt(want * (1 - want) / num_rows)
  assert np.all(np.abs(got - want) < 4.5 * error + 1e-3)
  # Negative control: another temperature is told apart.
  other = _propose(log_probs, 0.5, depth=2)
  share = np.mean(np.asarray(other.tokens)[:, 1] == law[0].argmax())
  assert share > law[0].max() + 0.05


def test_drawn_tree_has_a_fixed_shape_and_distinct_siblings():
  log_probs = _table()
  drafts = [
    _propose(log_probs, 0.8, DRAFT_IDS, seed, size=14) for seed in (0, 1)
  ]
  for draft in drafts:
    tree.check(draft)
    assert draft.q.draws == 'without_replacement'
    for row in range(ROWS):
      count = int(draft.num_nodes[row])
      pairs = list(
        zip(
          np.asarray(draft.parents[row])[1:count],
          np.asarray(draft.tokens[row])[1:count],
          strict=True,
        )
      )
      assert len(set(pairs)) == len(pairs)
  assert np.any(drafts[0].tokens != drafts[1].tokens)
  np.testing.assert_array_equal(drafts[0].parents, drafts[1].parents)
  np.testing.assert_array_equal(drafts[0].confidence, drafts[1].confidence)


@pytest.mark.few(1)
@pytest.mark.parametrize('size', [0, 2])
def test_one_level_never_runs_the_drafter(size):
  log_probs = jnp.asarray(_table())

  def run(memory, nodes):
    raise AssertionError('run')

  root = recurrent.Root(jnp.zeros((ROWS, 1)), log_probs[:, 0])
  draft = recurrent.propose(
    # Scans trace their body even for no steps, so they must not exist.
    run if size else _drafter(log_probs, None)[0],
    lambda size: jnp.zeros((ROWS, size), jnp.int32),
    root,
    jnp.full((ROWS,), ANCHOR, jnp.int32),
    None,
    None,
    None,
    depth=1,
    size=size,
    width=2,
    support=VOCAB,
  )
  tree.check(draft)
  assert tree.depths(draft.parents).max() == 1


def _context(path):
  context = 0
  for token in path:
    context = context * VOCAB + token + 1
  return context
