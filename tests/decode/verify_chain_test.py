# SPDX-License-Identifier: MIT
"""Verification of chains: tokens under R1, padding, edges, independence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import keys, sampling
from jspec.decode.verify import api as verify
from jspec.decode.verify import chain as chain_rule

VOCAB = 7
# One shape for most tests, so that they share what is compiled.
ROWS, NODES, SUPPORT = 64, 4, 3
accept = jax.jit(verify.accept)


def chain(tokens, num_nodes=None, q=None):
  tokens = jnp.asarray(tokens, jnp.int32)
  rows, nodes = tokens.shape
  if num_nodes is None:
    num_nodes = np.full(rows, nodes)
  return tree.Draft(
    tokens=tokens,
    parents=tree.chain_parents(rows, nodes),
    num_nodes=jnp.asarray(num_nodes, jnp.int32),
    confidence=jnp.ones((rows, nodes)),
    q=q,
  )


def sparse_law(ids, probs):
  """Pads the support; padding repeats an id, with probability 0."""
  padding = ((0, 0), (0, 0), (0, SUPPORT - ids.shape[-1]))
  return tree.SparseLaw(
    jnp.asarray(np.pad(ids, padding), jnp.int32),
    jnp.asarray(np.pad(probs, padding), jnp.float32),
    draws='independent',
  )


def one_hot_law(tokens):
  """The law of a chain that could not have been drawn otherwise."""
  children = np.roll(tokens, -1, axis=1)
  return sparse_law(children[..., None], np.ones((*tokens.shape, 1)))


def stack(*rows):
  return sampling.stack([sampling.SamplingParams(**row) for row in rows])


def check_shape_of_result(result, draft):
  """Accepted drafts first, one bonus, then zeros."""
  tokens, num = np.asarray(result.tokens), np.asarray(result.num_accepted)
  all_drafted, path = np.asarray(draft.tokens), np.asarray(result.path)
  num_nodes = np.asarray(draft.num_nodes)
  for b in range(len(tokens)):
    drafted = all_drafted[b, 1 : num[b] + 1]
    np.testing.assert_array_equal(tokens[b, : num[b]], drafted)
    assert (tokens[b, num[b] + 1 :] == 0).all()
    assert num[b] < num_nodes[b]
    kept = np.arange(num[b] + 1)
    np.testing.assert_array_equal(path[b, : num[b] + 1], kept)
    assert (path[b, num[b] + 1 :] == 0).all()


@pytest.mark.few(2)
@pytest.mark.parametrize('rule', ['R1', 'R2'])
@pytest.mark.parametrize('has_sampled_row', [False, True])
def test_accept_at_temperature_zero_is_the_longest_match(rule, has_sampled_row):
  rng = np.random.default_rng(0)
  rows, nodes = ROWS, NODES
  logits = rng.normal(size=(rows, nodes, VOCAB)).astype(np.float32)
  best = logits.argmax(-1)
  tokens = np.concatenate([np.zeros((rows, 1), int), best[:, :-1]], 1)
  is_wrong = rng.uniform(size=tokens.shape) < 0.3
  tokens = (tokens + is_wrong) % VOCAB
  num_nodes = rng.integers(1, nodes + 1, rows)
  draft = chain(
    tokens, num_nodes, one_hot_law(tokens) if rule == 'R2' else None
  )
  # A sampled row sends the greedy ones down the walk.
  last = {'temperature': 1.0} if has_sampled_row else {}
  params = stack(*[{}] * (rows - 1), last)
  result = accept(logits, draft, params, np.zeros(rows, np.int32))
  check_shape_of_result(result, draft)
  for b in range(rows - 1):
    num = 0
    while num + 1 < num_nodes[b] and tokens[b, num + 1] == best[b, num]:
      num += 1
    assert result.num_accepted[b] == num
    assert result.tokens[b, num] == best[b, num]
  assert set(np.asarray(result.num_accepted)) == set(range(nodes))


def plain_decode(table, anchors, positions, params, length):
  """Token by token with the anchor alone; logits depend on the last token."""
  out = []
  for _ in range(length):
    result = accept(
      table[anchors][:, None], chain(anchors[:, None]), params, positions
    )
    anchors = np.asarray(result.tokens[:, 0])
    positions = positions + 1
    out.append(anchors)
  return np.stack(out, 1)


def decode_with_drafts(table, anchors, positions, params, length, propose):
  rows = len(anchors)
  out = [[] for _ in range(rows)]
  accepted = 0
  while min(map(len, out)) < length:
    tokens, num_nodes = propose(out, anchors)
    draft = chain(tokens, num_nodes)
    result = accept(table[tokens], draft, params, positions)
    check_shape_of_result(result, draft)
    num = np.asarray(result.num_accepted)
    for b in range(rows):
      out[b] += result.tokens[b, : num[b] + 1].tolist()
    anchors = np.array([row[-1] for row in out])
    positions = positions + num.astype(np.int32) + 1
    accepted += num.sum()
  return np.array([row[:length] for row in out]), accepted


KINDS = [
  {},
  {'temperature': 1.0},
  {'temperature': 0.6, 'top_k': 3},
  {'temperature': 1.4, 'top_p': 0.8},
  {'temperature': 1.0, 'min_p': 0.1},
  {'temperature': 2.0},
]
MIXED = [
  {**KINDS[b % len(KINDS)], 'seed': b if b % 7 else 2**32 - 1}
  for b in range(ROWS)
]


@pytest.mark.few(1)
@pytest.mark.parametrize('drafts', ['right', 'wrong', 'random'])
def test_r1_equals_plain_decoding_whatever_is_drafted(drafts):
  rng = np.random.default_rng(0)
  rows, nodes, length = ROWS, NODES, 12
  table = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32) * 2
  params = stack(*MIXED)
  anchors = rng.integers(0, VOCAB, rows)
  positions = rng.integers(0, 1000, rows).astype(np.int32)
  expected = plain_decode(table, anchors, positions, params, length + nodes)

  def propose(out, anchors):
    tokens = np.zeros((rows, nodes), int)
    tokens[:, 0] = anchors
    for b in range(rows):
      right = expected[b, len(out[b]) :][: nodes - 1]
      right = np.append(right, np.zeros(nodes - 1 - len(right), int))
      tokens[b, 1:] = {
        'right': right,
        'wrong': (right + 1) % VOCAB,
        'random': np.where(
          rng.uniform(size=nodes - 1) < 0.7,
          right,
          rng.integers(0, VOCAB, nodes - 1),
        ),
      }[drafts]
    num_nodes = rng.integers(1, nodes + 1, rows)
    return tokens, num_nodes if drafts == 'random' else None

  found, accepted = decode_with_drafts(
    table, anchors, positions, params, length, propose
  )
  np.testing.assert_array_equal(found, expected[:, :length])
  assert (accepted == 0) == (drafts == 'wrong')
  if drafts == 'right':
    assert accepted >= rows * length * (nodes - 1) // nodes


@pytest.mark.slow
def test_accept_of_a_row_does_not_depend_on_its_neighbours():
  rng = np.random.default_rng(1)
  rows, nodes = ROWS, NODES
  logits = rng.normal(size=(rows, nodes, VOCAB)).astype(np.float32)
  tokens = rng.integers(0, 2, (rows, nodes))
  ids = np.tile(np.arange(2), (rows, nodes, 1))
  q = sparse_law(ids, np.full(ids.shape, 0.5))
  positions = np.arange(rows, dtype=np.int32)
  params = stack(*MIXED)
  for law in (None, q):
    together = accept(logits, chain(tokens, q=law), params, positions)
    for b in range(len(KINDS)):
      one = slice(b, b + 1)
      alone = accept(
        logits[one],
        chain(tokens[one], q=jax.tree.map(lambda x: x[one], law)),  # noqa: B023
        stack(MIXED[b]),
        positions[one],
      )
      np.testing.assert_array_equal(alone.tokens[0], together.tokens[b])
      assert alone.num_accepted[0] == together.num_accepted[b]


def test_padding_nodes_are_never_accepted_even_if_right():
  logits = np.zeros((ROWS, NODES, VOCAB), np.float32)
  logits[..., 2] = 50.0
  logits[:, 2:] = np.nan  # what was scored for padding must not matter
  tokens = np.full((ROWS, NODES), 2)
  num_nodes = np.arange(ROWS) % 2 + 1
  params = stack(*[{'temperature': float(b % 3)} for b in range(ROWS)])
  for q in (None, one_hot_law(tokens)):
    draft = chain(tokens, num_nodes, q)
    result = accept(logits, draft, params, np.zeros(ROWS, np.int32))
    np.testing.assert_array_equal(result.num_accepted, num_nodes - 1)
    expected = np.where(np.arange(NODES) < num_nodes[:, None], 2, 0)
    np.testing.assert_array_equal(result.tokens, expected)


def test_r2_takes_the_plain_token_when_there_is_no_draft():
  rng = np.random.default_rng(2)
  rows = ROWS
  logits = rng.normal(size=(rows, NODES, VOCAB)).astype(np.float32)
  params = stack(*[{'temperature': 1.0, 'seed': s} for s in range(rows)])
  tokens = np.zeros((rows, NODES), int)
  positions = np.full(rows, 9, np.int32)
  alone = [1] * rows
  r1 = accept(logits, chain(tokens, alone), params, positions)
  r2 = accept(
    logits, chain(tokens, alone, one_hot_law(tokens)), params, positions
  )
  np.testing.assert_array_equal(r1.tokens, r2.tokens)
  assert len(np.unique(r1.tokens[:, 0])) == VOCAB


def test_r2_accepts_all_when_laws_are_equal_and_none_when_disjoint():
  rows, nodes = ROWS, NODES
  rng = np.random.default_rng(3)
  p = np.array([0.5, 0.3, 0.2, 0, 0, 0, 0])
  logits = np.log(np.maximum(p, 1e-38)).astype(np.float32)
  logits = np.where(p > 0, logits, -np.inf).astype(np.float32)
  logits = np.broadcast_to(logits, (rows, nodes, VOCAB))
  params = stack(*[{'temperature': 1.0, 'seed': s} for s in range(rows)])
  positions = np.zeros(rows, np.int32)

  def run(ids, probs):
    q = tree.SparseLaw(
      jnp.broadcast_to(jnp.asarray(ids), (rows, nodes, len(ids))),
      jnp.broadcast_to(
        jnp.asarray(probs, jnp.float32), (rows, nodes, len(ids))
      ),
      draws='independent',
    )
    tokens = rng.choice(ids, p=probs, size=(rows, nodes))
    return accept(logits, chain(tokens, q=q), params, positions)

  # Rounding may reject a token whose two probabilities are equal.
  same = run(np.arange(3), p[:3])
  assert np.mean(np.asarray(same.num_accepted) == nodes - 1) > 0.95
  apart = run(np.array([3, 6]), np.array([0.25, 0.75]))
  assert (np.asarray(apart.num_accepted) == 0).all()
  counts = np.bincount(np.asarray(apart.tokens[:, 0]), minlength=VOCAB)
  assert counts[3:].sum() == 0 and (counts[:3] > 0).all()


def test_replacement_is_never_nan_when_p_minus_q_is_empty():
  # A test that fails by rounding alone: p = q, u q just below p is forced up.
  logits = np.log(np.array([[[0.5, 0.5]] * 2], np.float32))
  q = tree.SparseLaw(
    jnp.array([[[0, 1]] * 2]),
    jnp.array([[[0.75, 0.75]] * 2]),
    draws='independent',
  )
  result = chain_rule.accept_with(
    jnp.asarray(logits),
    chain([[0, 0]], q=q),
    stack({'temperature': 1.0}),
    lambda depth: jnp.array([0.999]),
    lambda depth: jnp.array([0.6]),
  )
  assert result.num_accepted.tolist() == [0] and result.tokens[0, 0] == 1


@pytest.mark.slow
@pytest.mark.parametrize('is_broken', [False, True])
def test_positions_of_one_block_are_independent(is_broken, monkeypatch):
  rows, nodes, vocab = 6000, 3, 16
  uniforms = keys.uniforms
  if is_broken:  # the control: one number for the whole block
    monkeypatch.setattr(
      keys, 'uniforms', lambda s, p, role: uniforms(s, p * 0, role)
    )
  logits = jnp.zeros((rows, nodes, vocab))
  params = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (rows,)), stack({'temperature': 1.0})
  )
  params = sampling.Sampling(
    params.temperature,
    params.top_k,
    params.top_p,
    params.min_p,
    jnp.arange(rows, dtype=jnp.uint32),
  )
  zeros = jnp.zeros((rows,), jnp.int32)
  run = jax.jit(lambda *args: verify.accept(*args))
  # Draft what will be drawn, so that the whole block is accepted.
  tokens = np.zeros((rows, nodes), int)
  for node in range(1, nodes):
    tokens[:, node] = run(logits, chain(tokens), params, zeros).tokens[
      :, node - 1
    ]
  result = run(logits, chain(tokens), params, zeros)
  assert (np.asarray(result.num_accepted) == nodes - 1).all()
  block = np.asarray(result.tokens)
  for i, j in [(0, 1), (1, 2), (0, 2)]:
    pairs = np.bincount(block[:, i] * vocab + block[:, j], minlength=vocab**2)
    expected = rows / vocab**2
    statistic = ((pairs - expected) ** 2 / expected).sum()
    freedom = vocab**2 - 1
    p = float(jax.scipy.special.gammaincc(freedom / 2, statistic / 2))
    assert (p < 1e-6) if is_broken else (p > 1e-6)
