# SPDX-License-Identifier: MIT
"""Options at every node of a tree, against plain decoding's own arithmetic."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import adjust, history, options
from tests.decode import plain_options
from tests.decode.plain_options import VOCAB

NODES, STOPS = 9, (2, 5)
KINDS = [
  {},
  {'repetition_penalty': 1.7},
  {'repetition_penalty': 0.6},
  {'presence_penalty': 1.3},
  {'frequency_penalty': -0.7},
  {'logit_bias': ((3, -100.0), (0, 7.25), (11, 0.5))},
  {'min_tokens': 4},
  {'bad_words': ((7,), (1, 2), (0, 1, 0), (1, 1, 1, 1))},
  {},
  {
    'repetition_penalty': 1.2,
    'presence_penalty': -0.4,
    'frequency_penalty': 0.9,
    'logit_bias': ((1, 2.0), (11, -3.0)),
    'min_tokens': 3,
    'bad_words': ((0, 0), (1, 0), (0, 1)),
  },
]
REQUESTS = [options.LogitOptions(**kind) for kind in KINDS]
ROWS = len(REQUESTS)
SILENT = [row for row, kind in enumerate(KINDS) if not kind]
apply = jax.jit(adjust.adjust, static_argnames='max_depth')
apply_packed = jax.jit(adjust.adjust_packed)
find_paths = jax.jit(adjust.path_tokens, static_argnames='max_depth')


@dataclasses.dataclass
class Case:
  """A tree for every row, behind a prompt and an output of its own.

  Few ids are in use, so that paths repeat tokens and complete bad words.
  """

  prompts: list
  outputs: list
  tokens: np.ndarray
  parents: np.ndarray
  logits: np.ndarray
  history: history.History

  def path(self, row, node):
    """Drafts from the anchor (without it) to the node."""
    found = []
    while node > 0:
      found.append(int(self.tokens[row, node]))
      node = self.parents[row, node]
    return found[::-1]


def case(seed):
  rng = np.random.default_rng(seed)
  prompts = [rng.integers(0, 4, 3).tolist() for _ in REQUESTS]
  outputs = [
    rng.integers(0, 2 + row % 3, rng.integers(0, 6)).tolist()
    for row in range(ROWS)
  ]
  tokens = rng.integers(0, 3, (ROWS, NODES)).astype(np.int32)
  tokens[:, 0] = [(p + o)[-1] for p, o in zip(prompts, outputs, strict=True)]
  parents = np.full((ROWS, NODES), -1, np.int32)
  for node in range(1, NODES):
    # A deep tree: most nodes hang below the last.
    low = rng.integers(0, node, ROWS)
    parents[:, node] = np.where(rng.uniform(size=ROWS) < 0.6, node - 1, low)
  logits = (3 * rng.normal(size=(ROWS, NODES, VOCAB))).astype(np.float32)
  return Case(prompts, outputs, tokens, parents, logits, seen(prompts, outputs))


def seen(prompts, outputs):
  """The committed history, counted by numpy."""
  state = jax.tree.map(np.array, history.init(len(prompts), VOCAB))
  for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
    state.prompt_seen[row, prompt] = True
    np.add.at(state.output_counts, (row, np.array(output, int)), 1)
    state.recent[row] = ([-1] * 8 + output)[-8:]
    state.num_output[row] = len(output)
  return state


def stops(rows=ROWS):
  return jnp.asarray([[*STOPS, -1]] * rows, jnp.int32)


def wanted(c):
  """The oracle's logits of every node."""
  return np.stack(
    [
      [
        plain_options.adjusted(
          c.logits[row, node],
          c.prompts[row],
          c.outputs[row] + c.path(row, node),
          REQUESTS[row],
          STOPS,
        )
        for node in range(NODES)
      ]
      for row in range(ROWS)
    ]
  )


def differing_rows(found, expected):
  """Rows with a node that is not the oracle's, up to rounding."""
  same = np.isclose(found, expected, rtol=1e-6, atol=1e-6)
  return set(np.flatnonzero(~same.all(axis=(1, 2))))


@pytest.mark.parametrize('seed', range(8))
def test_every_node_gets_what_plain_decoding_gets(seed):
  c = case(seed)
  found = apply(
    c.logits, c.tokens, c.parents, options.stack(REQUESTS), c.history, stops()
  )
  assert differing_rows(np.asarray(found), wanted(c)) == set()


def packed(c, *, path=None, state=None, order=None, requests=REQUESTS):
  """All nodes through the packed form, with parts of it replaced."""
  rows, nodes = np.divmod(np.arange(ROWS * NODES), NODES)
  if path is None:
    path = np.asarray(find_paths(c.tokens, c.parents))
  if order is None:
    order = np.arange(len(rows))
  found = apply_packed(
    c.logits[rows, nodes][order],
    path[rows, nodes][order],
    rows[order].astype(np.int32),
    options.stack(requests),
    c.history if state is None else state,
    stops(),
  )
  back = np.empty((ROWS * NODES, VOCAB), np.float32)
  back[order] = found
  return back.reshape(ROWS, NODES, VOCAB)


def test_nodes_may_come_in_any_order():
  c = case(1)
  order = np.random.default_rng(0).permutation(ROWS * NODES)
  found = apply(
    c.logits, c.tokens, c.parents, options.stack(REQUESTS), c.history, stops()
  )
  np.testing.assert_array_equal(packed(c, order=order), found)


def broken(c, name):
  """Adjusted logits of an implementation with one defect."""
  path = np.asarray(find_paths(c.tokens, c.parents))
  if name == 'committed only':
    return packed(c, path=np.full_like(path, -1))
  if name == 'drafts only':
    return packed(c, state=seen([[]] * ROWS, [[]] * ROWS))
  if name == 'anchor twice':
    longer = np.pad(path, ((0, 0), (0, 0), (0, 1)), constant_values=-1)
    depth = (path >= 0).sum(-1)[..., None]
    anchor = np.broadcast_to(c.tokens[:, :1, None], depth.shape)
    np.put_along_axis(longer, depth, anchor, axis=2)
    return packed(c, path=longer)
  if name == 'one history for all':
    # Every node sees the drafts before it in the list, as if a chain.
    chain = np.broadcast_to(np.arange(-1, NODES - 1), c.parents.shape)
    return packed(c, path=np.asarray(find_paths(c.tokens, np.int32(chain))))
  more = {'one stop too many': 1, 'one stop too few': -1}[name]
  requests = [
    dataclasses.replace(r, min_tokens=r.min_tokens + more * (r.min_tokens > 0))
    for r in REQUESTS
  ]
  return packed(c, requests=requests)


@pytest.mark.parametrize(
  'name, rows',
  [
    ('committed only', {1, 2, 3, 4, 6, 7, 9}),
    ('drafts only', {1, 2, 3, 4, 6, 7, 9}),
    ('anchor twice', {1, 2, 3, 4, 6, 7, 9}),
    ('one history for all', {1, 2, 3, 4, 6, 7, 9}),
    ('one stop too many', {6, 9}),
    ('one stop too few', {6, 9}),
  ],
)
def test_defects_are_noticed(name, rows):
  found = set()
  for seed in range(8):
    c = case(seed)
    found |= differing_rows(broken(c, name), wanted(c))
  # Rows without a history-dependent option cannot differ, and do not.
  assert found <= rows and found >= rows - {1, 2}
  if name in ('committed only', 'drafts only'):
    assert found == rows


def chain_of(tokens):
  """One row, a chain: tokens and parents."""
  parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
  return np.array([tokens], np.int32), parents[None]


@pytest.mark.parametrize('at', range(5))
def test_bad_words_are_seen_wherever_they_straddle(at):
  # `x y` with x at index `at` of what is emitted: 0 and 1 are committed, 1 is
  # the anchor, the others drafts; y follows, drafted or as the bonus.
  x, y = 8, 9
  emitted = [4, 4, 4, 4, 4]
  emitted[at] = x
  committed, drafts = emitted[:2], emitted[2:]
  tokens, parents = chain_of([committed[-1], *drafts])
  requests = [
    options.LogitOptions(bad_words=((x, y),)),
    options.LogitOptions(bad_words=((x, 3), (y, x))),
  ]
  found = apply(
    np.zeros((2, 4, VOCAB), np.float32),
    tokens.repeat(2, 0),
    parents.repeat(2, 0),
    options.stack(requests),
    seen([[1], [1]], [committed] * 2),
    stops(2),
  )
  # Node t decides what follows emitted[1 + t].
  expected = np.zeros((2, 4, VOCAB))
  if at >= 1:
    expected[0, at - 1, y] = expected[1, at - 1, 3] = -np.inf
  np.testing.assert_array_equal(found, expected)


def test_bad_words_may_be_as_long_as_the_history_kept():
  word = (0, 1, 2, 3, 4, 5, 6, 7)
  request = options.LogitOptions(bad_words=(word,))
  for num_committed in range(8):
    committed = [9, *word[:num_committed]]
    drafts = [*word[num_committed:7], *[9] * num_committed]
    tokens, parents = chain_of([committed[-1], *drafts])
    found = apply(
      np.zeros((1, 8, VOCAB), np.float32),
      tokens,
      parents,
      options.stack([request]),
      seen([[1]], [committed]),
      stops(1),
    )
    banned = np.argwhere(np.asarray(found[0]) == -np.inf)
    assert banned.tolist() == [[7 - num_committed, 7]]


def test_bad_words_do_not_begin_in_the_prompt():
  tokens, parents = chain_of([8])
  request = options.LogitOptions(bad_words=((8, 9),))
  found = apply(
    np.zeros((1, 1, VOCAB), np.float32),
    tokens,
    parents,
    options.stack([request]),
    seen([[1, 8]], [[]]),
    stops(1),
  )
  np.testing.assert_array_equal(found, np.zeros((1, 1, VOCAB)))


def strange_logits():
  values = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 2.5]
  cycle = itertools.islice(itertools.cycle(values), ROWS * NODES * VOCAB)
  return np.array([*cycle], np.float32).reshape(ROWS, NODES, VOCAB)


def bits(x):
  return np.asarray(x).view(np.uint32)


def test_silent_rows_keep_every_bit_among_others_and_alone():
  c, z = case(2), strange_logits()
  among = apply(
    z, c.tokens, c.parents, options.stack(REQUESTS), c.history, stops()
  )
  np.testing.assert_array_equal(bits(among)[SILENT], bits(z)[SILENT])
  silent = options.stack([options.LogitOptions()] * ROWS)
  alone = apply(z, c.tokens, c.parents, silent, c.history, stops())
  np.testing.assert_array_equal(bits(alone), bits(z))
  # The others did change.
  assert (bits(among) != bits(z)).any(axis=(1, 2)).sum() == ROWS - len(SILENT)


def test_what_is_impossible_stays_so_under_any_option():
  c = case(3)
  z = np.where(np.arange(VOCAB) % 2 == 0, -np.inf, c.logits)
  found = apply(
    np.float32(z),
    c.tokens,
    c.parents,
    options.stack(REQUESTS),
    c.history,
    stops(),
  )
  assert (np.asarray(found)[..., ::2] == -np.inf).all()
  assert not np.isnan(found).any()


def test_logits_become_float32_without_a_change():
  c = case(4)
  z = jnp.asarray(c.logits, jnp.bfloat16)
  silent = options.stack([options.LogitOptions()] * ROWS)
  found = apply(z, c.tokens, c.parents, silent, c.history, stops())
  assert found.dtype == jnp.float32
  np.testing.assert_array_equal(found, z.astype(jnp.float32))


def test_paths_leave_the_anchor_out_and_may_be_bounded():
  tokens = np.array([[9, 1, 2, 3]], np.int32)
  parents = np.array([[-1, 0, 1, 1]], np.int32)
  expected = [[-1, -1, -1], [1, -1, -1], [2, 1, -1], [3, 1, -1]]
  np.testing.assert_array_equal(find_paths(tokens, parents)[0], expected)
  bounded = find_paths(tokens, parents, max_depth=2)[0]
  np.testing.assert_array_equal(bounded, np.array(expected)[:, :2])


def test_a_bound_on_depth_changes_nothing_where_no_node_is_deeper():
  c = case(5)
  c.parents[:, 1:] = np.arange(1, NODES) // 3  # depth 3 at most
  c.parents[:, 1:3] = 0
  args = (c.tokens, c.parents, options.stack(REQUESTS), c.history, stops())
  whole = apply(c.logits, *args)
  np.testing.assert_array_equal(apply(c.logits, *args, max_depth=3), whole)
  # A bound that is too small is another result.
  assert (np.asarray(apply(c.logits, *args, max_depth=1)) != whole).any()


@pytest.mark.parametrize('seed', range(3))
def test_one_node_after_committing_equals_the_node_in_the_tree(seed, optimised):
  c = case(seed)
  asked = options.stack(REQUESTS)
  scored = jax.jit(adjust.adjust)
  found = np.asarray(
    scored(c.logits, c.tokens, c.parents, asked, c.history, stops())
  )
  for node in range(NODES):
    outputs = [c.outputs[b] + c.path(b, node) for b in range(ROWS)]
    anchors = [(p + o)[-1] for p, o in zip(c.prompts, outputs, strict=True)]
    alone = scored(
      c.logits[:, node : node + 1],
      np.array(anchors, np.int32)[:, None],
      np.full((ROWS, 1), -1, np.int32),
      asked,
      seen(c.prompts, outputs),
      stops(),
    )
    np.testing.assert_array_equal(bits(alone)[:, 0], bits(found)[:, node])
