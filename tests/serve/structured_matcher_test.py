# SPDX-License-Identifier: MIT
"""Masks of drafts and commits, against matchers that saw only one path."""

import itertools

import numpy as np
import pytest

from jspec.serve import structured, structured_draft
from tests.serve import constrained

pytest.importorskip(
  'llguidance', reason="install the extra: pip install 'jspec[structured]'"
)

SCHEMA = constrained.schema(
  {
    'type': 'object',
    'properties': {
      'ab': {'type': 'integer', 'minimum': 0, 'maximum': 999},
      'c': {'enum': ['x', True]},
    },
    'required': ['ab'],
    'additionalProperties': False,
  }
)
CONSTRAINTS = [
  SCHEMA,
  structured.Constraint('json_object'),
  structured.Constraint('regex', 'a(b|c)d'),
  structured.Constraint('regex', '(ab|abd|b)*[^a]?'),
  structured.Constraint('lark', 'start: A+ B?\nA: /ab?/\nB: "d"'),
]


@pytest.fixture(scope='module')
def compiler():
  return constrained.compiler()


@pytest.fixture(scope='module')
def tok():
  return constrained.byte_tokenizer()


def regex(pattern):
  return structured.Constraint('regex', pattern)


def path(tokens, parents, node):
  """Draft tokens from the anchor's child down to the node."""
  found = []
  while node > 0:
    found.append(int(tokens[node]))
    node = parents[node]
  return found[::-1]


def alone(compiler, constraint, emitted, tokens):
  """The mask behind a path, by a matcher that saw nothing else, or None.

  One token at a time, each looked up in the mask before it is taken.
  """
  matcher = compiler.matcher(constraint, tuple(emitted))
  for token in tokens:
    words = matcher.mask_words()
    if matcher.is_finished or token not in constrained.ids(words):
      return None
    matcher.commit((token,))
  return matcher.mask_words()


def random_tree(compiler, constraint, emitted, rng, num_nodes):
  """A draft whose nodes are mostly, not always, what the grammar allows."""
  tokens = np.zeros(num_nodes, np.int32)
  parents = np.full(num_nodes, -1, np.int32)
  for node in range(1, num_nodes):
    parents[node] = rng.integers(max(0, node - 4), node)
    above = path(tokens, parents, parents[node])
    words = alone(compiler, constraint, emitted, above)
    choice = [] if words is None else constrained.ids(words)
    if not choice or rng.random() < 0.2:
      choice = np.arange(constrained.VOCAB_SIZE)
    tokens[node] = rng.choice(choice)
  return tokens, parents


@pytest.mark.parametrize('constraint', CONSTRAINTS)
def test_every_node_has_the_mask_of_its_own_path(compiler, constraint):
  rng = np.random.default_rng(0)
  num_flat, num_refused = 0, 0
  for _ in range(8):
    matcher = compiler.matcher(constraint)
    for _ in range(4):
      emitted = matcher.tokens
      tokens, parents = random_tree(compiler, constraint, emitted, rng, 14)
      before = matcher.mask_words()
      masks = matcher.masks(tokens, parents, 12)
      for node in range(12):
        own = path(tokens, parents, node)
        want = alone(compiler, constraint, emitted, own)
        assert masks.is_allowed[node] == (want is not None)
        if want is None:
          num_refused += 1
          want = np.zeros_like(before)
        np.testing.assert_array_equal(masks.words[node], want)
        num_flat += not np.array_equal(masks.words[node], masks.words[0])
      assert not masks.is_allowed[12:].any() and not masks.words[12:].any()
      # A draft moves nothing.
      assert matcher.tokens == emitted
      np.testing.assert_array_equal(matcher.mask_words(), before)
      choice = [t for t in constrained.ids(before) if t != constrained.EOS]
      if matcher.is_finished or not choice:
        break
      matcher.commit((int(rng.choice(choice)),))
  # Control: one mask for the whole tree would be wrong, often.
  assert num_flat > 20 and num_refused > 5


def verify(masks, tokens, parents, preferred):
  """Greedy verification: the best allowed token, then its child, if any."""
  node, emitted = 0, []
  while True:
    allowed = constrained.ids(masks[node])
    token = max(allowed, key=lambda t: (preferred[node].get(t, 0), -t))
    emitted.append(token)
    children = np.flatnonzero((parents == node) & (tokens == token))
    if not len(children):
      return emitted
    node = int(children[0])


@pytest.mark.parametrize('first, second', ['bc', 'cb'])
def test_branches_stay_in_the_language_whatever_their_order(
  compiler, tok, first, second
):
  (a,), (x,), (y,) = (tok.encode(letter) for letter in 'axy')
  one, two = tok.encode(first)[0], tok.encode(second)[0]
  tokens = np.array([7, a, one, two], np.int32)
  parents = np.array([-1, 0, 1, 1], np.int32)
  matcher = compiler.matcher(regex('a(bx|cy)'))
  masks = matcher.masks(tokens, parents, 4)
  # The target likes the branch's letter, and then what the other one allows.
  for liked in (one, two):
    wrong = y if tok.decode([liked]) == 'b' else x
    preferred = [{a: 1}, {liked: 1}, {wrong: 1}, {wrong: 1}]
    good = verify(masks.words, tokens, parents, preferred)
    assert tok.decode(good) in ('abx', 'acy')
    # Control: a mask that siblings share lets the mix through.
    flat = masks.words.copy()
    flat[2:] = masks.words[2] | masks.words[3]
    bad = verify(flat, tokens, parents, preferred)
    assert tok.decode(bad) in ('aby', 'acx')


def test_chain_is_cut_at_its_first_refused_token_in_silence(
  compiler, tok, capfd
):
  ids = [0, *tok.encode('{"ab":'), *tok.encode('zz'), *tok.encode('12')]
  parents = np.arange(-1, len(ids) - 1, dtype=np.int32)
  matcher = compiler.matcher(SCHEMA)
  for _ in range(100):  # Proposed again and again: nothing wears out.
    masks = matcher.masks(np.array(ids), parents, len(ids))
  num_good = len(tok.encode('{"ab":'))
  assert masks.is_allowed.tolist() == [
    node <= num_good for node in range(len(ids))
  ]
  assert masks.words[0].any() and masks.words[num_good].any()
  kept = structured_draft.verified(
    parents, len(ids), masks.is_allowed, is_sampled=False
  )
  assert kept.num_nodes == num_good + 1
  captured = capfd.readouterr()
  assert captured.out + captured.err == ''


@pytest.mark.parametrize('token', [-1, 299, 10**6, 2**31, 2**40, 1])
def test_impossible_draft_tokens_are_refused_and_nothing_breaks(
  compiler, tok, token
):
  matcher = compiler.matcher(regex('abc'))
  a, b, c = tok.encode('abc')
  tokens = np.array([0, token, a, token, b], np.int64)
  parents = np.array([-1, 0, 0, 2, 2], np.int32)
  masks = matcher.masks(tokens, parents, 5)
  assert masks.is_allowed.tolist() == [True, False, True, False, True]
  with pytest.raises(ValueError, match='without the mask'):
    matcher.commit((a, token, b))
  assert matcher.tokens == (a,)
  assert matcher.commit((b, c)).is_finished


def test_block_ends_where_the_grammar_completes(compiler, tok):
  constraint = constrained.schema({'const': {'a': 1}})
  ids = tok.encode('{"a":1}')
  for extra in ((), (constrained.EOS,), tuple(tok.encode(' and more'))):
    matcher = compiler.matcher(constraint)
    done = matcher.commit((*ids, *extra))
    assert (done.num_tokens, done.is_finished) == (len(ids), True)
    assert constrained.ids(matcher.mask_words()) == [constrained.EOS]
    again = matcher.commit((constrained.EOS,))
    assert (again.num_tokens, again.is_finished) == (0, True)
  # In a draft nothing behind the brace is worth verifying.
  tokens = np.array([0, *ids, constrained.EOS, ids[0]])
  parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
  masks = compiler.matcher(constraint).masks(tokens, parents, len(tokens))
  assert masks.is_allowed.sum() == 1 + len(ids)
  # Control: one token short is not finished.
  assert not compiler.matcher(constraint).commit(ids[:-1]).is_finished


def test_end_of_answer_counts_where_the_grammar_could_go_on(compiler, tok):
  matcher = compiler.matcher(regex('[a-c]+'))
  a, b = tok.encode('ab')
  assert constrained.EOS not in constrained.ids(matcher.mask_words())
  with pytest.raises(ValueError, match='without the mask'):
    matcher.commit((constrained.EOS,))
  assert not matcher.commit((a,)).is_finished
  assert constrained.EOS in constrained.ids(matcher.mask_words())
  done = matcher.commit((b, constrained.EOS, a))
  assert (done.num_tokens, done.is_finished) == (2, True)


def test_draft_that_ends_the_answer_is_rolled_back(compiler, tok):
  matcher = compiler.matcher(regex('[a-c]+'))
  a, b = tok.encode('ab')
  matcher.commit((a,))
  tokens = np.array([a, constrained.EOS, b, constrained.EOS, b])
  parents = np.array([-1, 0, 0, 1, 2], np.int32)
  masks = matcher.masks(tokens, parents, 5)
  assert masks.is_allowed.tolist() == [True, True, True, False, True]
  assert not matcher.is_finished
  np.testing.assert_array_equal(masks.words[0], masks.words[2])


@pytest.mark.parametrize('constraint', CONSTRAINTS)
def test_matcher_is_rebuilt_from_what_was_emitted(compiler, constraint):
  rng = np.random.default_rng(4)
  matcher = compiler.matcher(constraint)
  for _ in range(20):
    again = compiler.matcher(constraint, matcher.tokens)
    words = matcher.mask_words()
    np.testing.assert_array_equal(words, again.mask_words())
    assert matcher.is_accepting == again.is_accepting
    assert matcher.is_finished == again.is_finished
    if matcher.is_finished:
      break
    matcher.commit((int(rng.choice(constrained.ids(words))),))
  with pytest.raises(ValueError, match='without the mask'):
    compiler.matcher(constraint, (1, 1))


def test_dead_end_of_a_draft_harms_nothing_else(compiler):
  # No token spells q: behind a nothing can follow, and EOS would be a lie.
  poor = constrained.byte_tokenizer(pieces=(), letters='abc')
  a, b, c = (poor.token_id(letter) for letter in 'abc')
  matcher = constrained.compiler(poor).matcher(regex('b?(aq|bc)'))
  matcher.commit((b,))
  for order in itertools.permutations((a, b, c)):
    tokens = np.array([b, *order, a, c])
    parents = np.array([-1, 0, 0, 0, 1 + order.index(b), 1 + order.index(a)])
    masks = matcher.masks(tokens, parents.astype(np.int32), 6)
    allowed = {order[i] for i in range(3) if masks.is_allowed[1 + i]}
    assert allowed == {a, b, c}
    assert not masks.words[1 + order.index(a)].any()
    assert masks.is_allowed[4:].tolist() == [False, False]
    assert constrained.ids(masks.words[0]) == [a, b, c]
    assert constrained.ids(masks.words[1 + order.index(b)]) == [c]
    assert matcher.problem == ''
  # Where the answer itself gets there, its request can be told why.
  assert not matcher.commit((a,)).is_finished
  assert not matcher.mask_words().any()
  assert matcher.problem == 'no token of the vocabulary can follow'
  assert not matcher.is_finished


def test_path_that_the_grammar_refuses_is_an_error(compiler, tok):
  matcher = compiler.matcher(regex('abc'))
  a, b, z = tok.encode('abz')
  assert constrained.ids(matcher.mask_words((a, b))) == tok.encode('c')
  with pytest.raises(ValueError, match=f'refuses token {z} '):
    matcher.mask_words((a, z, b))
  assert matcher.tokens == ()
