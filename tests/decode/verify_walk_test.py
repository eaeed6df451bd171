# SPDX-License-Identifier: MIT
"""R1 on trees: plain decoding's tokens, whatever the tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import keys, sampling
from jspec.decode.verify import api

VOCAB, ROWS, NODES, LENGTH = 5, 48, 9, 10
accept = jax.jit(api.accept, static_argnames='rule')
KINDS = [
  {},
  {'temperature': 1.0},
  {'temperature': 0.6, 'top_k': 3},
  {'temperature': 1.4, 'top_p': 0.8},
  {'temperature': 1.0, 'min_p': 0.1},
  {'temperature': 2.0},
]


def mixed():
  return sampling.stack(
    [
      sampling.SamplingParams(**KINDS[b % len(KINDS)], seed=b)
      for b in range(ROWS)
    ]
  )


def greedy():
  return sampling.stack([sampling.SamplingParams()] * ROWS)


def random_draft(rng, anchors, right):
  """A tree of any shape, with doubles; `right[b]` hangs in it in part."""
  parents = np.full((ROWS, NODES), -1)
  tokens = rng.integers(0, VOCAB, (ROWS, NODES))
  tokens[:, 0] = anchors
  for b in range(ROWS):
    depth = [0]
    for node in range(1, NODES):
      parents[b, node] = rng.integers(0, node)
      depth.append(depth[parents[b, node]] + 1)
      if rng.uniform() < 0.6:
        tokens[b, node] = right[b][depth[node] - 1]
  num_nodes = rng.integers(1, NODES + 1, ROWS)
  return tree.Draft(
    tokens=jnp.asarray(tokens, jnp.int32),
    parents=jnp.asarray(parents, jnp.int32),
    num_nodes=jnp.asarray(num_nodes, jnp.int32),
    confidence=jnp.ones((ROWS, NODES)),
  )


@jax.jit
def plain_token(table, anchors, positions, params):
  """What plain decoding draws behind anchors at these positions."""
  u = keys.uniforms(params.seeds, positions + 1, keys.ACCEPT)
  return sampling.sample(table[anchors], params, u)


def plain(table, anchors, positions, params, length):
  """Token by token; logits depend on the last token only."""
  out = []
  for step in range(length):
    anchors = plain_token(table, anchors, positions + np.int32(step), params)
    out.append(np.asarray(anchors))
  return np.stack(out, 1)


def follow(draft, b, tokens):
  """How far a row's tokens were drafted, one node after the other."""
  node, path = 0, [0]
  for token in tokens:
    children = [
      j
      for j in range(1, int(draft.num_nodes[b]))
      if draft.parents[b, j] == node and draft.tokens[b, j] == token
    ]
    if not children:
      break
    node = min(children)
    path.append(node)
  return path


@pytest.mark.parametrize('make_params', [mixed, greedy])
@pytest.mark.parametrize('seed', [0, 1])
def test_walk_gives_the_tokens_of_plain_decoding(seed, make_params):
  params = make_params()
  rng = np.random.default_rng(seed)
  table = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32) * 2
  anchors = rng.integers(0, VOCAB, ROWS)
  start = rng.integers(0, 1000, ROWS).astype(np.int32)
  expected = plain(table, anchors, start, params, LENGTH + NODES)
  out = [[] for _ in range(ROWS)]
  num_accepted = []
  while min(map(len, out)) < LENGTH:
    done = np.array([min(len(row), LENGTH) for row in out], np.int32)
    anchors_now = np.where(done > 0, expected[range(ROWS), done - 1], anchors)
    right = [expected[b, done[b] :] for b in range(ROWS)]
    draft = random_draft(rng, anchors_now, right)
    result = accept(table[draft.tokens], draft, params, start + done)
    host = jax.tree.map(np.asarray, result)
    draft = jax.tree.map(np.asarray, draft)
    for b in range(ROWS):
      num = host.num_accepted[b]
      path = follow(draft, b, right[b])
      assert host.path[b, : num + 1].tolist() == path
      assert (host.path[b, num + 1 :] == 0).all()
      wanted = right[b][: num + 1]
      np.testing.assert_array_equal(host.tokens[b, : num + 1], wanted)
      assert (host.tokens[b, num + 1 :] == 0).all()
      out[b] = out[b][:LENGTH] + host.tokens[b, : num + 1].tolist()
      num_accepted.append(num)
  for b in range(ROWS):
    assert out[b][:LENGTH] == expected[b, :LENGTH].tolist()
  assert set(num_accepted) >= {0, 1, 2, 3}


def test_walk_takes_the_first_of_equal_siblings_and_its_children_only():
  logits = np.full((1, 5, VOCAB), -9.0, np.float32)
  logits[..., 2] = 0.0
  draft = tree.Draft(
    tokens=jnp.array([[0, 1, 2, 2, 2]]),
    parents=jnp.array([[-1, 0, 0, 0, 3]]),
    num_nodes=jnp.array([5]),
    confidence=jnp.ones((1, 5)),
  )
  result = accept(
    logits, draft, sampling.stack([sampling.SamplingParams()]), jnp.array([0])
  )
  # Node 4 hangs below the second double, which is never visited.
  assert result.path.tolist() == [[0, 2, 0, 0, 0]]
  assert result.tokens.tolist() == [[2, 2, 0, 0, 0]]
