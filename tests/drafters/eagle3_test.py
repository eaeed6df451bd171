# SPDX-License-Identifier: MIT
"""EAGLE-3 as a drafter: conformance, options, decoding, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jspec import errors, tree
from jspec.checkpoints import names
from jspec.decode import generate, sampling
from jspec.drafters import base, borrowed, eagle3
from jspec.testing import drafter_suite, toy
from tests.drafters import small_eagle3
from tests.evals import unchecked

MAX_LEN = 64


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.mark.parametrize(
  'changes',
  [
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param(
      {
        'draft_token_ids': small_eagle3.DRAFT_IDS,
        'norm_output': True,
        'fc_norm': True,
        'tree_size': 9,
      },
      marks=pytest.mark.slow,
    ),
  ],
  ids=['chain', 'reduced_tree'],
)
def test_conformance(target, changes):
  drafter_suite.run(small_eagle3.drafter(target, **changes), target)


@pytest.mark.slow
def test_tree_of_one_candidate_is_the_chain_and_others_hold_it(target):
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  drafter = small_eagle3.drafter(target, small_eagle3.DRAFT_IDS)
  suite = drafter_suite.Suite(drafter, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['one_prefill'])
  chain = suite.propose(state, table, text)
  drafter.set_options(tree_size=3, tree_width=1)
  line = suite.propose(state, table, text)
  for mine, other in zip(
    jax.tree.leaves(chain), jax.tree.leaves(line), strict=True
  ):
    np.testing.assert_allclose(mine, other, rtol=1e-5)
  drafter.set_options(tree_size=21, tree_width=3)
  wide = suite.propose(state, table, text)
  tree.check(wide)
  assert np.all(wide.num_nodes == 22) and np.any(
    wide.parents != line.parents[0, 0]
  )
  for row in range(drafter_suite.NUM_ROWS):
    # All 3 + 9 + 9 that the beam saw, hence the greedy path among them.
    at = 0
    for depth in range(1, 4):
      here = np.asarray(wide.parents[row]) == at
      here &= np.asarray(wide.tokens[row]) == int(chain.tokens[row, depth])
      at = int(np.flatnonzero(here)[0])
      np.testing.assert_allclose(
        wide.confidence[row, at], chain.confidence[row, depth], rtol=1e-4
      )


def _decode(target, drafter, prompts, requests):
  with pytest.MonkeyPatch.context() as patch, unchecked.constructors():
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(target, drafter, max_len=MAX_LEN, num_rows=3)
    return decoder.generate(prompts, requests)


@pytest.mark.slow
@pytest.mark.parametrize(
  'options',
  [
    pytest.param({}, id='chain'),
    pytest.param(
      {'tree_size': 7, 'draft_token_ids': small_eagle3.DRAFT_IDS},
      id='tree',
    ),
  ],
)
def test_garbage_weights_change_no_token(target, options):
  requests = [
    sampling.SamplingParams(max_tokens=20, seed=i, temperature=i % 2 * 0.8)
    for i in range(4)
  ]
  prompts = [toy.prompts(1, n, seed=n)[0].tolist() for n in (1, 2, 9, 17)]
  drafter = small_eagle3.drafter(target, **options)
  want = _decode(target, None, prompts, requests)
  got = _decode(target, drafter, prompts, requests)
  assert [x.tokens for x in got] == [x.tokens for x in want]
  assert sum(sum(x.num_drafted) for x in got) > 0


@pytest.mark.slow
def test_overfits_one_sample(target):
  """Trained by distillation on one text of the target, it drafts all of it."""
  text = np.zeros((1, 20), np.int32)
  text[0, :4] = toy.prompts(1, 4, seed=5)
  positions = jnp.arange(20, dtype=jnp.int32)[None]
  encode = jax.jit(
    lambda target, text: target.encode(
      text, positions, jnp.ones_like(text), (0, 1, 2)
    )
  )
  for i in range(4, 20):
    hidden, taps = encode(target, jnp.asarray(text))
    text[0, i] = np.argmax(target.logits(hidden)[0, i - 1])
  hidden, taps = encode(target, jnp.asarray(text))
  batch = base.DraftBatch(
    tokens=jnp.asarray(text),
    positions=positions,
    segments=jnp.ones((1, 20), jnp.int32),
    is_answer=positions >= 4,
    taps=taps,
    last=base.LastHidden(hidden, is_normed=True),
  )
  drafter = small_eagle3.drafter(target, is_random=False)
  drafter.calibrate(batch)
  loss, params, merge = small_eagle3.split(drafter)
  optimizer = optax.adam(3e-3)

  @jax.jit
  def step(params, state):
    grads, metrics = jax.grad(loss, has_aux=True)(
      params, batch, jax.random.key(0)
    )
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, metrics

  state = optimizer.init(params)
  params, state, before = step(params, state)
  for _ in range(250):
    params, state, metrics = step(params, state)
  # 16 blocks of 3 labels, of which the last two have fewer.
  assert before['tokens_per_round'] < 2.5
  assert metrics['tokens_per_round'] > 3.7
  assert metrics['kl'].max() < 0.1 * before['kl'].max()
  # What it learnt is what it does when it decodes.
  prompt = text[0, :4].tolist()
  request = sampling.SamplingParams(max_tokens=16)
  output = _decode(target, merge(params), [prompt], [request])[0]
  assert output.tokens == text[0, 4:].tolist()
  assert output.num_rounds <= 5


def test_fresh_head_is_the_targets(target):
  """A drafter begins where its last state would be read as the target's."""
  drafter = small_eagle3.drafter(target, is_random=False)
  np.testing.assert_array_equal(drafter.head[...], target.head[...])
  np.testing.assert_array_equal(drafter.norm[...], target.final_norm[...])


def test_only_own_weights_are_parameters(target):
  drafter = small_eagle3.drafter(target, fc_norm=True)
  _, params, rest = nnx.split(drafter, nnx.Param, ...)
  own = {path[-1] for path, _ in nnx.to_flat_state(params)}
  assert own == set(drafter.leaves())
  assert {path[-1] for path, _ in nnx.to_flat_state(rest)} == {
    'embedding',
    'tap_scale',
    'target_head',
    'target_norm',
  }


def test_saved_takes_in_the_scales_of_the_taps(target):
  batch = small_eagle3.batch(target)
  drafter = small_eagle3.drafter(target)
  drafter.calibrate(batch)
  assert np.ptp(np.asarray(drafter.tap_scale[...])) > 0.1
  want = drafter.feature(batch.taps)
  saved = drafter.saved()
  bare = small_eagle3.drafter(target)
  for name, leaf in bare.leaves().items():
    leaf[...] = saved[name]
  np.testing.assert_allclose(bare.feature(batch.taps), want, atol=1e-4)
  # The norms of the taps do the same, so nothing is scaled.
  normed = small_eagle3.drafter(target, fc_norm=True)
  normed.calibrate(batch)
  np.testing.assert_array_equal(normed.tap_scale[...], 1)


@pytest.mark.parametrize('fc_norm', [False, True])
def test_every_leaf_has_its_tensors(target, fc_norm):
  drafter = small_eagle3.drafter(target, fc_norm=fc_norm)

  class Disk:
    where = 'disk'

    def __init__(self):
      self.tensors = {}

    def names(self):
      return self.tensors.keys()

    def shape(self, name):
      return self.tensors[name].shape

    def read(self, name):
      return self.tensors[name]

    def part(self, name, box):
      return self.tensors[name][box]

  disk, saved = Disk(), drafter.saved()
  for rule in eagle3.rules(drafter.config):
    values = np.asarray(saved[rule.leaf])[rule.box]
    disk.tensors[rule.source] = rule.convert(values)
  shapes = {name: leaf.shape for name, leaf in drafter.leaves().items()}
  found = names.fill(eagle3.rules(drafter.config), disk, shapes)
  for name, values in found.items():
    np.testing.assert_array_equal(values, saved[name])
  fields = {'fc_norm', 'norm_output', 'tree_width'}
  assert fields <= set(eagle3.METHOD.to_json(drafter.config))
  raw = eagle3.METHOD.to_json(drafter.config)
  raw['target_layer_ids'] = list(raw['target_layer_ids'])
  assert eagle3.METHOD.from_json(raw, 'here') == drafter.config


def test_options_change_how_it_decodes_and_unknown_ones_are_refused(target):
  drafter = small_eagle3.drafter(target)
  drafter.set_options(tree_size=9, tree_width=4)
  assert drafter.num_draft_tokens == 9
  drafter.set_options(tree_size=0, num_draft_tokens=2)
  assert drafter.num_draft_tokens == 2
  for options, message in (
    ({'width': 64}, 'width: no option of this drafter'),
    ({'tree_size': 'big'}, "tree_size='big': expected int"),
    ({'tree_size': 128}, 'tree_size=128: expected 0 .a chain. to 127'),
  ):
    with pytest.raises(errors.UserError, match=message):
      drafter.set_options(**options)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_layers': 2}, 'num_layers=2: expected 1'),
    ({'taps': ()}, 'taps'),
    ({'taps': (0, 0)}, 'taps'),
    ({'taps': (0, 3)}, 'taps=.0, 3.: expected distinct layers in 0..2'),
    ({'num_heads': 3}, 'num_heads=3'),
    ({'draft_vocab_size': 65}, 'draft_vocab_size=65'),
    ({'num_draft_tokens': 0}, 'num_draft_tokens=0'),
    ({'tree_width': 0}, 'tree_width=0'),
    ({'tree_size': -1}, 'tree_size=-1'),
    ({'support': 0}, 'support=0'),
  ],
)
def test_config_refuses_when_a_field_is_off(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    small_eagle3.config(target, **changes)


def test_drafter_refuses_arrays_that_do_not_fit(target):
  fits = borrowed.from_target(target)
  other = borrowed.Borrowed(jnp.zeros((64, 16)), jnp.zeros((16, 64)))
  bare = borrowed.Borrowed(fits.embedding, fits.head)
  reduced = borrowed.from_target(target, small_eagle3.DRAFT_IDS)
  for arrays, message in (
    (other, 'borrowed embedding'),
    (bare, 'head is not borrowed'),
    (reduced, 'borrowed head'),
  ):
    with pytest.raises(errors.UserError, match=message):
      eagle3.Eagle3(
        small_eagle3.config(target),
        eagle3.LossConfig(),
        arrays,
        jax.random.key(0),
      )
