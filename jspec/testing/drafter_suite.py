# SPDX-License-Identifier: MIT
"""What every drafter must pass, ours and yours.

  from jspec.testing import drafter_suite, toy

  def test_my_drafter():
    drafter_suite.run(my_drafter, toy.target())

The state is a value that only `commit` changes, and only with accepted rows; so
whatever the schedule of chunks, rejected drafts and rounds without drafts, it
equals one fresh prefill of the accepted text.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.cache import paged
from jspec.drafters import base
from jspec.testing import toy

NUM_ROWS = 3
TEXT_LEN = 22
PAGE_SIZE = 4
PAGES_PER_ROW = 8

# Rows committed by each call, for each of the three batch rows: prefill chunks
# of unequal length, a full block, a rejection at once, a round that gives one
# row nothing. All sum to TEXT_LEN - 1: the last token is the anchor.
SCHEDULES = {
  'one_prefill': [[21, 21, 21]],
  'chunks': [[5, 8, 1], [8, 8, 8], [8, 5, 8], [0, 0, 4]],
  'rounds': [[8, 5, 3]] + [[1, 4, 2]] * 4 + [[8, 0, 8], [1, 0, 2]],
  'anchor_only': [[8, 8, 8], [8, 8, 8]] + [[1, 1, 1]] * 5,
}
_CHUNK = 8
NUM_DRAWS = 6


# Modules are arguments, not constants, so that equal drafters share a program.


@jax.jit
def propose(drafter, *args):
  """`drafter.propose`, compiled."""
  return drafter.propose(*args)


@functools.partial(jax.jit, static_argnames='taps')
def encode(target, text, positions, segments, taps):
  """The target's captured states of whole texts."""
  return target.encode(text, positions, segments, taps)[1]


class Suite:
  """One drafter over one target, with every program compiled once."""

  def __init__(self, drafter, target):
    self.drafter = drafter
    self.target = target
    self.num_traces = 0
    self._commit_jit = jax.jit(self._commit)

  def _commit(self, drafter, state, table, rows):
    self.num_traces += 1
    state = drafter.commit(state, table, rows)
    return state, paged.advance(table, rows.num_rows, jnp.zeros((), bool))

  def check_state_equals_a_fresh_prefill(self) -> None:
    """All schedules end in the same state and the same proposal."""
    text = toy.prompts(NUM_ROWS, TEXT_LEN)
    want = self._after(text, 'one_prefill')
    for name in SCHEDULES:
      _assert_close(want, self._after(text, name), name)

  def check_rows_are_isolated(self) -> None:
    """Another text in row 1 changes nothing in rows 0 and 2."""
    text = toy.prompts(NUM_ROWS, TEXT_LEN)
    other = text.copy()
    other[1] = toy.prompts(1, TEXT_LEN, seed=9)[0]
    drafts = [self._after(tokens, 'rounds')[1] for tokens in (text, other)]
    others = [jax.tree.map(lambda x: x[0::2], draft) for draft in drafts]
    _assert_close(*others, 'rows 0 and 2')

  def check_draft_is_well_formed(self) -> None:
    """Shapes, parents, confidence and, when sampled, the law."""
    text = toy.prompts(NUM_ROWS, TEXT_LEN)
    state, table = self.prefill(text, SCHEDULES['chunks'])
    keys = jax.random.split(jax.random.key(0), NUM_ROWS)
    hot = jnp.asarray([0.0, 0.7, 1.3])
    for temperature, draw in ((None, None), (hot, keys)):
      draft = self.propose(state, table, text, temperature, draw)
      again = self.propose(state, table, text, temperature, draw)
      for a, b in zip(
        jax.tree.leaves(draft), jax.tree.leaves(again), strict=True
      ):
        np.testing.assert_array_equal(a, b)
      _check_draft(draft, text, self.drafter, self.target)
      if temperature is None:
        assert draft.q is None
      elif draft.q is not None:
        _check_law(draft, hot)

  def check_confidence_depends_as_claimed(self) -> None:
    """Drawn anew, what it does not look at leaves a confidence as it is."""
    depends = base.confidence_depends(self.drafter)
    assert depends in base.DEPENDS, f'confidence_depends is {depends!r}'
    text = toy.prompts(NUM_ROWS, TEXT_LEN)
    state, table = self.prefill(text, SCHEDULES['chunks'])
    hot = jnp.full((NUM_ROWS,), 1.5)
    known = {}
    for draw in range(NUM_DRAWS):
      keys = jax.random.split(jax.random.key(draw), NUM_ROWS)
      draft = self.propose(state, table, text, hot, keys)
      for row in range(NUM_ROWS):
        for node, path in _paths(draft, row):
          seen = {'prefix': (), 'before': path[:-1], 'token': path}[depends]
          got = float(draft.confidence[row, node])
          first = known.setdefault((row, node, seen), got)
          assert abs(got - first) < 1e-5, (
            f'confidence_depends is {depends!r}, but that of node {node} is'
            f' {first} and then {got} behind {path[:-1]} if {path[-1]} is drawn'
          )

  def check_no_retrace(self) -> None:
    """Other texts, lengths and row counts run the same compiled program."""
    text = toy.prompts(NUM_ROWS, TEXT_LEN, seed=1)
    state, table = self.prefill(text, SCHEDULES['rounds'])
    before, shapes = self.num_traces, _shapes(state)
    for counts in ([0, 3, 8], [8, 1, 0]):
      rows = self._rows(text, np.zeros(NUM_ROWS, int), np.array(counts))
      state, table = self._commit_jit(self.drafter, state, table, rows)
    assert self.num_traces == before, 'commit was traced again'
    assert _shapes(state) == shapes

  def prefill(self, text, schedule):
    """Commits `text` but its last token along a schedule.

    Returns the drafter's state and the page table.
    """
    table = paged.contiguous_table(NUM_ROWS, PAGES_PER_ROW)
    num_pages = NUM_ROWS * PAGES_PER_ROW
    state = self.drafter.init_state(table, num_pages, PAGE_SIZE)
    done = np.zeros(NUM_ROWS, int)
    for counts in schedule:
      rows = self._rows(text, done, np.array(counts))
      state, table = self._commit_jit(self.drafter, state, table, rows)
      done += counts
    assert np.all(done == TEXT_LEN - 1), 'a schedule must take all of it'
    return state, table

  def propose(self, state, table, text, temperature=None, keys=None):
    """The proposal behind the last token of every row."""
    anchor = jnp.asarray(text[:, -1])
    return propose(self.drafter, state, table, anchor, temperature, keys)

  def _after(self, text, name):
    state, table = self.prefill(text, SCHEDULES[name])
    return state, self.propose(state, table, text)

  def _rows(self, text, done, counts):
    """The next `counts` tokens of each row, with garbage behind them."""
    num_rows, length = text.shape
    width = max(_CHUNK, int(counts.max()))
    positions = np.broadcast_to(np.arange(length), text.shape)
    taps = encode(
      self.target,
      text,
      positions,
      np.ones_like(text),
      tuple(self.drafter.taps),
    )
    taps = np.asarray(taps)
    rng = np.random.default_rng(int(done.sum()))
    tokens = rng.integers(0, self.target.vocab_size, (num_rows, width))
    rows = rng.normal(size=(num_rows, width, *taps.shape[2:]))
    for row in range(num_rows):
      span = slice(done[row], done[row] + counts[row])
      tokens[row, : counts[row]] = text[row, span]
      rows[row, : counts[row]] = taps[row, span]
    following = [text[row, done[row] + counts[row]] for row in range(num_rows)]
    return base.Committed(
      tokens=jnp.asarray(tokens, jnp.int32),
      taps=jnp.asarray(rows, jnp.float32),
      num_rows=jnp.asarray(counts, jnp.int32),
      next_token=jnp.asarray(following, jnp.int32),
    )


def run(drafter, target) -> None:
  """Runs every check."""
  suite = Suite(drafter, target)
  suite.check_state_equals_a_fresh_prefill()
  suite.check_rows_are_isolated()
  suite.check_draft_is_well_formed()
  suite.check_confidence_depends_as_claimed()
  suite.check_no_retrace()


def _shapes(state):
  return [leaf.shape for leaf in jax.tree.leaves(state)]


def _assert_close(want, got, name):
  leaves = zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)


def _paths(draft, row):
  """Every live draft node with the tokens from the anchor's child to it."""
  tokens, parents = np.asarray(draft.tokens[row]), draft.parents[row].tolist()
  paths = [()]
  for node in range(1, int(draft.num_nodes[row])):
    paths.append((*paths[parents[node]], int(tokens[node])))
    yield node, paths[node]


def _check_draft(draft, text, drafter, target):
  shape = (NUM_ROWS, drafter.num_draft_tokens + 1)
  assert draft.tokens.shape == draft.parents.shape == shape
  assert draft.confidence.shape == shape
  np.testing.assert_array_equal(draft.tokens[:, 0], text[:, -1])
  np.testing.assert_array_equal(draft.confidence[:, 0], 1)
  assert np.all((draft.confidence >= 0) & (draft.confidence <= 1 + 1e-6))
  tree.check(draft)
  assert np.all((draft.tokens >= 0) & (draft.tokens < target.vocab_size))


def _check_law(draft, temperature):
  """Every drawn token has a chance in its parent's law, which is a law."""
  all_ids, all_probs = np.asarray(draft.q.ids), np.asarray(draft.q.probs)
  assert draft.q.draws in ('independent', 'without_replacement')
  node = np.arange(draft.tokens.shape[1])
  for row, parents in enumerate(np.asarray(draft.parents)):
    is_live = (node > 0) & (node < draft.num_nodes[row])
    for parent in set(parents[is_live].tolist()):
      ids, probs = all_ids[row, parent], all_probs[row, parent]
      np.testing.assert_allclose(probs.sum(), 1, atol=1e-5)
      live = ids[probs > 0]
      assert len(set(live)) == len(live), 'a law names a token twice'
      siblings = np.asarray(draft.tokens[row])[is_live & (parents == parent)]
      if temperature[row] == 0:
        # The law is one token. Siblings behind it are nobody's draws: every
        # rule follows the argmax there.
        np.testing.assert_allclose(probs.max(), 1)
        siblings = siblings[:1]
      assert set(siblings) <= set(live), (
        'a token was drawn that its law excludes'
      )
      if draft.q.draws == 'without_replacement':
        assert len(set(siblings)) == len(siblings), 'a token was drawn twice'
