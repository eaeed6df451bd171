# SPDX-License-Identifier: MIT
"""The draft of a suffix tree against a search through all endings by hand."""

import random

import numpy as np
import pytest

from jspec import errors
from jspec.drafters import suffix, suffix_search, suffix_tree

NUM_TEXTS = 250
GROW = {'path': suffix_search.path, 'tree': suffix_search.tree}


def occurrences(texts, tokens, max_depth):
  if len(tokens) > max_depth:
    return 0
  n = len(tokens)
  return sum(
    text[at : at + n] == tokens
    for text in texts
    for at in range(len(text) - n + 1)
  )


def naive(texts, context, config, is_tree):
  """Tokens, parents and score of the best draft, by counting substrings."""
  deep = config.max_depth
  letters = sorted({token for text in texts for token in text})
  best = ([], [], 0.0)
  for length in range(1, min(len(context), deep) + 1):
    match = context[-length:]
    if not occurrences(texts, match, deep):
      continue
    tokens, parents, paths, probs = [], [], [match], [1.0]
    waiting = []  # (-p, when it was found, parent, token)

    def find(parent, paths=paths, probs=probs, waiting=waiting):
      total = occurrences(texts, paths[parent], deep)
      counts = [
        (-occurrences(texts, [*paths[parent], letter], deep), letter)
        for letter in letters
      ]
      for count, letter in sorted(counts):
        p = probs[parent] * (-count / total)
        if count and p >= config.min_prob:
          order = len(waiting) + sum(1 for _ in paths) * 1000
          waiting.append((-p, order, parent, letter))

    find(0)
    while waiting and len(tokens) < config.budget(length):
      chosen = min(waiting)
      if is_tree:
        waiting.remove(chosen)
      else:
        waiting.clear()
      p, _, parent, letter = chosen
      tokens.append(letter)
      parents.append(parent)
      paths.append([*paths[parent], letter])
      probs.append(-p)
      find(len(tokens))
    score = sum(probs[1:])
    if tokens and score >= best[2]:
      best = (tokens, parents, score)
  return best


def config_of(rng, is_tree):
  return suffix.Config(
    num_draft_tokens=rng.choice([1, 4, 8]),
    tree_size=rng.choice([1, 5, 9]) if is_tree else 0,
    factor=rng.choice([0.5, 1.0, 2.0]),
    offset=rng.choice([-1.0, 0.0, 0.5, 2.0]),
    min_prob=rng.choice([0.0, 0.1, 0.3]),
    max_depth=rng.choice([2, 4, 9, 64]),
  )


@pytest.mark.few(2)
@pytest.mark.parametrize('kind', GROW)
@pytest.mark.parametrize('is_own', [True, False])
def test_draft_is_that_of_a_search_by_hand(kind, is_own):
  rng = random.Random(3)
  num_drafts, num_branches = 0, 0
  for _ in range(NUM_TEXTS):
    config = config_of(rng, kind == 'tree')
    letters = rng.choice([2, 3, 4])
    texts = [
      [rng.randrange(letters) for _ in range(rng.randint(1, 16))]
      for _ in range(1 if is_own else 3)
    ]
    context = [rng.randrange(letters) for _ in range(rng.randint(1, 12))]
    tree = suffix_tree.SuffixTree(config.max_depth)
    for text in texts:
      tree.add(text)
    if is_own:
      context = texts[0]
      matches = tree.suffixes()
    else:
      matches = suffix_search.matches(tree, context)
    found = suffix_search.best(
      matches, config.budget, GROW[kind], config.min_prob, config.max_depth
    )
    tokens, parents, score = naive(texts, context, config, kind == 'tree')
    assert (found.tokens, found.parents) == (tokens, parents)
    np.testing.assert_allclose(found.score, score)
    num_drafts += bool(tokens)
    num_branches += parents != sorted(set(parents))
  assert num_drafts > NUM_TEXTS / 3
  assert (num_branches > NUM_TEXTS / 20) == (kind == 'tree')


def search(text, grow=suffix_search.path, **options):
  config = suffix.Config(**options)
  tree = suffix_tree.SuffixTree(config.max_depth)
  tree.add(text)
  return suffix_search.best(
    tree.suffixes(), config.budget, grow, config.min_prob, config.max_depth
  )


def test_confidence_is_the_ratio_of_counts():
  # Behind 1 2: 3 twice, 4 once, and the text's end.
  text = [1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2]
  found = search(text)
  assert found.tokens == [3, 0]
  assert found.confidence == [2 / 4, 1 / 2]
  assert found.score == 2 / 4 + 1 / 4
  tree = search(text, suffix_search.tree, tree_size=8, factor=3.0)
  # 4, 0, 5 and 6 are as likely; 6 is found last, behind 4.
  assert tree.tokens[:5] == [3, 4, 0, 5, 6]
  assert tree.parents[:5] == [0, 0, 1, 1, 2]


def test_nothing_below_the_least_chance_is_drafted():
  text = [1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2]
  assert search(text, min_prob=0.5).tokens == [3]
  assert search(text, min_prob=0.51).tokens == []


def test_equal_scores_prefer_the_longer_match():
  # One draft either way: behind 1 always 2 but for the end, behind 5 1 too.
  text = [5, 1, 2, 5, 1]
  found = search(text, num_draft_tokens=1, max_depth=4)
  assert found.tokens == [2]
  assert search([9, 2, 3, 9, 2, 7, 4, 2]).tokens == [3], 'the lower of equals'


def test_budget_grows_with_the_match():
  for options in (
    {},
    {'factor': 0.3},
    {'factor': 0.0},
    {'factor': 2.5, 'offset': -4.0},
    {'factor': 1.0, 'offset': 3.0, 'num_draft_tokens': 20},
  ):
    config = suffix.Config(**options)
    budgets = [config.budget(length) for length in range(65)]
    assert budgets == sorted(budgets)
    assert budgets[0] >= 0 and budgets[-1] <= config.limit
  assert suffix.Config().budget(3) == 3
  with pytest.raises(errors.UserError, match='factor=-1'):
    suffix.Config(factor=-1.0)


def test_long_matches_are_followed_further():
  words = list(range(10, 40))
  assert len(search([*words, 1, *words[:2]]).tokens) == 2
  assert len(search([*words, 1, *words[:6]]).tokens) == 6
