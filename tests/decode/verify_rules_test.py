# SPDX-License-Identifier: MIT
"""What all rules share: greedy rows, padding, rows without a law, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors, tree
from jspec.decode import sampling
from jspec.decode.verify import api

VOCAB, ROWS, NODES = 6, 24, 7
CHAIN = (-1, 0, 1, 2, 3, 4, 5)
TREE = (-1, 0, 0, 1, 1, 2, 2)
# The rule, the shape, how siblings are drawn.
CASES = [
  ('walk', TREE, None),
  ('token', CHAIN, 'independent'),
  ('block', CHAIN, 'independent'),
  ('recursive', TREE, 'without_replacement'),
  ('traversal', TREE, 'without_replacement'),
]
accept = jax.jit(api.accept, static_argnames='rule')
each_rule = pytest.mark.parametrize('rule, parents, draws', CASES)


def draft_of(parents, tokens, draws, probs=None, num_nodes=NODES):
  """Drafts of one shape; the law is uniform unless `probs` [Q] are given."""
  tokens = jnp.asarray(tokens, jnp.int32)
  shape = tokens.shape
  probs = np.full(VOCAB, 1 / VOCAB) if probs is None else np.asarray(probs)
  q = draws and tree.SparseLaw(
    jnp.broadcast_to(jnp.arange(VOCAB, dtype=jnp.int32), (*shape, VOCAB)),
    jnp.broadcast_to(jnp.asarray(probs, jnp.float32), (*shape, VOCAB)),
    draws=draws,
  )
  return tree.Draft(
    tokens=tokens,
    parents=jnp.broadcast_to(jnp.asarray(parents, jnp.int32), shape),
    num_nodes=jnp.broadcast_to(jnp.asarray(num_nodes, jnp.int32), shape[:1]),
    confidence=jnp.ones(shape),
    q=q,
  )


def drawn_tokens(rng, parents, draws, probs=None):
  """Tokens drawn as they should be, [ROWS, NODES]."""
  probs = np.full(VOCAB, 1 / VOCAB) if probs is None else np.asarray(probs)
  tokens = np.zeros((ROWS, NODES), int)
  for b in range(ROWS):
    for parent in range(NODES):
      children = [j for j in range(1, NODES) if parents[j] == parent]
      tokens[b, children] = rng.choice(
        VOCAB,
        len(children),
        p=probs,
        replace=draws != 'without_replacement',
      )
  return tokens


def params_of(**settings):
  return sampling.stack(
    [sampling.SamplingParams(seed=b, **settings) for b in range(ROWS)]
  )


def every_other_greedy(**settings):
  params = params_of(**settings)
  temperature = params.temperature.at[::2].set(0.0)
  return dataclasses.replace(params, temperature=temperature)


def positions():
  return jnp.arange(ROWS, dtype=jnp.int32)


def longest_match(logits, tokens, parents, num_nodes=NODES):
  """The path that the argmax follows, and the token behind it."""
  node, path = 0, [0]
  while True:
    best = int(np.argmax(logits[node]))
    children = [
      j for j in range(1, num_nodes) if parents[j] == node and tokens[j] == best
    ]
    if not children:
      return path, best
    node = children[0]
    path.append(node)


@pytest.mark.few(2)
@each_rule
@pytest.mark.parametrize('make_params', [params_of, every_other_greedy])
def test_greedy_rows_keep_the_longest_match(rule, parents, draws, make_params):
  """Also beside sampled rows with filters: ids, not places among candidates."""
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(ROWS, NODES, VOCAB)).astype(np.float32)
  tokens = rng.integers(0, VOCAB, (ROWS, NODES))
  for node in range(1, NODES):
    is_right = rng.uniform(size=ROWS) < 0.5
    best = logits[:, parents[node]].argmax(-1)
    tokens[:, node] = np.where(is_right, best, tokens[:, node])
  sampled = {'temperature': 0.7, 'top_k': 2}
  params = make_params(**({} if make_params is params_of else sampled))
  draft = draft_of(parents, tokens, draws)
  result = accept(jnp.asarray(logits), draft, params, positions(), rule=rule)
  lengths = set()
  for b in range(0, ROWS, 2):
    path, last = longest_match(logits[b], tokens[b], parents)
    num = int(result.num_accepted[b])
    assert result.path[b, : num + 1].tolist() == path
    assert result.tokens[b, : num + 1].tolist() == [
      *tokens[b, path[1:]].tolist(),
      last,
    ]
    assert np.all(result.tokens[b, num + 1 :] == 0)
    lengths.add(num)
  assert lengths >= {0, 1, 2}


@each_rule
def test_small_temperature_gives_the_argmax(rule, parents, draws):
  rng = np.random.default_rng(1)
  logits = rng.normal(size=(ROWS, NODES, VOCAB)).astype(np.float32)
  tokens = drawn_tokens(rng, parents, draws)
  result = accept(
    jnp.asarray(logits),
    draft_of(parents, tokens, draws),
    params_of(temperature=1e-4),
    positions(),
    rule=rule,
  )
  for b in range(ROWS):
    num = int(result.num_accepted[b])
    path, last = longest_match(logits[b], tokens[b], parents)
    wanted = [*tokens[b, path[1:]].tolist(), last]
    assert result.tokens[b, : num + 1].tolist() == wanted


@each_rule
def test_padding_is_never_kept_and_never_matters(rule, parents, draws):
  logits = np.zeros((ROWS, NODES, VOCAB), np.float32)
  logits[..., 2] = 50.0
  num_nodes = np.arange(ROWS) % 3 + 1
  beyond = np.arange(NODES) >= num_nodes[:, None]
  logits[beyond] = np.nan
  draft = draft_of(
    parents, np.full((ROWS, NODES), 2), draws, np.eye(VOCAB)[2], num_nodes
  )
  if draws:
    spoiled = jnp.where(beyond[..., None], jnp.nan, draft.q.probs)
    draft = dataclasses.replace(
      draft, q=dataclasses.replace(draft.q, probs=spoiled)
    )
  for params in (params_of(), every_other_greedy(temperature=1.0)):
    result = accept(jnp.asarray(logits), draft, params, positions(), rule=rule)
    assert np.all(result.path < num_nodes[:, None])
    depth = num_nodes - 1 if parents is CHAIN else np.minimum(num_nodes - 1, 1)
    np.testing.assert_array_equal(result.num_accepted, depth)
    is_token = np.arange(NODES) <= depth[:, None]
    np.testing.assert_array_equal(result.tokens, np.where(is_token, 2, 0))


@each_rule
def test_a_row_does_not_depend_on_its_neighbours(rule, parents, draws):
  rng = np.random.default_rng(2)
  logits = rng.normal(size=(ROWS, NODES, VOCAB)).astype(np.float32)
  tokens = drawn_tokens(rng, parents, draws)
  draft = draft_of(parents, tokens, draws)
  params = every_other_greedy(temperature=1.0, top_p=0.9)
  together = accept(jnp.asarray(logits), draft, params, positions(), rule=rule)
  order = rng.permutation(ROWS)
  shuffled = functools.partial(jax.tree.map, lambda x: x[order])
  apart = accept(
    jnp.asarray(logits[order]),
    shuffled(draft),
    shuffled(params),
    positions()[order],
    rule=rule,
  )
  np.testing.assert_array_equal(apart.tokens, together.tokens[order])
  np.testing.assert_array_equal(apart.path, together.path[order])
  assert len(set(np.asarray(together.num_accepted).tolist())) > 1


@pytest.mark.parametrize('rule, parents, draws', CASES[1:])
def test_equal_laws_keep_all_and_disjoint_ones_nothing(rule, parents, draws):
  rng = np.random.default_rng(3)
  p = np.array([0.4, 0.3, 0.2, 0.1, 0, 0])
  with np.errstate(divide='ignore'):
    logits = np.broadcast_to(np.log(p), (ROWS, NODES, VOCAB))
  logits = jnp.asarray(logits, jnp.float32)

  def run(q):
    tokens = drawn_tokens(rng, parents, draws, q)
    draft = draft_of(parents, tokens, draws, q)
    return accept(
      logits, draft, params_of(temperature=1.0), positions(), rule=rule
    )

  depth = NODES - 1 if parents is CHAIN else 2
  assert np.all(np.asarray(run(p).num_accepted) == depth)
  apart = run([0, 0, 0, 0, 0.5, 0.5])
  assert np.all(np.asarray(apart.num_accepted) == 0)
  first = np.asarray(apart.tokens[:, 0])
  assert first.max() <= 3 and len(set(first.tolist())) > 1


@each_rule
@pytest.mark.parametrize('broken', [0, 1])
def test_row_without_a_finite_logit_gives_no_token(
  rule, parents, draws, broken
):
  """Its token is -1, as in plain decoding; what lies before is not touched."""
  logits = np.zeros((ROWS, NODES, VOCAB), np.float32)
  logits[..., 0] = 60.0
  logits[:, broken] = [np.nan, -np.inf, np.inf] * 2
  probs = [0.9, 0.1, 0, 0, 0, 0]
  tokens = np.array([[0, 0, 1, 0, 1, 0, 1]] * ROWS)
  if parents is CHAIN:
    tokens[:] = 0
  result = accept(
    jnp.asarray(logits),
    draft_of(parents, tokens, draws, probs),
    every_other_greedy(temperature=1.0),
    positions(),
    rule=rule,
  )
  np.testing.assert_array_equal(result.num_accepted, broken)
  np.testing.assert_array_equal(result.tokens[:, broken], -1)


def test_rule_auto_is_walk_without_a_law_and_token_with_one():
  rng = np.random.default_rng(4)
  logits = jnp.asarray(rng.normal(size=(ROWS, NODES, VOCAB)), jnp.float32)
  tokens = rng.integers(0, VOCAB, (ROWS, NODES))
  for draws, rule in ((None, 'walk'), ('independent', 'token')):
    draft = draft_of(CHAIN, tokens, draws)
    args = logits, draft, params_of(temperature=1.0), positions()
    auto, named = accept(*args), accept(*args, rule=rule)
    np.testing.assert_array_equal(auto.tokens, named.tokens)


@pytest.mark.parametrize(
  'rule, parents, draws, words',
  [
    ('greedy', CHAIN, None, "rule 'greedy': give auto, walk, token"),
    ('walk', CHAIN, 'independent', 'walk is for drafts that are a function'),
    ('token', CHAIN, None, 'token needs the law'),
    ('block', CHAIN, None, 'block needs the law'),
    ('recursive', TREE, None, 'recursive needs the law'),
    ('traversal', TREE, None, 'traversal needs the law'),
    ('token', TREE, 'independent', 'token is for chains'),
    ('block', TREE, 'without_replacement', 'give recursive, traversal'),
    ('traversal', TREE, 'gumbel', "draws 'gumbel': siblings are drawn"),
  ],
)
def test_wrong_combination_is_refused_by_name(rule, parents, draws, words):
  draft = draft_of(parents, np.zeros((2, NODES), int), draws)
  args = jnp.zeros((2, NODES, VOCAB)), draft
  params = sampling.stack([sampling.SamplingParams()] * 2)
  with pytest.raises(errors.UserError, match=words):
    api.accept(*args, params, jnp.zeros((2,), jnp.int32), rule)
  is_chain = parents is CHAIN
  with pytest.raises(errors.UserError, match=words):
    api.check(rule, draws=draws, is_chain=is_chain)


def test_form_that_is_not_known_yet_is_not_refused():
  for rule in ('token', 'block', 'recursive', 'traversal'):
    checked = api.check(rule, draws='without_replacement', is_chain=None)
    assert checked == rule


@pytest.mark.parametrize('rule', ['token', 'block'])
def test_chain_rule_ends_before_the_first_branch_when_it_is_traced(rule):
  """A form that shows up only in values cannot be refused; nor may it bias."""
  logits = np.zeros((ROWS, NODES, VOCAB), np.float32)
  logits[..., 1] = 60.0
  parents = (-1, 0, 1, 1, 2, 3, 4)
  draft = draft_of(parents, np.ones((ROWS, NODES), int), 'independent')
  for params in (params_of(), params_of(temperature=1.0)):
    result = accept(jnp.asarray(logits), draft, params, positions(), rule=rule)
    np.testing.assert_array_equal(result.num_accepted, 2)
    np.testing.assert_array_equal(result.path[:, :3], [[0, 1, 2]] * ROWS)


def test_shapes_that_do_not_fit_are_refused():
  draft = draft_of(CHAIN, np.zeros((2, NODES), int), 'independent')
  params = sampling.stack([sampling.SamplingParams()] * 2)
  zeros = jnp.zeros((2,), jnp.int32)
  unchecked = getattr(api.accept, '__wrapped__', api.accept)
  with pytest.raises(ValueError, match=r'logits has \(2, 6\)'):
    unchecked(jnp.zeros((2, NODES - 1, VOCAB)), draft, params, zeros)
