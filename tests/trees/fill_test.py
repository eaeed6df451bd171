# SPDX-License-Identifier: MIT
"""Trees of fixed shape, filled from marginals or along their paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.trees import candidates, draws, expansion, fill, grow, sequoia
from tests.trees import laws, shape

ANCHOR, VOCAB, ROWS = 9, 5, 6
ACCEPTANCE = [0.4, 0.2, 0.15]
TOPOLOGY = sequoia.build(ACCEPTANCE, 14, 3)


def keys(seed=0, rows=ROWS):
  return jax.random.split(jax.random.key(seed), rows)


def anchors(rows=ROWS):
  return jnp.full((rows,), ANCHOR)


def marginals(seed=0, depths=3, rows=ROWS):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(rows, depths, VOCAB)) * 2
  return candidates.top(jnp.asarray(logits, jnp.float32), VOCAB)


def by_level(table, topology):
  """A `step` that reads marginal level + 1 whatever the path."""
  width = grow.beam_width(topology)

  def step(state, beam):
    return state, candidates.Candidates(
      *(jnp.repeat(x[:, beam.level + 1][:, None], width, axis=1) for x in table)
    )

  return step


@functools.cache
def filler(topology, how):
  return jax.jit(functools.partial(fill.from_marginals, topology, draws=how))


@pytest.mark.few(2)
@pytest.mark.parametrize('how', draws.HOW)
@pytest.mark.parametrize('temperature', [None, 0.0, 0.8])
def test_filled_tree_has_the_shape_and_the_laws(how, temperature):
  table = marginals()
  warm = None if temperature is None else jnp.full((ROWS,), temperature)
  draft = filler(TOPOLOGY, how)(table, anchors(), warm, keys())
  is_distinct = how == 'without_replacement' or temperature is None
  shape.check(draft, ANCHOR, distinct=is_distinct)
  np.testing.assert_array_equal(draft.parents[0], TOPOLOGY.parents)
  assert np.all(np.asarray(draft.num_nodes) == TOPOLOGY.num_nodes)
  np.testing.assert_allclose(
    shape.survival(draft)[0], TOPOLOGY.survival(), rtol=1e-5
  )
  if temperature is None:
    assert draft.q is None
    for node in range(1, TOPOLOGY.num_nodes):
      depth, rank = TOPOLOGY.depths[node], TOPOLOGY.ranks[node]
      np.testing.assert_array_equal(
        draft.tokens[:, node], table.ids[:, depth - 1, rank]
      )
    return
  assert draft.q.draws == how
  probs, ids = np.asarray(draft.q.probs), np.asarray(draft.q.ids)
  for node in range(TOPOLOGY.num_nodes):
    if TOPOLOGY.num_children[node] == 0:
      assert np.all(probs[:, node] == 0)
      continue
    depth = TOPOLOGY.depths[node]
    np.testing.assert_array_equal(ids[:, node], table.ids[:, depth])
    if temperature:
      law = jax.nn.softmax(table.log_probs[:, depth] / temperature, axis=-1)
      np.testing.assert_allclose(probs[:, node], law, rtol=1e-5)
    else:
      np.testing.assert_array_equal(probs[:, node, 0], np.ones(ROWS))


@pytest.mark.parametrize(
  'how, temperature',
  [('independent', None), ('independent', 0.8), ('without_replacement', 0.8)],
)
def test_growing_equals_filling_where_the_law_ignores_the_path(
  how, temperature
):
  table = marginals()
  warm = None if temperature is None else jnp.full((ROWS,), temperature)
  filled = filler(TOPOLOGY, how)(table, anchors(), warm, keys())

  def run(table):
    root = candidates.Candidates(*(x[:, 0] for x in table))
    step = by_level(table, TOPOLOGY)
    return grow.build(
      TOPOLOGY, step, (), root, anchors(), warm, keys(), draws=how
    )[0]

  grown = jax.jit(run)(table)
  np.testing.assert_array_equal(grown.tokens, filled.tokens)
  np.testing.assert_array_equal(grown.parents, filled.parents)
  if warm is not None:
    np.testing.assert_allclose(grown.q.probs, filled.q.probs, rtol=1e-6)
    inner = np.asarray(TOPOLOGY.num_children) > 0
    np.testing.assert_array_equal(grown.q.ids[:, inner], filled.q.ids[:, inner])


@pytest.mark.few(1)
@pytest.mark.parametrize('drafter', [laws.by_slot, laws.by_scratch_row])
def test_grown_laws_are_those_of_the_paths(drafter):
  topology = sequoia.build(ACCEPTANCE, 17, 4)
  table = laws.table(np.random.default_rng(1), ROWS, VOCAB, 4)
  width, levels = grow.beam_width(topology), topology.depth - 1

  def run(table, temperature):
    sizes = (width, levels) if drafter is laws.by_scratch_row else (width,)
    step, state = drafter(table, *sizes, VOCAB)
    root = laws.root(table, VOCAB)
    return grow.build(
      topology, step, state, root, anchors(), temperature, keys()
    )[0]

  draft = jax.jit(run)(table, jnp.ones((ROWS,)))
  shape.check(draft, ANCHOR)
  for row in range(ROWS):
    paths = shape.paths(draft, row)
    for node, path in enumerate(paths):
      if topology.num_children[node]:
        context = 0
        for token in path:
          context = context * VOCAB + token + 1
        law = np.zeros(VOCAB)
        law[np.asarray(draft.q.ids[row, node])] = draft.q.probs[row, node]
        np.testing.assert_allclose(law, np.exp(table[row, context]), atol=1e-6)
  if drafter is laws.by_scratch_row:
    return  # Once is enough for what does not depend on the drafter.
  best = jax.jit(run)(table, None)
  for row in range(ROWS):
    for node, path in enumerate(shape.paths(best, row)[1:], start=1):
      ranked = laws.best_children(table[row], path[:-1], VOCAB)
      assert ranked[topology.ranks[node]] == path


def test_one_node_is_plain_decoding_and_one_rank_the_chain():
  single = sequoia.build([0.5], 1, 3)
  warm = jnp.ones((ROWS,))
  plain = filler(single, 'independent')(marginals(), anchors(), warm, keys())
  assert plain.tokens.shape == (ROWS, 1)
  assert np.all(np.asarray(plain.q.probs) == 0)
  root = candidates.Candidates(*(x[:, 0] for x in marginals()))
  plain, _ = grow.build(single, _never, (), root, anchors())
  assert plain.tokens.shape == (ROWS, 1)
  build = filler(sequoia.build([0.5], 4, 3), 'independent')
  chain = build(marginals(), anchors())
  np.testing.assert_array_equal(chain.parents, [np.arange(-1, 3)] * ROWS)
  np.testing.assert_array_equal(chain.tokens[:, 1:], marginals().ids[:, :, 0])


def _never(state, beam):
  raise AssertionError('there is no level to run the drafter on')


def test_row_does_not_depend_on_its_neighbours():
  table, warm = marginals(), jnp.full((ROWS,), 0.9)
  build = filler(TOPOLOGY, 'without_replacement')
  draft = build(table, anchors(), warm, keys())
  order = jnp.arange(ROWS)[::-1]
  shuffled = candidates.Candidates(*(x[order] for x in table))
  other = build(shuffled, anchors(), warm, keys()[order])
  np.testing.assert_array_equal(draft.tokens, other.tokens[order])
  again = build(table, anchors(), warm, keys(1))
  assert np.any(np.asarray(draft.tokens) != np.asarray(again.tokens))


def test_beam_of_a_static_tree_names_the_scratch_rows_of_its_path():
  """Word 0 of node (level, slot) holds exactly its ancestors and itself."""
  topology = sequoia.build(ACCEPTANCE, 17, 4)
  seen = []

  def step(state, beam):
    assert isinstance(beam, expansion.Beam)
    jax.debug.callback(lambda x: seen.append(jax.tree.map(np.array, x)), beam)
    shape = (1, grow.beam_width(topology), VOCAB)
    ids = jnp.broadcast_to(jnp.arange(VOCAB, dtype=jnp.int32), shape)
    return state, candidates.Candidates(jnp.full(shape, -1.0), ids)

  root = candidates.Candidates(*(x[:1, 0] for x in marginals()))
  grow.build(topology, step, (), root, anchors(1))
  jax.effects_barrier()
  seen.sort(key=lambda beam: beam.level)
  width = grow.beam_width(topology)
  above = {}
  for beam in seen:
    for slot in np.flatnonzero(beam.is_live[0]):
      row = int(beam.level) * width + int(slot)
      path = above.get((int(beam.level) - 1, int(beam.parents[0, slot])), ())
      above[int(beam.level), int(slot)] = (*path, row)
      bits = sum(1 << x for x in (*path, row))
      assert int(beam.ancestors[0, slot, 0]) == bits
  assert len(above) == sum(
    depth > 0 and count > 0
    for depth, count in zip(topology.depths, topology.num_children, strict=True)
  )


def test_other_values_do_not_compile_again():
  traced = shape.Counted(functools.partial(fill.from_marginals, TOPOLOGY))
  jitted = jax.jit(traced)
  for seed in range(3):
    warm = jnp.full((ROWS,), 0.3 * seed)
    jitted(marginals(seed), anchors(), warm, keys(seed))
  assert traced.count == 1


def test_candidates_that_do_not_fit_the_shape_are_refused():
  few = candidates.Candidates(*(x[..., :2] for x in marginals()))
  with pytest.raises(errors.UserError, match='3 children but there are 2'):
    fill.from_marginals(TOPOLOGY, few, anchors())
  shallow = candidates.Candidates(*(x[:, :2] for x in marginals()))
  with pytest.raises(errors.UserError, match='depth=2'):
    fill.from_marginals(TOPOLOGY, shallow, anchors())
  with pytest.raises(errors.UserError, match='without_replacement or indep'):
    fill.from_marginals(TOPOLOGY, marginals(), anchors(), draws='with')
