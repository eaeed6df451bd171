# SPDX-License-Identifier: MIT
"""A row of a mixture is what its member alone makes of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import base, mixed, ngram, suffix
from jspec.testing import drafter_suite, toy
from tests.drafters import small_eagle3

NUM_ROWS, NUM_PAGES, PAGE_SIZE, WIDTH = 4, 8, 4, 5
NUM_CALLS = 5


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def mixture(target):
  """Lookup, a chain and a tree, of different sizes, that want other layers."""
  return mixed.Mixed(
    {
      'ngram': ngram.NGram(5),
      'dflash': toy.drafter(target, taps=(0, 2)),
      'eagle3': small_eagle3.drafter(target, taps=(1, 2), tree_size=7),
    }
  )


class Chosen(nnx.Module):
  """A mixture whose rows have chosen from the beginning."""

  def __init__(self, of, choice):
    self.of, self.choice = of, tuple(choice)
    self.taps, self.num_draft_tokens = of.taps, of.num_draft_tokens
    self.propose, self.commit = of.propose, of.commit

  def init_state(self, table, num_pages, page_size):
    state = self.of.init_state(table, num_pages, page_size)
    return mixed.State(state.members, jnp.asarray(self.choice, jnp.int32))


def table_of(lengths):
  table = paged.contiguous_table(NUM_ROWS, NUM_PAGES)
  return dataclasses.replace(table, lengths=jnp.asarray(lengths, jnp.int32))


def fresh(drafter):
  num_pages = NUM_ROWS * NUM_PAGES
  return drafter.init_state(table_of([0] * NUM_ROWS), num_pages, PAGE_SIZE)


@jax.jit
def commit(drafter, state, table, rows):
  return drafter.commit(state, table, rows)


def schedule(seed, num_layers=3, width=32):
  """Rows as rounds and chunks bring them, with the table before each."""
  rng = np.random.default_rng(seed)
  lengths = np.zeros((NUM_ROWS,), np.int32)
  for _ in range(NUM_CALLS):
    shape = NUM_ROWS, WIDTH
    num_rows = rng.integers(0, WIDTH + 1, NUM_ROWS).astype(np.int32)
    rows = base.Committed(
      # Few tokens, so that lookup finds some.
      tokens=jnp.asarray(rng.integers(0, 3, shape), jnp.int32),
      taps=jnp.asarray(rng.normal(size=(*shape, num_layers, width)), 'float32'),
      num_rows=jnp.asarray(num_rows),
      next_token=jnp.asarray(rng.integers(0, 3, NUM_ROWS), jnp.int32),
    )
    yield table_of(lengths), rows
    lengths = lengths + num_rows


def only(rows, layers):
  return dataclasses.replace(
    rows, taps=rows.taps[:, :, np.asarray(layers, int)]
  )


def after(drafter, state, seed, temperature=None, keys=None):
  """The state behind a schedule, and the draft there."""
  for table, rows in schedule(seed):
    state = commit(drafter, state, table, only(rows, drafter.taps))
  lengths = table.lengths + rows.num_rows
  return state, drafter_suite.propose(
    drafter,
    state,
    table_of(lengths),
    rows.next_token,
    temperature,
    keys,
  )


def leaves(state, row):
  """What of a state belongs to a row, its own pages included."""

  def of_row(leaf):
    if isinstance(leaf, paged.Pages):
      own = slice(row * NUM_PAGES, (row + 1) * NUM_PAGES)
      return leaf.k[:, own], leaf.v[:, own]
    return leaf[row]

  is_pool = lambda leaf: isinstance(leaf, paged.Pages)  # noqa: E731
  return jax.tree.leaves(jax.tree.map(of_row, state, is_leaf=is_pool))


def assert_same(got, want, message):
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=message)


def live(draft, row):
  """The nodes of a row and, if they were sampled, the laws they came from."""
  count = int(draft.num_nodes[row])
  nodes = [x[row, :count] for x in (draft.tokens, draft.parents)]
  nodes.append(draft.confidence[row, :count])
  if draft.q is None:
    return nodes
  law = np.zeros((count, toy.VOCAB_SIZE))
  for node in range(count):
    np.add.at(law[node], draft.q.ids[row, node], draft.q.probs[row, node])
  return [*nodes, law]


def check(of, seed, temperature=None, keys=None):
  """Rows with random choices against each member alone."""
  rng = np.random.default_rng(100 + seed)
  choice = rng.integers(-1, len(of.members), NUM_ROWS)
  begun = mixed.State(fresh(of).members, jnp.asarray(choice, jnp.int32))
  state, draft = after(of, begun, seed, temperature, keys)
  np.testing.assert_array_equal(state.choice, choice)
  tree.check(draft)
  for index, member in enumerate(of.members):
    want, alone = after(member, fresh(member), seed, temperature, keys)
    for row in range(NUM_ROWS):
      message = f'{of.names[index]}, row {row} of {choice}'
      is_own = choice[row] == index
      expected = want if is_own else fresh(member)
      assert_same(
        leaves(state.members[index], row), leaves(expected, row), message
      )
      if is_own:
        assert_same(live(draft, row), live(alone, row), message)
  np.testing.assert_array_equal(draft.num_nodes[choice < 0], 1)
  return choice, draft


@pytest.mark.slow
def test_rows_are_those_of_their_members_alone(mixture):
  chosen, sizes = set(), set()
  for seed in range(6):
    choice, draft = check(mixture, seed)
    chosen |= set(choice.tolist())
    sizes |= set(zip(choice.tolist(), draft.num_nodes.tolist(), strict=True))
  assert chosen == {-1, 0, 1, 2}
  assert {(0, 6), (1, 4), (2, 8)} <= sizes  # Each drafted all it can.


@pytest.mark.slow
def test_sampled_rows_are_those_of_their_members_alone(target):
  of = mixed.Mixed(
    {
      'wide': toy.drafter(target, support=9),
      'narrow': toy.drafter(
        target, seed=5, num_draft_tokens=2, taps=(1,), support=4
      ),
    }
  )
  hot = jnp.asarray([0.0, 0.6, 1.0, 1.4])
  for seed in range(3):
    keys = jax.random.split(jax.random.key(seed), NUM_ROWS)
    _, draft = check(of, seed, hot, keys)
    assert draft.q.ids.shape == (NUM_ROWS, 4, 9)


class EveryRow(mixed.Mixed):
  """Broken: every member takes in every row."""

  def commit(self, state, table, rows):
    members = [
      super(EveryRow, self)
      .commit(mixed.State(state.members, state.choice * 0 + i), table, rows)
      .members[i]
      for i in range(len(self.members))
    ]
    return mixed.State(tuple(members), state.choice)


class OtherTaps(mixed.Mixed):
  """Broken: members get other layers than theirs."""

  def commit(self, state, table, rows):
    rows = dataclasses.replace(rows, taps=rows.taps[:, :, ::-1])
    return super().commit(state, table, rows)


class NextMember(mixed.Mixed):
  """Broken: rows get the draft of another member."""

  def propose(self, state, *args):
    next_one = (state.choice + 1) % len(self.members)
    choice = jnp.where(state.choice < 0, -1, next_one)
    return super().propose(mixed.State(state.members, choice), *args)


@pytest.mark.slow
@pytest.mark.parametrize('broken', [EveryRow, OtherTaps, NextMember])
def test_the_comparison_sees_a_broken_mixture(target, broken):
  members = {
    'ngram': ngram.NGram(2),
    'dflash': toy.drafter(target, taps=(0, 2)),
  }
  with pytest.raises(AssertionError):
    for seed in range(3):
      check(broken(members), seed)


@pytest.mark.parametrize(
  'choice',
  [
    pytest.param((0, 0, 0), marks=pytest.mark.slow),
    pytest.param((1, 1, 1), marks=pytest.mark.slow),
    pytest.param((1, 0, 1), marks=pytest.mark.slow),
  ],
)
def test_conformance_of_sampling_members(target, choice):
  of = mixed.Mixed(
    {
      'dflash': toy.drafter(target, taps=(0, 2)),
      'eagle3': small_eagle3.drafter(target, taps=(1,), num_draft_tokens=2),
    }
  )
  drafter_suite.run(Chosen(of, choice), target)


@pytest.mark.slow
@pytest.mark.parametrize('choice', [(0, 0, 0), (1, 1, 1), (1, -1, 0)])
def test_conformance_of_members_without_taps(target, choice):
  found = suffix.Suffix(suffix.Config(num_draft_tokens=5, tree_size=6))
  of = mixed.Mixed({'ngram': ngram.NGram(3), 'suffix': found})
  assert of.taps == ()
  drafter_suite.run(Chosen(of, choice), target)


@pytest.mark.slow
@pytest.mark.parametrize('index', [0, 1])
def test_one_choice_for_all_drafts_what_the_member_drafts(target, index):
  """The same text through the suite's own rounds."""
  members = {
    'ngram': ngram.NGram(4),
    'dflash': toy.drafter(target, taps=(1, 2)),
  }
  of = Chosen(mixed.Mixed(members), [index] * drafter_suite.NUM_ROWS)
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  text %= 4
  drafts = []
  for drafter in (of, list(members.values())[index]):
    suite = drafter_suite.Suite(drafter, target)
    state = suite.prefill(text, drafter_suite.SCHEDULES['rounds'])
    drafts.append(suite.propose(*state, text))
  for row in range(drafter_suite.NUM_ROWS):
    assert_same(live(drafts[0], row), live(drafts[1], row), f'row {row}')
  assert int(jnp.max(drafts[0].num_nodes)) > 1


class Counted(ngram.NGram):
  """Says when it runs."""

  def __init__(self):
    super().__init__(2)
    self.ran = functools.partial(list.append, _RAN)

  def propose(self, *args):
    jax.debug.callback(lambda: self.ran('propose'))
    return super().propose(*args)

  def commit(self, *args):
    jax.debug.callback(lambda: self.ran('commit'))
    return super().commit(*args)


_RAN = []


@pytest.mark.few(1)
@pytest.mark.parametrize(
  ('choice', 'num_rows', 'ran'),
  [
    ([0, 1, 0, -1], [1, 1, 1, 1], {'commit', 'propose'}),
    ([0, 1, 0, -1], [1, 0, 1, 1], {'propose'}),
    ([0, 0, -1, 0], [1, 1, 1, 1], set()),
  ],
)
def test_a_member_runs_only_for_rows_that_chose_it(choice, num_rows, ran):
  of = mixed.Mixed({'other': ngram.NGram(1), 'counted': Counted()})
  state = mixed.State(fresh(of).members, jnp.asarray(choice, jnp.int32))
  table, rows = next(schedule(0))
  rows = dataclasses.replace(only(rows, ()), num_rows=jnp.asarray(num_rows))
  _RAN.clear()
  state = commit(of, state, table, rows)
  drafter_suite.propose(of, state, table, rows.next_token, None, None)
  jax.effects_barrier()
  assert set(_RAN) == ran


@pytest.mark.slow
def test_one_row_chooses_anew_and_the_others_stay(mixture):
  state = fresh(mixture)
  np.testing.assert_array_equal(state.choice, [0, 0, 0, 0])
  choose = jax.jit(mixed.choose)
  for row, index in ((2, 1), (0, -1), (2, 2)):
    state = choose(state, jnp.int32(row), jnp.int32(index))
  np.testing.assert_array_equal(state.choice, [-1, 0, 2, 0])


def test_sizes_and_names(mixture):
  assert mixture.taps == (0, 1, 2)
  assert mixture.num_draft_tokens == 7
  assert isinstance(mixture, base.Drafter)
  names = (None, 'ngram', 'dflash', 'eagle3', 'none')
  assert [mixture.index(name) for name in names] == [0, 0, 1, 2, -1]
  with pytest.raises(errors.UserError, match="'mtp'.*ngram, dflash, eagle3"):
    mixture.index('mtp')


def test_mixtures_that_cannot_be_are_refused(mixture):
  with pytest.raises(errors.UserError, match='no drafters'):
    mixed.Mixed({})
  with pytest.raises(errors.UserError, match="called 'none'"):
    mixed.Mixed({'none': ngram.NGram(1)})
  with pytest.raises(errors.UserError, match="'inner' is a mixture itself"):
    mixed.Mixed({'inner': mixture})


def test_drafts_of_two_kinds_are_refused_where_they_are_sampled(mixture):
  """Lookup and a sampled tree have no rule in common but walk."""
  table, rows = next(schedule(0))
  state = fresh(mixture)
  keys = jax.random.split(jax.random.key(0), NUM_ROWS)
  hot = jnp.ones((NUM_ROWS,))
  message = 'ngram a function of the text, dflash independent, eagle3 without'
  with pytest.raises(errors.UserError, match=message):
    mixture.propose(state, table, rows.next_token, hot, keys)
