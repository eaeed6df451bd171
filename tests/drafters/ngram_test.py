# SPDX-License-Identifier: MIT
"""Looking the last tokens up and copying what followed."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.drafters import base, ngram
from jspec.testing import drafter_suite, toy

NUM_ROWS = 40
LONGEST = 32


@functools.partial(jax.jit, static_argnums=0)
def _round(drafter, tokens, num_rows, anchor):
  table = paged.contiguous_table(NUM_ROWS, 4)
  state = drafter.init_state(table, NUM_ROWS * 4, 8)
  taps = jnp.zeros((*tokens.shape, 0, 1))
  rows = base.Committed(tokens, taps, num_rows, anchor)
  state = drafter.commit(state, table, rows)
  table = paged.advance(table, num_rows, jnp.zeros((), bool))
  return drafter.propose(state, table, anchor, None, None)


DRAFTER = ngram.NGram(4)


def _propose(texts):
  """The draft behind the last token of every text; one shape for all tests."""
  texts = texts + [[0]] * (NUM_ROWS - len(texts))
  tokens = np.full((NUM_ROWS, LONGEST), 77, np.int32)  # Rejected rows behind.
  for row, text in enumerate(texts):
    tokens[row, : len(text) - 1] = text[:-1]
  num_rows = np.asarray([len(text) - 1 for text in texts], np.int32)
  anchor = np.asarray([text[-1] for text in texts], np.int32)
  draft = _round(DRAFTER, tokens, num_rows, anchor)
  return types.SimpleNamespace(
    tokens=np.asarray(draft.tokens),
    num_nodes=np.asarray(draft.num_nodes),
    confidence=np.asarray(draft.confidence),
  )


@pytest.mark.parametrize(
  'text, drafts',
  [
    # A repetition is copied in full.
    ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [4, 5, 6, 7]),
    # A short period goes around: the copy is longer than the match is far.
    ([5, 6, 5, 6, 5], [6, 5, 6, 5]),
    ([9, 9], [9, 9, 9, 9]),
    # Three tokens back up a match better than two, however recent these are.
    ([1, 2, 3, 8, 8, 2, 3, 9, 9, 1, 2, 3], [8, 8, 2, 3]),
    # Two better than one.
    ([2, 3, 8, 7, 3, 9, 9, 2, 3], [8, 7, 3, 9]),
    # Among equals the latest.
    ([3, 8, 0, 3, 9, 0, 4, 3], [9, 0, 4, 3]),
    # Only the last token occurs.
    ([4, 7, 1, 2, 4], [7, 1, 2, 4]),
  ],
)
def test_draft_is_what_followed(text, drafts):
  draft = _propose([text])
  np.testing.assert_array_equal(draft.tokens[0], [text[-1], *drafts])
  assert draft.num_nodes[0] == 5


@pytest.mark.parametrize('text', [[1], [1, 2], [1, 2, 3, 4], [0, 77]])
def test_no_drafts_when_nothing_matches_earlier(text):
  draft = _propose([text])
  assert draft.num_nodes[0] == 1
  assert draft.tokens[0, 0] == text[-1]


def test_rows_are_independent_of_their_neighbours():
  texts = [[1, 2, 1], [3, 4, 5], [6] * 7]
  together = _propose(texts)
  np.testing.assert_array_equal(together.num_nodes[:3], [5, 1, 5])
  for row, text in enumerate(texts):
    alone = _propose([text])
    np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_longer_match_is_trusted_more():
  one = _propose([[4, 7, 1, 2, 4]]).confidence[0, 1]
  three = _propose([[1, 2, 3, 4, 1, 2, 3]]).confidence[0, 1]
  assert one < three


def test_matches_naive_search_on_random_texts():
  rng = np.random.default_rng(0)
  texts = [list(rng.integers(0, 4, rng.integers(1, 28))) for _ in range(40)]
  draft = _propose(texts)
  for row, text in enumerate(texts):
    np.testing.assert_array_equal(
      draft.tokens[row, 1 : draft.num_nodes[row]], _naive(text, 4)
    )


def _naive(text, num_drafts):
  for n in (3, 2, 1):
    for start in range(len(text) - n - 1, -1, -1):
      if len(text) > n and text[start : start + n] == text[-n:]:
        out = list(text)
        for i in range(num_drafts):
          out.append(out[start + n + i])
        return out[len(text) :]
  return []


def test_conformance():
  drafter_suite.run(ngram.NGram(4), toy.target())
