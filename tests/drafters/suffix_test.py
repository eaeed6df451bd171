# SPDX-License-Identifier: MIT
"""The suffix drafter: what the host remembers of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.drafters import suffix, suffix_search, suffix_tree
from jspec.testing import drafter_suite, toy


def host(**options):
  return suffix.Host(suffix.Config(**options))


def ask(of, texts):
  """What a host drafts behind texts, one a row; garbage behind each."""
  buffer = np.full((len(texts), 96), 77, np.int32)
  for row, text in enumerate(texts):
    buffer[row, : len(text) - 1] = text[:-1]
  lengths = np.asarray([len(text) - 1 for text in texts], np.int32)
  anchor = np.asarray([text[-1] for text in texts], np.int32)
  drafted = of.propose(buffer, lengths, anchor)
  draft = tree.Draft(*map(jnp.asarray, drafted))
  tree.check(draft)
  return draft


def drafts(of, text):
  draft = ask(of, [text])
  return draft.tokens[0, 1 : draft.num_nodes[0]].tolist()


def held(of):
  """The finished answers a host keeps."""
  return list(of._finished._texts.values())


def fresh(text, **options):
  """What a host that knows nothing else drafts."""
  return drafts(host(**options), text)


def test_repetition_is_copied():
  assert fresh([1, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5, 6]
  assert fresh([1, 2, 3, 4]) == []
  assert fresh([1]) == []


@pytest.mark.slow
@pytest.mark.parametrize('tree_size', [0, 6])
def test_draft_is_a_function_of_the_text_alone(tree_size):
  options = {'tree_size': tree_size, 'max_depth': 12}
  rng = np.random.default_rng(0)
  of = host(**options)
  texts = [rng.integers(0, 3, 60).tolist() for _ in range(4)]
  for _ in range(60):
    # Growth, calls left out, earlier states and other texts, as they come.
    now = [texts[i][: rng.integers(1, 60)] for i in rng.permutation(4)]
    got, again = ask(of, now), ask(of, now)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(again), strict=True):
      np.testing.assert_array_equal(a, b)
    for row, text in enumerate(now):
      want = got.tokens[row, 1 : got.num_nodes[row]].tolist()
      assert want == fresh(text, **options)


def test_confidence_and_law():
  draft = ask(host(), [[1, 2, 3, 1, 2, 4, 1, 2]])
  assert draft.q is None
  np.testing.assert_allclose(draft.confidence[0, :2], [1, 1 / 3])


PROMPT = [30, 31, 32]
ANSWER = [1, 2, 3, 4, 5, 6, 7, 8]


def finish(of, prompt, answer, step=2):
  """A row that answers a prompt, a few tokens a round."""
  for stop in range(0, len(answer) + 1, step):
    ask(of, [prompt + answer[:stop]])


def test_answer_is_remembered_when_its_row_starts_another_text():
  of = host(scope='global')
  finish(of, PROMPT, ANSWER)
  assert held(of) == []
  assert drafts(of, [50, 1, 2, 3]) == [4, 5, 6]
  assert held(of) == [ANSWER]
  # Neither the prompt nor a text that was asked about once is an answer.
  assert drafts(of, [51, 30, 31]) == []
  assert held(of) == [ANSWER]


def test_local_scope_remembers_no_answer():
  of = host(scope='local')
  finish(of, PROMPT, ANSWER)
  assert drafts(of, [50, 1, 2, 3]) == []
  assert held(of) == []


def test_the_same_prompt_again_is_another_text():
  of = host(scope='global')
  finish(of, PROMPT, ANSWER)
  assert drafts(of, PROMPT) == []  # nothing ends in 32 and goes on
  assert held(of) == [ANSWER]
  finish(of, PROMPT, ANSWER)
  ask(of, [[60]])
  assert held(of) == [ANSWER, ANSWER]


def test_repeated_and_older_calls_add_nothing():
  of = host(scope='global')
  finish(of, PROMPT, ANSWER)
  for stop in (8, 8, 3, 5, 1, 8):
    ask(of, [PROMPT + ANSWER[:stop]])
  assert held(of) == []
  ask(of, [[60]])
  assert held(of) == [ANSWER]


def test_text_that_grows_faster_than_rounds_is_prompt():
  of = host(scope='global', num_draft_tokens=2)
  ask(of, [[0]])  # an empty row
  finish(of, [0, *range(40, 50)], ANSWER)
  ask(of, [[60]])
  assert held(of) == [ANSWER]


def test_oldest_answers_are_dropped():
  of = host(scope='global', max_outputs=2)
  answers = [[at, at + 1, at + 2, at + 3] for at in (0, 10, 20)]
  for number, answer in enumerate(answers):
    finish(of, [90 + number], answer)
  ask(of, [[99]])
  assert held(of) == answers[1:]
  only = suffix_tree.SuffixTree(64)
  for answer in answers[1:]:
    only.add(answer)
  for answer in answers:
    assert of._finished.count(answer) == only.count(answer)
  assert drafts(of, [80, 0, 1]) == []
  assert drafts(of, [80, 10, 11]) == [12, 13]


def test_own_text_wins_unless_the_others_score_more():
  of = host(scope='global')
  of.add([1, 2, 3, 4])
  # Own: 9 behind 1 2 once in two, others: 3 always, then 4.
  text = [1, 2, 9, 1, 2]
  assert fresh(text) == [9, 1]
  assert drafts(of, text) == [3, 4]
  of = host(scope='global')
  of.add([2, 9, 2, 8])  # 9 and 8 once in two each, as own
  assert drafts(of, [2, 7, 2]) == [7]
  found = suffix_search.matches(of._finished, [2])
  ((_, place),) = found
  assert suffix_search.path(place, 1, 0.1).score == 1 / 2


def test_draft_that_expects_too_little_is_withdrawn():
  text = [1, 2, 9, 1, 2]  # 9 in one of two, then 1: 0.5 + 0.5
  for least, want in ((0.0, [9, 1]), (1.0, [9, 1]), (1.01, [])):
    assert fresh(text, min_expected_accepted=least) == want


@pytest.mark.few(1)
@pytest.mark.parametrize('tree_size', [0, 7])
def test_conformance(tree_size):
  config = suffix.Config(num_draft_tokens=5, tree_size=tree_size)
  drafter_suite.run(suffix.Suffix(config), toy.target())
