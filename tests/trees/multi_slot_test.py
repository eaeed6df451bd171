# SPDX-License-Identifier: MIT
"""SpecBlock's tree against its description, written out over Python lists."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.trees import candidates, multi_slot
from tests.trees import shape

ANCHOR, SLOTS, VOCAB, ROWS = 99, 3, 7, 4
NARROW = multi_slot.Widths(
  first=4,
  by_class=(2, 3, 4, 0),
  starts=4,
  first_caps=((0.9, 2), (0.6, 3)),
  caps=((0.95, 1), (0.7, 2)),
)
NEVER_GIVES_UP = dataclasses.replace(NARROW, by_class=(1, 3, 4, 2), starts=3)


@dataclasses.dataclass
class Node:
  path: tuple[int, ...]
  score: np.float32


def random_blocks(rng, kind='plain'):
  """A block behind every possible token and block 1 slot, [.., K, V]."""
  logits = rng.normal(size=(ROWS, 1 + SLOTS * VOCAB, SLOTS, VOCAB)) * 2
  if kind == 'ties':
    logits = np.round(logits / 2)
  elif kind == 'zeros':
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[..., 2] = 0.0
  elif kind == 'sure':
    logits[..., 1] += rng.choice([0, 5, 40], logits.shape[:-1])
  found = candidates.top(jnp.asarray(logits, jnp.float32), VOCAB)
  classes = rng.integers(0, 4, logits.shape[:-1])
  return found, jnp.asarray(classes, jnp.int32)


def pick(blocks, index):
  """The blocks at [B, starts] positions of the table."""
  found, classes = blocks
  rows = jnp.arange(ROWS)[:, None]
  return multi_slot.Block(
    candidates.Candidates(*(x[rows, index] for x in found)),
    classes[rows, index],
  )


@functools.cache
def builder(num_nodes, widths, num_blocks):
  def run(blocks):
    def second(starts):
      return pick(blocks, 1 + starts.slots * VOCAB + starts.tokens)

    return multi_slot.build(
      pick(blocks, jnp.zeros((ROWS, 1), jnp.int32)),
      second if num_blocks == 2 else None,
      jnp.full((ROWS,), ANCHOR),
      num_nodes=num_nodes,
      widths=widths,
    )

  return jax.jit(run)


def expand(blocks, row, index, start, widths, is_first):
  """Nodes of a block: the chain, then siblings; what may start block 2."""
  log_probs = np.asarray(blocks[0].log_probs[row, index])
  ids = np.asarray(blocks[0].ids[row, index])
  classes = np.asarray(blocks[1][row, index])
  chain, above = [], [start]
  for slot in range(SLOTS):
    node = Node(
      (*above[-1].path, int(ids[slot, 0])),
      np.float32(above[-1].score + log_probs[slot, 0]),
    )
    chain.append(node)
    above.append(node)
  siblings, starts, gave_up = [], [], False
  for slot in range(SLOTS):
    p = np.exp(log_probs[slot, 0])
    if is_first and slot == 0:
      width, caps = widths.first, widths.first_caps
    else:
      width, caps = widths.by_class[classes[slot]], widths.caps
      if classes[slot] == 3 and width == 0:
        gave_up = True
        break
    for threshold, most in caps:
      if p >= threshold:
        width = min(width, most)
        break
    if width > 1:
      starts.append((chain[slot], slot))
    for rank in range(1, width):
      score = np.float32(above[slot].score + log_probs[slot, rank])
      siblings.append(Node((*above[slot].path, int(ids[slot, rank])), score))
      siblings[-1].slot = slot
  starts += [(node, node.slot) for node in siblings]
  if not gave_up and all(node is not chain[-1] for node, _ in starts):
    starts.append((chain[-1], SLOTS - 1))
  return chain + siblings, starts


def alive(nodes):
  return [node for node in nodes if node.score > -np.inf]


def reference(blocks, row, *, num_nodes, widths, num_blocks):
  """The paths and scores of one row's draft."""
  root = Node((), np.float32(0))
  nodes, starts = expand(blocks, row, 0, root, widths, is_first=True)
  nodes = alive(nodes)
  budget = num_nodes - 1
  if num_blocks == 2:
    starts = [start for start in starts if start[0].score > -np.inf]
    starts.sort(key=lambda start: -start[0].score)  # Stable.
    room = min(widths.starts, max(1, (budget - len(nodes)) // SLOTS))
    for node, slot in starts[:room]:
      index = 1 + slot * VOCAB + node.path[-1]
      nodes += alive(expand(blocks, row, index, node, widths, False)[0])
  best = {}
  for node in nodes:  # Equal paths are one node, worth the better of them.
    best[node.path] = max(node.score, best.get(node.path, -np.inf))
  kept = {(): np.float32(0)}
  for path in sorted(best, key=lambda path: -best[path]):
    missing = [
      path[:n] for n in range(1, len(path) + 1) if path[:n] not in kept
    ]
    if len(kept) + len(missing) <= num_nodes:
      kept |= {each: best[each] for each in missing}
  return kept


@pytest.mark.parametrize('kind', ['plain', 'ties', 'zeros', 'sure'])
@pytest.mark.parametrize(
  'num_nodes, widths, num_blocks',
  [
    (20, NARROW, 2),
    (60, NEVER_GIVES_UP, 2),
    (6, NARROW, 2),
    (12, NARROW, 1),
  ],
  ids=['usual', 'roomy', 'tight', 'one block'],
)
def test_draft_equals_the_description(kind, num_nodes, widths, num_blocks):
  for seed in range(4):
    blocks = random_blocks(np.random.default_rng(seed), kind)
    draft = builder(num_nodes, widths, num_blocks)(blocks)
    shape.check(draft, ANCHOR)
    for row in range(ROWS):
      expected = reference(
        blocks,
        row,
        num_nodes=num_nodes,
        widths=widths,
        num_blocks=num_blocks,
      )
      live = int(draft.num_nodes[row])
      scores = np.log(shape.survival(draft)[row, :live])
      assert live == len(expected)
      np.testing.assert_allclose(
        np.sort(scores), np.sort(list(expected.values())), atol=3e-5
      )
      if kind != 'ties':  # There the order of creation decides who is kept.
        got = dict(zip(shape.paths(draft, row), scores, strict=True))
        assert set(got) == set(expected)
        for path, score in expected.items():
          assert got[path] == pytest.approx(score, abs=3e-5)


def test_equal_paths_do_occur():
  """The comparison above would not notice that nothing was ever merged."""
  blocks = random_blocks(np.random.default_rng(0))
  root = Node((), np.float32(0))
  nodes, starts = expand(blocks, 0, 0, root, NARROW, is_first=True)
  for node, slot in starts:
    index = 1 + slot * VOCAB + node.path[-1]
    nodes = nodes + expand(blocks, 0, index, node, NARROW, False)[0]
  assert len({node.path for node in nodes}) < len(nodes)


def test_widths_of_one_give_the_chain():
  widths = multi_slot.Widths(
    first=1, by_class=(1, 1, 1, 1), starts=1, first_caps=(), caps=()
  )
  blocks = random_blocks(np.random.default_rng(1))
  draft = builder(SLOTS + 1, widths, 1)(blocks)
  np.testing.assert_array_equal(draft.parents, [np.arange(-1, SLOTS)] * ROWS)
  np.testing.assert_array_equal(draft.tokens[:, 1:], blocks[0].ids[:, 0, :, 0])
  draft = builder(2 * SLOTS + 1, widths, 2)(blocks)
  np.testing.assert_array_equal(
    draft.parents, [np.arange(-1, 2 * SLOTS)] * ROWS
  )
  assert builder(1, widths, 2)(blocks).tokens.shape == (ROWS, 1)


def test_greedy_chain_of_block_one_is_there_when_nothing_is_pruned():
  blocks = random_blocks(np.random.default_rng(2))
  draft = builder(60, NEVER_GIVES_UP, 2)(blocks)
  for row in range(ROWS):
    chain = tuple(np.asarray(blocks[0].ids[row, 0, :, 0]).tolist())
    assert chain in shape.paths(draft, row)


def test_block_that_gives_up_branches_less():
  blocks = random_blocks(np.random.default_rng(3))
  found, classes = blocks
  lost = (found, jnp.full_like(classes, 3))
  sure = (found, jnp.zeros_like(classes))
  few = builder(60, NARROW, 1)(lost).num_nodes
  many = builder(60, NARROW, 1)(sure).num_nodes
  assert np.all(np.asarray(few) < np.asarray(many))


def test_other_values_do_not_compile_again():
  traced = shape.Counted(builder(20, NARROW, 2).__wrapped__)
  jitted = jax.jit(traced)
  for seed in range(3):
    jitted(random_blocks(np.random.default_rng(seed), 'sure'))
  assert traced.count == 1


def test_bad_widths_are_refused():
  blocks = random_blocks(np.random.default_rng(0))
  wide = multi_slot.Widths(first=VOCAB + 1)
  with pytest.raises(errors.UserError, match='7 candidates a slot'):
    builder(9, dataclasses.replace(wide, by_class=(1, 1, 1, 1)), 1)(blocks)
  with pytest.raises(errors.UserError, match='at least 1'):
    multi_slot.Widths(first=0)
