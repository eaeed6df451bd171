# SPDX-License-Identifier: MIT
"""The suffix tree against counting by hand, on short texts of few letters."""

import collections
import random

import pytest

from jspec.drafters import suffix_tree

NUM_TEXTS = 60


def by_hand(texts, max_depth):
  """Counts of all substrings of up to `max_depth` tokens."""
  counts = collections.Counter()
  for text in texts:
    for start in range(len(text)):
      for stop in range(start + 1, min(start + max_depth, len(text)) + 1):
        counts[tuple(text[start:stop])] += 1
  return counts


def shape(tree):
  """Everything a tree holds, whichever texts its edges point at."""

  def of(node, is_root):
    ends = collections.Counter(node.ends or {})
    if not is_root and node.children is None:
      ends[node.size()] += 1  # the owner's
    label = node.text[node.start : node.start + node.size()]
    children = (node.children or {}).values()
    below = sorted(of(child, False) for child in children)
    return ([] if is_root else label, node.count, sorted(ends.items()), below)

  return of(tree._root, True)


def tree_of(texts, max_depth):
  tree = suffix_tree.SuffixTree(max_depth)
  for text in texts:
    tree.add(text)
  return tree


def draw(rng, vocab_size, longest=14):
  return [rng.randrange(vocab_size) for _ in range(rng.randint(0, longest))]


def cases():
  rng = random.Random(0)
  for _ in range(NUM_TEXTS):
    yield rng, rng.choice([1, 2, 3, 6, 64]), rng.choice([1, 2, 3])


def assert_counts(tree, texts, rng):
  counts = by_hand(texts, tree.max_depth)
  for tokens, count in counts.items():
    assert tree.count(tokens) == count, tokens
  for _ in range(20):
    tokens = tuple(draw(rng, 3, tree.max_depth + 2)) or (0,)
    assert tree.count(tokens) == counts[tokens]


def test_counts_are_those_of_substrings():
  for rng, max_depth, vocab_size in cases():
    texts = [draw(rng, vocab_size) for _ in range(rng.randint(1, 4))]
    assert_counts(tree_of(texts, max_depth), texts, rng)


def test_an_example_by_hand():
  tree = tree_of([[1, 2, 3, 9, 1, 2, 3]], 4)
  assert tree.count([1, 2, 3]) == 2
  assert tree.count([1, 2, 3, 9]) == 1
  assert tree.count([2, 3, 9, 1, 2]) == 0, 'longer than the tree is deep'
  place = tree.find([3])
  assert [(token, n) for token, n, _ in suffix_tree.following(place)] == [
    (9, 1)
  ]
  assert suffix_tree.count_at(place) == 2


def test_grown_text_equals_the_whole_text():
  for rng, max_depth, vocab_size in cases():
    before = [draw(rng, vocab_size) for _ in range(2)]
    grown, text = tree_of([*before, []], max_depth), []
    for _ in range(8):
      more = draw(rng, vocab_size, 5)
      text += more
      grown.extend(more)
      assert shape(grown) == shape(tree_of([*before, text], max_depth))


def test_removed_text_leaves_nothing_behind():
  for rng, max_depth, vocab_size in cases():
    texts = {}
    tree = suffix_tree.SuffixTree(max_depth)
    for _ in range(5):
      text = draw(rng, vocab_size)
      texts[tree.add(text)] = text
    while texts:
      gone = rng.choice(list(texts))
      tree.remove(gone)
      del texts[gone]
      assert shape(tree) == shape(tree_of(texts.values(), max_depth))
      assert_counts(tree, list(texts.values()), rng)
    assert shape(tree) == shape(suffix_tree.SuffixTree(max_depth))


def test_text_grows_on_after_another_was_removed():
  for rng, max_depth, vocab_size in cases():
    other, text = draw(rng, vocab_size), draw(rng, vocab_size)
    tree = suffix_tree.SuffixTree(max_depth)
    first = tree.add(other)
    tree.add(text)
    tree.remove(first)
    more = draw(rng, vocab_size)
    tree.extend(more)
    assert shape(tree) == shape(tree_of([text + more], max_depth))


def test_first_in_first_out_keeps_no_text_that_is_gone():
  tree = suffix_tree.SuffixTree(8)
  rng = random.Random(1)
  ids = [tree.add([1, 2, 3, *draw(rng, 3)]) for _ in range(6)]
  for gone in ids[:3]:
    tree.remove(gone)
  alive = {id(text) for text in tree._texts.values()}
  nodes = list(tree._root.children.values())
  while nodes:
    node = nodes.pop()
    nodes += (node.children or {}).values()
    if node.children:
      assert id(node.text) in alive


def test_suffixes_are_the_endings_that_occur_elsewhere():
  for rng, max_depth, vocab_size in cases():
    tree, text = suffix_tree.SuffixTree(max_depth), []
    tree.add([])
    for _ in range(6):
      more = draw(rng, vocab_size, 4)
      text += more
      tree.extend(more)
      found = list(tree.suffixes())
      lengths = [length for length, _ in found]
      assert lengths == list(range(1, len(found) + 1))
      for length, place in found:
        assert length < max_depth
        ending = text[-length:]
        assert suffix_tree.count_at(place) == tree.count(ending)
      longer = len(found) + 1
      if longer < min(max_depth, len(text) + 1):
        assert tree.count(text[-longer:]) == 1


@pytest.mark.parametrize('text', [[7] * 300, list(range(40)) * 8])
def test_few_nodes_however_much_repeats(text):
  tree = tree_of([text], 64)
  nodes, num = [tree._root], 0
  while nodes:
    num += 1
    nodes += (nodes.pop().children or {}).values()
  assert num <= 2 * len(text)
