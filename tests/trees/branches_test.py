# SPDX-License-Identifier: MIT
"""D2SD's cuts and branches, side by side and as a trie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.trees import branches, merge, select
from tests.trees import shape

ANCHOR, ROWS, DRAFTS, VOCAB, MASK = 50, 16, 5, 3, 77
_trie = jax.jit(branches.trie, static_argnames='num_nodes')
_unmerged = jax.jit(branches.unmerged)


def problem(seed, num_cuts, length=DRAFTS):
  """The arguments of `trie`; few tokens, so that branches often agree."""
  rng = np.random.default_rng(seed)
  confidence = jnp.asarray(rng.uniform(0.2, 1, (ROWS, DRAFTS)), jnp.float32)
  kept = branches.cuts(confidence, num_cuts)
  tokens = rng.integers(0, VOCAB, (ROWS, DRAFTS))
  again = rng.integers(0, VOCAB, (ROWS, num_cuts, length))
  second = rng.uniform(0.2, 1, (ROWS, num_cuts, length))
  return (
    jnp.full((ROWS,), ANCHOR),
    jnp.asarray(tokens),
    confidence,
    kept,
    jnp.asarray(again),
    jnp.asarray(second, jnp.float32),
  )


def test_cuts_are_those_of_the_published_example():
  c = jnp.asarray([[0.95, 0.84, 0.62, 0.70, 0.42]])  # Without the anchor's 1.
  r = branches.boundaries(c)
  np.testing.assert_allclose(
    r, [[0.050, 0.152, 0.303, 0.148, 0.201]], atol=5e-4
  )
  assert branches.cuts(c, 4).tolist() == [[2, 4, 1, 3]]


def test_boundaries_and_the_whole_block_are_all_that_can_happen():
  c = np.random.default_rng(0).uniform(0, 1, (20, 7))
  c[:3] = np.round(c[:3])  # Certain ones too.
  r = branches.boundaries(jnp.asarray(c, jnp.float32))
  np.testing.assert_allclose(r.sum(1) + c.prod(1), 1, atol=1e-6)


def test_equal_boundaries_go_to_the_earlier_cut():
  assert branches.cuts(jnp.ones((1, 4)), 2).tolist() == [[0, 1]]


def test_second_drafter_is_fed_the_prefix_and_masks():
  anchor, tokens, _, kept, *_ = problem(0, 3)
  for num_slots in (DRAFTS + 1, DRAFTS - 2, DRAFTS + 4):
    fed = branches.prompts(anchor, tokens, kept, MASK, num_slots)
    for row in range(ROWS):
      block = [ANCHOR, *np.asarray(tokens[row]).tolist()]
      for i, keep in enumerate(np.asarray(kept[row])):
        expected = (block[: keep + 1] + [MASK] * num_slots)[:num_slots]
        assert fed[row, i].tolist() == expected


def expected_branches(args, row):
  """Token lists of the block and of every branch, prefixes copied."""
  _, tokens, _, kept, again, _ = (np.asarray(x) for x in args)
  found = [tokens[row].tolist()]
  for i, keep in enumerate(kept[row]):
    found.append(tokens[row, :keep].tolist() + again[row, i, keep:].tolist())
  return found


@pytest.mark.parametrize('length', [DRAFTS, DRAFTS + 2])
def test_trie_holds_every_path_of_every_branch_once(length):
  args = problem(1, 4, length)
  draft = _trie(*args)
  shape.check(draft, ANCHOR)
  merged = 0
  for row in range(ROWS):
    paths = {
      tuple(branch[:n])
      for branch in expected_branches(args, row)
      for n in range(len(branch) + 1)
    }
    assert set(shape.paths(draft, row)) == paths
    merged += draft.tokens.shape[1] - len(paths)
  assert merged > ROWS  # Something was there to merge.


def test_unmerged_branches_are_chains_side_by_side():
  args = problem(2, 3)
  draft = _unmerged(*args)
  shape.check(draft, ANCHOR, by_survival=False, distinct=False)
  for row in range(ROWS):
    paths = shape.paths(draft, row)
    leaves = [paths[DRAFTS * (i + 1)] for i in range(4)]
    assert [list(leaf) for leaf in leaves] == expected_branches(args, row)


def test_branch_is_worth_its_boundary():
  """Survival of a branch's first new token is r(i) times its confidence."""
  anchor, tokens, c, kept, again, second = problem(3, 2)
  again = again + VOCAB  # Never equal to the block: nothing merges.
  draft = _trie(anchor, tokens, c, kept, again, second)
  survival, r = shape.survival(draft), np.asarray(branches.boundaries(c))
  for row in range(ROWS):
    paths = shape.paths(draft, row)
    for i, keep in enumerate(np.asarray(kept[row])):
      path = (*np.asarray(tokens[row, :keep]), int(again[row, i, keep]))
      expected = r[row, keep] * float(second[row, i, keep])
      got = survival[row, paths.index(tuple(map(int, path)))]
      assert got == pytest.approx(expected, rel=1e-4)


def walk(draft, row, stream, *, keeps_all):
  """Accepted tokens for one stream of target tokens."""
  tokens = np.asarray(draft.tokens[row])
  parents = np.asarray(draft.parents[row])
  live = np.arange(len(tokens)) < int(draft.num_nodes[row])
  alive, accepted = {0}, 0
  for z in stream:
    hits = np.flatnonzero(live & (tokens == z) & np.isin(parents, list(alive)))
    if not len(hits):
      break
    alive = set(hits) if keeps_all else {hits[0]}
    accepted += 1
  return accepted


@pytest.mark.slow
def test_branches_never_accept_less_than_the_block_on_the_same_stream():
  rng = np.random.default_rng(4)
  gained = missed = 0
  for seed in range(6):
    args = problem(seed, 3)
    tree, beside = _trie(*args), _unmerged(*args)
    block = np.asarray(args[1])
    for row in range(ROWS):
      for _ in range(8):
        # Streams that follow the block for a while.
        stream = block[row].copy()
        cut = rng.integers(0, DRAFTS)
        stream[cut:] = rng.integers(0, VOCAB, DRAFTS - cut)
        alone = int(np.cumprod(stream == block[row]).sum())
        together = walk(tree, row, stream, keeps_all=False)
        assert together >= alone
        assert together == walk(beside, row, stream, keeps_all=True)
        gained += together - alone
        missed += together - walk(beside, row, stream, keeps_all=False)
  assert gained > 50
  # Negative control: following the first of equal siblings loses branches.
  assert missed > 50


def test_no_cuts_leave_the_block():
  anchor, tokens, c, kept, again, second = problem(5, 0)
  for build in (_trie, _unmerged):
    draft = build(anchor, tokens, c, kept, again, second)
    np.testing.assert_array_equal(draft.tokens[:, 1:], tokens)
    np.testing.assert_array_equal(draft.parents, [np.arange(-1, DRAFTS)] * ROWS)
    np.testing.assert_allclose(draft.confidence[:, 1:], c, rtol=1e-5)


def test_budget_keeps_the_best_nodes():
  args = problem(6, 3)
  whole, few = _trie(*args), _trie(*args, num_nodes=7)
  np.testing.assert_array_equal(few.tokens, whole.tokens[:, :7])
  np.testing.assert_array_equal(few.parents, whole.parents[:, :7])


def test_more_cuts_than_boundaries_are_refused():
  with pytest.raises(errors.UserError, match='6 branches: a block of 5'):
    branches.cuts(jnp.ones((1, DRAFTS)), DRAFTS + 1)


def test_other_values_do_not_compile_again():
  traced = shape.Counted(branches.trie)
  jitted = jax.jit(traced)
  for seed in range(3):
    jitted(*problem(seed, 2))
  assert traced.count == 1


def test_merged_pool_keeps_the_best_score_and_all_children():
  """a, a, a>b, a'>c, a'>b: one a with the better score; one b; one c."""
  dead = -np.inf
  pool = select.Pool(
    tokens=jnp.asarray([[1, 1, 2, 3, 2, 1]]),
    parents=jnp.asarray([[-1, -1, 0, 1, 1, -1]]),
    log_probs=jnp.zeros((1, 6)),
    scores=jnp.asarray([[-2.0, -1.0, -4.0, -3.0, -2.5, dead]]),
  )
  merged = jax.jit(merge.merge)(pool)
  assert merged.scores.tolist() == [[-1.0, dead, -2.5, -3.0, dead, dead]]
  assert merged.parents[0, [0, 2, 3]].tolist() == [-1, 0, 0]
  assert merged.log_probs[0, [0, 2, 3]].tolist() == [-1.0, -1.5, -2.0]
