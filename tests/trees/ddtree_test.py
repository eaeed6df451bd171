# SPDX-License-Identifier: MIT
"""DDTree: the beam finds what the heap finds, and nothing beats it."""

import functools
import heapq
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.trees import candidates, ddtree, select
from tests.trees import shape

ANCHOR = 7
build = jax.jit(ddtree.build, static_argnums=2)


def random_logits(rng, rows, depths, vocab, kind):
  logits = rng.normal(size=(rows, depths, vocab)) * rng.choice([0.3, 1, 4])
  if kind == 'ties':
    logits = np.round(logits)
  elif kind == 'zeros':
    logits[rng.random(logits.shape) < 0.4] = -np.inf
    logits[..., 0] = 0.0  # Something must be possible.
  elif kind == 'certain':
    # log q = 0 for one token at some depths: parent and child tie.
    sure = rng.random((rows, depths)) < 0.6
    logits[sure] = -np.inf
    logits[..., 0] = np.where(sure, 5.0, logits[..., 0])
  return np.asarray(logits, np.float32)


def draft_of(logits, num_nodes, num_ranks=None):
  marginals = candidates.top(jnp.asarray(logits), num_ranks or num_nodes)
  anchor = jnp.full((logits.shape[0],), ANCHOR)
  return marginals, build(marginals, anchor, num_nodes)


def heap(log_probs, count):
  """The published search: scores (float32) and ranks of the prefixes popped."""
  log_probs = np.asarray(log_probs)

  def entry(ranks):
    score = functools.reduce(
      lambda total, at: np.float32(total + log_probs[at]),
      enumerate(ranks),
      np.float32(0),
    )
    return -score, len(ranks), ranks

  queue, popped = [entry((0,))], []
  while queue and len(popped) < count:
    score, depth, ranks = heapq.heappop(queue)
    if score == np.inf:
      break
    popped.append((-score, ranks))
    if ranks[-1] + 1 < log_probs.shape[1]:
      heapq.heappush(queue, entry((*ranks[:-1], ranks[-1] + 1)))
    if depth < log_probs.shape[0]:
      heapq.heappush(queue, entry((*ranks, 0)))
  return popped


@pytest.mark.few(4)
@pytest.mark.parametrize('kind', ['plain', 'ties', 'zeros', 'certain'])
@pytest.mark.parametrize('num_nodes', [2, 5, 24])
def test_beam_equals_the_heap(kind, num_nodes):
  rng = np.random.default_rng(num_nodes)
  for _ in range(10):
    logits = random_logits(rng, 3, 4, 9, kind)
    marginals, draft = draft_of(logits, num_nodes)
    shape.check(draft, ANCHOR)
    for row in range(3):
      popped = heap(marginals.log_probs[row], num_nodes - 1)
      live = int(draft.num_nodes[row])
      assert live == 1 + len(popped)
      # Survival of both lists, in order: equal even where ties differ.
      np.testing.assert_allclose(
        np.log(shape.survival(draft)[row, 1:live]),
        [score for score, _ in popped],
        atol=2e-5,
      )
      if kind == 'plain':
        ids = np.asarray(marginals.ids[row])
        expected = {
          tuple(int(ids[i, r]) for i, r in enumerate(ranks))
          for _, ranks in popped
        }
        assert set(shape.paths(draft, row)) == expected | {()}


def best_sum(probs, count):
  """Most expected accepted tokens of any tree, by trying all of them."""
  depths, vocab = probs.shape
  prefixes = [
    path
    for depth in range(1, depths + 1)
    for path in itertools.product(range(vocab), repeat=depth)
  ]
  weight = {
    path: np.prod([probs[i, v] for i, v in enumerate(path)])
    for path in prefixes
  }
  best = 0.0
  for chosen in itertools.combinations(prefixes, count):
    inside = {(), *chosen}
    if all(path[:-1] in inside for path in chosen):
      best = max(best, sum(weight[path] for path in chosen))
  return best


@pytest.mark.parametrize('vocab, depths, count', [(2, 3, 5), (3, 2, 5)])
def test_no_tree_of_as_many_nodes_expects_more(vocab, depths, count):
  rng = np.random.default_rng(0)
  for _ in range(3):
    logits = random_logits(rng, 1, depths, vocab, 'plain')
    _, draft = draft_of(logits, count + 1)
    probs = np.exp(logits[0]) / np.exp(logits[0]).sum(-1, keepdims=True)
    got = shape.survival(draft)[0, 1:].sum()
    assert got == pytest.approx(best_sum(probs, count), rel=1e-5)


def test_prefix_of_the_list_is_the_draft_of_fewer_nodes():
  logits = random_logits(np.random.default_rng(3), 2, 5, 12, 'ties')
  _, large = draft_of(logits, 20, num_ranks=12)
  for num_nodes in (1, 2, 11):
    _, small = draft_of(logits, num_nodes, num_ranks=12)
    np.testing.assert_array_equal(small.tokens, large.tokens[:, :num_nodes])
    np.testing.assert_array_equal(small.parents, large.parents[:, :num_nodes])


def test_one_node_is_plain_decoding_and_one_rank_is_the_chain():
  logits = random_logits(np.random.default_rng(4), 2, 5, 12, 'plain')
  _, draft = draft_of(logits, 1)
  assert draft.tokens.shape == (2, 1)
  assert np.all(np.asarray(draft.num_nodes) == 1)
  _, draft = draft_of(logits, 6, num_ranks=1)
  np.testing.assert_array_equal(draft.tokens[:, 1:], logits.argmax(-1))
  np.testing.assert_array_equal(draft.parents, [np.arange(-1, 5)] * 2)


def test_nodes_that_no_prefix_fills_are_padding():
  logits = random_logits(np.random.default_rng(5), 2, 2, 2, 'plain')
  _, draft = draft_of(logits, 11)  # Only 2 + 4 prefixes exist.
  shape.check(draft, ANCHOR)
  np.testing.assert_array_equal(draft.num_nodes, [7, 7])
  assert np.all(np.asarray(draft.confidence)[:, 7:] == 0)


def test_nothing_is_drafted_where_the_drafter_broke():
  logits = random_logits(np.random.default_rng(6), 2, 3, 5, 'plain')
  logits[1] = np.nan
  _, draft = draft_of(logits, 6)
  shape.check(draft, ANCHOR)
  np.testing.assert_array_equal(draft.num_nodes, [6, 1])


def test_tree_is_torn_when_equal_scores_go_by_the_last_created(monkeypatch):
  """Negative control of the order: it is what closes ties."""

  def last_first(scores, count):
    best, index = jax.lax.top_k(scores[:, ::-1], count)
    return best, scores.shape[1] - 1 - index

  monkeypatch.setattr(select, 'top', last_first)
  sure = candidates.Candidates(
    jnp.zeros((1, 4, 1)), jnp.ones((1, 4, 1), jnp.int32)
  )
  draft = ddtree.build(sure, jnp.full((1,), ANCHOR), 4)
  with pytest.raises(AssertionError):
    shape.check(draft, ANCHOR)


def test_other_values_do_not_compile_again():
  traced = shape.Counted(ddtree.build)
  jitted = jax.jit(traced, static_argnums=2)
  for seed in range(3):
    logits = random_logits(np.random.default_rng(seed), 2, 3, 8, 'zeros')
    marginals = candidates.top(jnp.asarray(logits), 5)
    jitted(marginals, jnp.full((2,), seed), 9)
  assert traced.count == 1
