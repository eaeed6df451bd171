# SPDX-License-Identifier: MIT
"""SpecBlock as a drafter: conformance, trees, what is refused and saved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.decode import generate, sampling
from jspec.drafters import borrowed, interchange, specblock, specblock_decode
from jspec.testing import drafter_suite, toy
from tests.drafters import specblock_toy
from tests.evals import unchecked
from tests.trees import shape

SLOTS = specblock_toy.SLOTS


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def drafter(target):
  return specblock_toy.drafter(target)


@pytest.mark.parametrize(
  'options',
  [
    pytest.param(
      {'num_draft_tokens': 2, 'draft_token_ids': specblock_toy.DRAFT_IDS},
      marks=pytest.mark.slow,
    ),
    pytest.param(
      {'tree_size': 12, 'tree_starts': 4, 'first_width': 4},
      marks=pytest.mark.slow,
    ),
  ],
  ids=['chain', 'tree'],
)
def test_conformance(target, options):
  drafter_suite.run(specblock_toy.drafter(target, **options), target)


@pytest.fixture(scope='module')
def prompts():
  lengths = (1, 2, 9, 17)
  return [toy.prompts(1, length, seed=length)[0].tolist() for length in lengths]


@pytest.fixture(scope='module')
def plain(target, prompts):
  return _decode(target, None, prompts)


def _decode(target, drafter, prompts):
  kinds = ({}, {'temperature': 0.8, 'seed': 3})
  params = [
    sampling.SamplingParams(max_tokens=12, **kinds[i % 2])
    for i in range(len(prompts))
  ]
  with pytest.MonkeyPatch.context() as patch, unchecked.constructors():
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(
      target, drafter, max_len=48, num_rows=2, page_size=8
    )
    return [output.tokens for output in decoder.generate(prompts, params)]


@pytest.mark.slow
@pytest.mark.parametrize('tree_size', [0, 14], ids=['chain', 'tree'])
def test_garbage_weights_change_no_token(target, prompts, plain, tree_size):
  drafter = specblock_toy.drafter(target, tree_size=tree_size, tree_starts=3)
  for leaf in drafter.leaves().values():
    leaf[...] = 30 * leaf[...]
  assert _decode(target, drafter, prompts) == plain


@pytest.fixture(scope='module')
def prefilled(target, drafter):
  return _prefilled(drafter, target)


def _prefilled(drafter, target):
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  suite = drafter_suite.Suite(drafter, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['chunks'])
  return state, table, jnp.asarray(text[:, -1])


def _with(drafter, **options):
  """The same drafter with other options."""
  graph, state = nnx.split(drafter)
  other = nnx.merge(graph, jax.tree.map(lambda x: x, state))
  other.set_options(**options)
  return other


@pytest.mark.slow
def test_grown_tree_holds_the_chain(drafter, prefilled):
  state, table, anchor = prefilled
  given = (state, table, anchor, None, None)
  chain = drafter_suite.propose(drafter, *given)
  for blocks in (1, 2):
    grown = _with(
      drafter, tree_size=100, tree_starts=3, first_width=4, tree_blocks=blocks
    )
    draft = drafter_suite.propose(grown, *given)
    shape.check(draft, anchor)
    for row in range(drafter_suite.NUM_ROWS):
      paths = shape.paths(draft, row)
      assert tuple(chain.tokens[row, 1:].tolist()) in paths
      deepest = max(map(len, paths))
      assert deepest > SLOTS if blocks == 2 else deepest == SLOTS
      assert draft.num_nodes[row] < 101, 'the tree was cut: nothing is shown'


@pytest.mark.slow
def test_widths_of_one_are_the_chain(drafter, prefilled):
  state, table, anchor = prefilled
  given = (state, table, anchor, None, None)
  narrow = _with(
    drafter,
    tree_size=SLOTS,
    tree_blocks=1,
    first_width=1,
    class_widths=[1, 1, 1, 1],
  )
  for a, b in zip(
    jax.tree.leaves(drafter_suite.propose(drafter, *given)),
    jax.tree.leaves(drafter_suite.propose(narrow, *given)),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-5)


def test_rank_head_decides_how_wide_it_branches(drafter, prefilled):
  state, table, anchor = prefilled
  grown = _with(
    drafter,
    tree_size=60,
    tree_blocks=1,
    first_width=1,
    class_widths=[1, 3, 1, 1],
  )
  block = specblock_decode.block(grown, state.hidden[:, None])
  common = np.bincount(np.ravel(block.classes), minlength=4).argmax()
  weights, sizes = grown.rank_out[...], []
  for is_wide in (False, True):  # The common class is to be 1, or is not.
    order = np.roll(np.arange(4), (1 if is_wide else 2) - common)
    grown.rank_out[...] = weights[:, order]
    draft = drafter_suite.propose(grown, state, table, anchor, None, None)
    sizes.append(int(draft.num_nodes.sum()))
  assert sizes[0] < sizes[1]


def test_sampled_tree_has_the_laws_of_the_slots(drafter, prefilled):
  state, table, anchor = prefilled
  grown = _with(drafter, tree_size=9, support=8)
  keys = jax.random.split(jax.random.key(0), drafter_suite.NUM_ROWS)
  draft = drafter_suite.propose(
    grown, state, table, anchor, jnp.full((3,), 0.9), keys
  )
  logits = np.asarray(drafter.normed(state.hidden) @ drafter.head[...]) / 0.9
  depths = np.asarray(tree.depths(draft.parents))
  for row in range(drafter_suite.NUM_ROWS):
    parents = {int(x) for x in draft.parents[row, 1 : draft.num_nodes[row]]}
    for node in parents:
      of_slot = logits[row, depths[row, node]]
      ids = np.asarray(draft.q.ids[row, node])
      assert set(ids.tolist()) == set(np.argsort(-of_slot)[:8].tolist())
      law = np.exp(of_slot[ids] - of_slot.max())
      np.testing.assert_allclose(
        draft.q.probs[row, node], law / law.sum(), rtol=1e-4
      )


def test_slot_hears_its_left_neighbour_through_the_shift_alone(drafter):
  """With attention off: perturb a slot's output of the first layer."""
  rng = np.random.default_rng(0)
  x = np.asarray(rng.normal(size=(1, 1, SLOTS, 32)), np.float32)
  layer = drafter.layers[1]
  cut = drafter.layers[0]
  cos_sin = jnp.ones((1, SLOTS, 1, 4)), jnp.zeros((1, SLOTS, 1, 4))

  def run(layer, x):
    return np.asarray(
      layer(jnp.asarray(x), drafter.config, *cos_sin, lambda q, k, v: 0 * q)[0]
    )

  for slot in range(SLOTS):
    changed = x.copy()
    changed[:, :, slot] += 1
    for one, heard in ((layer, {slot, slot + 1}), (cut, {slot})):
      moved = np.abs(run(one, changed) - run(one, x)).max(axis=(0, 1, 3)) > 1e-4
      assert set(np.flatnonzero(moved)) == heard & set(range(SLOTS))


def test_fresh_shift_does_nothing_and_then_learns(target):
  drafter = specblock_toy.drafter(target, is_fresh=True)
  layer = drafter.layers[1]
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, SLOTS, 32)))
  x = x.astype(jnp.float32)
  np.testing.assert_array_equal(layer.shifted(x), x)
  np.testing.assert_array_equal(drafter.head[...], target.head[...])
  graph, state = nnx.split(layer)
  grads = jax.grad(
    lambda state: jnp.sum(jnp.square(nnx.merge(graph, state).shifted(x)))
  )(state)
  left = np.asarray(nnx.merge(graph, grads).shift[...])[32:]
  assert np.abs(left).max() > 0.1


@pytest.mark.slow
def test_long_chunks_are_committed_in_several_passes(
  target, drafter, prefilled
):
  whole = prefilled[0]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(specblock_decode, '_MOST_NODES', 3 * SLOTS)
    parts = _prefilled(drafter, target)[0]
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.slow
def test_row_without_tokens_drafts_something(target, drafter):
  table = paged.contiguous_table(2, 4)
  state = drafter.init_state(table, 8, 4)
  # Pages hold what others wrote; an empty row sees none of it.
  dirty = jax.tree.map(lambda x: x + 5, state.pages)
  grown = _with(drafter, tree_size=20, tree_starts=3)
  anchor = jnp.asarray([3, 4])
  drafts = [
    drafter_suite.propose(
      grown, dataclasses.replace(state, pages=p), table, anchor, None, None
    )
    for p in (state.pages, dirty)
  ]
  for a, b in zip(*map(jax.tree.leaves, drafts), strict=True):
    assert np.all(np.isfinite(a))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('ids', [None, specblock_toy.DRAFT_IDS])
def test_checkpoint_comes_back_with_scales_folded_in(target, tmp_path, ids):
  drafter = specblock_toy.drafter(target, ids, tree_size=5)
  scales = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (3, 32)))
  drafter.tap_scale[...] = scales.astype(jnp.float32)
  interchange.save(
    tmp_path, drafter, target_name='toy', target_fingerprint='f00'
  )
  tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  assert tensors['shift_proj.0.weight'].shape == (32, 64)
  assert tensors['rank_head.0.weight'].shape == (256, 32 + 15)
  assert tensors['input_layer.fuse.weight'].shape == (32, 96)
  again = interchange.load(tmp_path, target, target_fingerprint='f00')
  assert again.config == drafter.config
  for name, leaf in again.leaves().items():
    np.testing.assert_array_equal(
      leaf[...], drafter.saved()[name].astype(jnp.bfloat16), err_msg=name
    )
  taps = jnp.ones((1, 1, 3, 32))
  np.testing.assert_allclose(
    again.condition(taps), drafter.condition(taps), atol=0.1
  )
  _, params, _ = nnx.split(drafter, nnx.Param, ...)
  assert len(nnx.to_flat_state(params)) == len(drafter.leaves())


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'block_size': 1, 'num_draft_tokens': 1}, 'block_size=1: expected 2..32'),
    ({'num_draft_tokens': 4}, r'num_draft_tokens=4: expected 1..3'),
    ({'label_shift': 0}, 'label_shift=0: expected 1'),
    ({'taps': (0, 3)}, r'taps=\(0, 3\): expected distinct layers in 0..2'),
    ({'num_heads': 3}, 'num_heads=3'),
    ({'draft_vocab_size': 19}, 'draft_vocab_size=19: expected 20'),
    ({'draft_vocab_size': 65}, 'draft_vocab_size=65: .*64'),
    ({'tree_size': 128}, 'tree_size=128'),
    ({'tree_blocks': 3}, 'tree_blocks=3'),
    ({'class_widths': (1, 2, 3)}, 'class_widths'),
    ({'class_widths': (1, 2, 3, 21)}, 'class_widths'),
    ({'first_width': 0}, 'first_width=0'),
  ],
)
def test_config_refuses_when_a_field_is_off(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    specblock_toy.config(target, **changes)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_blocks': 0}, 'num_blocks=0'),
    ({'labels': 'soft'}, 'labels=soft: expected teacher or text'),
    ({'slot_decay': 0.0}, 'slot_decay'),
    ({'cross_rows': True, 'num_anchors': 4}, 'cross_rows=True.*num_anchors=4'),
  ],
)
def test_loss_config_refuses_when_a_field_is_off(changes, message):
  with pytest.raises(errors.UserError, match=message):
    specblock.LossConfig(**changes)


def test_options_and_arrays_that_do_not_fit_are_refused(target, drafter):
  for options, message in (
    ({'width': 64}, 'width: no option'),
    ({'tree_size': 'big'}, "tree_size='big': expected int"),
    ({'class_widths': 3}, 'class_widths=3: expected tuple'),
  ):
    with pytest.raises(errors.UserError, match=message):
      drafter.set_options(**options)
  arrays = borrowed.Borrowed(jnp.zeros((64, 16)), jnp.zeros((16, 64)))
  with pytest.raises(errors.UserError, match='borrowed embedding'):
    specblock.SpecBlock(
      drafter.config, specblock.LossConfig(), arrays, jax.random.key(0)
    )


def test_taps_are_the_published_ones():
  assert specblock.choose_taps(36) == (1, 17, 32)
  assert specblock.choose_taps(32) == (1, 15, 28)
  with pytest.raises(errors.UserError, match='target of 6 layers'):
    specblock.choose_taps(6)
