# SPDX-License-Identifier: MIT
"""Whole generations with trees: same tokens, and a cache as after a prefill."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors, tree
from jspec.cache import paged
from jspec.decode import generate, sampling
from jspec.testing import drafter_suite, toy
from tests.evals import drafters

MAX_LEN = 64
DEPTH = 3
LENGTHS = (1, 4, 5, 17, 33)
# Node numbers of the path that is right; its rows lie apart in the tree.
PARENTS = (-1, 0, 0, 1, 2, 2, 4, 5, 5, 1, 8)
PATH = (2, 5, 8)


class KnownTree(drafters.Known):
  """The target's own next tokens, at the end of a tree of wrong ones."""

  def __init__(self, target):
    super().__init__(target, DEPTH)
    self.num_draft_tokens = len(PARENTS) - 1

  def propose(self, state, table, anchor, temperature, keys):
    chain = super().propose(state, table, anchor, temperature, keys)
    rows = anchor.shape[0]
    # A wrong token is the right one's neighbour, so siblings stay distinct.
    depth = tree.depths(jnp.asarray([PARENTS], jnp.int32))[0]
    tokens = (chain.tokens[:, depth] + 1) % toy.VOCAB_SIZE
    tokens = tokens.at[:, jnp.array((0, *PATH))].set(chain.tokens)
    return tree.Draft(
      tokens=tokens,
      parents=jnp.tile(jnp.asarray(PARENTS, jnp.int32), (rows, 1)),
      num_nodes=jnp.full((rows,), len(PARENTS), jnp.int32),
      confidence=jnp.ones((rows, len(PARENTS))),
    )


def prompts():
  return [toy.prompts(1, length, seed=length)[0].tolist() for length in LENGTHS]


def requests():
  kinds = (
    {},
    {'temperature': 0.8},
    {'temperature': 1.3, 'top_k': 5},
    {'temperature': 0.7, 'top_p': 0.8},
    {'temperature': 1.0, 'min_p': 0.05},
  )
  return [
    sampling.SamplingParams(seed=i, max_tokens=20 + i, **kind)
    for i, kind in enumerate(kinds)
  ]


def greedy(**fields):
  return sampling.SamplingParams(**({'max_tokens': 21} | fields))


def make(target, drafter, **options):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    return generate.Decoder(
      target,
      drafter,
      **({'max_len': MAX_LEN, 'num_rows': 3, 'page_size': 4} | options),
    )


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.fixture(scope='module')
def plain(target):
  return make(target, None, num_rows=1, num_rounds=1)


@pytest.fixture(scope='module')
def known(target):
  return make(target, KnownTree(target))


def tokens(outputs):
  return [output.tokens for output in outputs]


@pytest.mark.slow
def test_a_path_through_a_tree_is_accepted_whole(plain, known):
  got = known.generate(prompts(), greedy())
  assert tokens(got) == tokens(plain.generate(prompts(), greedy()))
  for output in got:
    # Rounds of depth + 1 tokens; the last has one token to emit and no drafts.
    assert output.num_rounds == 6
    assert output.num_accepted[:DEPTH] == [5] * DEPTH
    assert output.num_drafted[:DEPTH] == [10, 20, 15]
    assert output.num_drafted[DEPTH:] == [5] + [0] * 6


def test_mixed_greedy_and_sampled_rows_keep_their_tokens(plain, known):
  want = plain.generate(prompts(), requests())
  assert tokens(known.generate(prompts(), requests())) == tokens(want)


@pytest.mark.parametrize('max_tokens', [1, 2, DEPTH + 1, DEPTH + 2, 9])
def test_budget_is_kept_to_the_token(plain, known, max_tokens):
  request = greedy(max_tokens=max_tokens)
  got = known.generate(prompts(), request)
  assert tokens(got) == tokens(plain.generate(prompts(), request))
  assert {len(out.tokens) for out in got} == {max_tokens}


@pytest.mark.parametrize('at', [0, 1, DEPTH, DEPTH + 1])
def test_a_stop_id_inside_an_accepted_path_ends_the_answer(plain, known, at):
  outs = plain.generate(prompts(), greedy())
  i = next(i for i, o in enumerate(outs) if o.tokens[at] not in o.tokens[:at])
  request = greedy(stop_ids=(outs[i].tokens[at],))
  got = known.generate([prompts()[i]], request)[0]
  assert got.tokens == outs[i].tokens[: at + 1]
  assert got.finish_reason == 'stop'


def test_a_tree_at_the_end_of_the_context_stays_inside(plain, known):
  for room in (1, 2, 5):
    prompt = toy.prompts(1, MAX_LEN - room, seed=room)[0].tolist()
    request = greedy(max_tokens=10**6)
    got = known.generate([prompt], request)[0]
    assert got.tokens == plain.generate([prompt], request)[0].tokens
    assert len(got.tokens) == room


@pytest.mark.parametrize(
  'size',
  [
    pytest.param(1, marks=pytest.mark.slow),
    pytest.param(12, marks=pytest.mark.slow),
    pytest.param(100, marks=pytest.mark.slow),
  ],
)
def test_dflash_trees_of_any_size_change_no_token(target, plain, size):
  """Whatever the neighbours, the budget, the depth and the draft."""
  drafter = toy.drafter(target, tree_size=size)
  assert drafter.num_draft_tokens == size
  decoder = make(target, drafter, num_rows=4, page_size=8)
  want = plain.generate(prompts(), requests())
  got = decoder.generate(prompts(), requests())
  assert tokens(got) == tokens(want)
  assert sum(sum(out.num_drafted) for out in got) > 0
  reverse = decoder.generate(prompts()[::-1], requests()[::-1])
  assert tokens(reverse)[::-1] == tokens(want)


@pytest.mark.slow
@pytest.mark.parametrize('rule', ['recursive', 'traversal'])
def test_sampled_trees_keep_the_tokens_of_greedy_rows(target, plain, rule):
  drafter = toy.drafter(target, tree_size=12)
  decoder = make(target, drafter, rule=rule)
  want = plain.generate(prompts(), requests())
  got = decoder.generate(prompts(), requests())
  assert got[0].tokens == want[0].tokens
  assert tokens(got) != tokens(want)  # The others keep their law only.
  assert [len(out.tokens) for out in got] == [20, 21, 22, 23, 24]
  assert sum(sum(out.num_drafted) for out in got) > 0


def test_a_rule_that_is_not_for_the_drafts_is_refused(target):
  with pytest.raises(errors.UserError, match='rule token needs the law'):
    make(target, KnownTree(target), rule='token')
  with pytest.raises(errors.UserError, match='rule .newest.'):
    make(target, KnownTree(target), rule='newest')


@pytest.mark.slow
def test_a_bigger_tree_accepts_more_than_its_first_path(target):
  """The tree is worth its nodes: the chain is one of its branches."""
  rounds = []
  for size in (0, 40):
    drafter = toy.drafter(target, tree_size=size)
    outs = make(target, drafter).generate(prompts(), greedy(max_tokens=40))
    rounds.append(sum(out.num_rounds for out in outs))
  assert rounds[1] < rounds[0]


@pytest.mark.slow
def test_dflash_with_a_tree_passes_the_drafter_suite(target):
  drafter_suite.run(toy.drafter(toy.target(), tree_size=9), toy.target())


def row_of(pages, table, row, num):
  """The first `num` key and value rows of a batch row, [2, L, num, K, H]."""
  size = pages.k.shape[3]
  where = np.arange(num)
  ids = np.asarray(table.page_ids)[row, where // size]
  return np.stack(
    [np.asarray(x)[:, ids, :, where % size] for x in pages_of(pages)]
  )


def pages_of(pages):
  return pages.k, pages.v


@pytest.mark.slow
@pytest.mark.parametrize('name', ['known', 'dflash'])
def test_rows_after_tree_rounds_are_those_of_a_fresh_prefill(target, name):
  """Accepted paths lie contiguously, in the drafter's pages as well."""
  drafter = (
    KnownTree(target) if name == 'known' else toy.drafter(target, tree_size=12)
  )
  decoder = make(target, drafter, num_rows=len(LENGTHS))
  outs = decoder.generate(prompts(), greedy())
  state = decoder._state
  texts = [p + o.tokens for p, o in zip(prompts(), outs, strict=True)]
  lengths = np.asarray(state.cache.table.lengths)
  assert sorted(lengths) == sorted(len(text) - 1 for text in texts)
  # Nothing is decoded: the rows hold a prefill and no more.
  fresh = make(target, drafter, num_rows=len(LENGTHS))
  fresh.generate(texts, greedy(max_tokens=1))
  for row, length in enumerate(lengths):
    again = fresh._state
    assert again.cache.table.lengths[row] == length + 1
    for mine, theirs in (
      (state.cache.pages, again.cache.pages),
      (state.drafter, again.drafter),
    ):
      assert isinstance(mine, paged.Pages)
      np.testing.assert_allclose(
        row_of(mine, state.cache.table, row, length),
        row_of(theirs, again.cache.table, row, length),
        atol=1e-5,
      )


@pytest.mark.slow
def test_a_tree_row_scores_as_the_chain_of_its_path(target):
  """Positions are anchor + depth: every node's logits are its chain's."""
  rng = np.random.default_rng(0)
  num_nodes, num_rows = 40, 2
  parents = np.full((num_rows, num_nodes), -1, np.int32)
  for node in range(1, num_nodes):
    parents[:, node] = rng.integers(max(0, node - 8), node, num_rows)
  text = toy.prompts(num_rows, 21)
  nodes = toy.prompts(num_rows, num_nodes, seed=5)
  pages = paged.init_pages(3, 12, 4, 2, 8)
  cache = paged.PagedCache(pages, paged.contiguous_table(num_rows, 6))

  @jax.jit
  def score(target, tokens, parents, cache):
    return target.score(
      tokens,
      cache.table.lengths[:, None] + tree.depths(parents),
      tree.ancestor_words(parents),
      cache,
      (),
    )

  steps = np.tile(np.arange(21, dtype=np.int32), (num_rows, 1))
  logits = jax.jit(lambda target, scored: target.logits(scored.hidden))
  scored = score(target, text, tree.chain_parents(num_rows, 21), cache)
  counts = jnp.array([21, 6], jnp.int32)
  cache = cache.commit(scored.k, scored.v, jnp.asarray(steps), counts)
  whole = logits(target, score(target, nodes, parents, cache))
  for row in range(num_rows):
    for leaf in (7, num_nodes - 1):
      path = [leaf]
      while path[0] > 0:
        path.insert(0, parents[row, path[0]])
      chain = np.tile(nodes[row, path], (num_rows, 1))
      alone = score(
        target, chain, tree.chain_parents(num_rows, len(path)), cache
      )
      np.testing.assert_allclose(
        whole[row, path], logits(target, alone)[row], atol=1e-5
      )


def test_more_nodes_than_a_round_verifies_are_refused(target):
  drafter = KnownTree(target)
  drafter.num_draft_tokens = 128
  with pytest.raises(errors.UserError, match='129 nodes'):
    make(target, drafter)
