# SPDX-License-Identifier: MIT
"""What MTP's simulated steps see, and that decoding repeats them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.checkpoints import names
from jspec.decode import generate, sampling
from jspec.drafters import (
  base,
  borrowed,
  mtp,
  mtp_config,
  recurrent,
)
from jspec.testing import drafter_suite, toy
from tests.drafters import small_mtp
from tests.evals import unchecked

LENGTH = 14
PACKED = [[1] * 8 + [2] * 6, [1] * 5 + [2] * 7 + [0] * 2]


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def forced(target):
  return small_mtp.drafter(target, loss={'on_policy': False})


@jax.jit
def _hidden(drafter, batch):
  return drafter.train_hidden(batch)


@jax.jit
def _loss(drafter, batch):
  return drafter.loss(batch, jax.random.key(0))


def _moved(drafter, batch, name, value):
  """Which (row, step) of the first sequence change with a field of it."""
  before = np.asarray(_hidden(drafter, batch))[0]
  changed = dataclasses.replace(batch, **{name: jnp.asarray(value)})
  after = np.asarray(_hidden(drafter, changed))[0]
  return np.abs(after - before).max(-1) > 1e-5


@pytest.mark.slow
def test_state_moves_its_own_and_later_rows_of_its_document(target, forced):
  batch = small_mtp.batch(target, PACKED)
  for at in (3, 10):
    taps = np.array(batch.taps)
    taps[0, at] += 3 * np.random.default_rng(at).normal(size=taps.shape[-1])
    moved = _moved(forced, batch, 'taps', taps)
    rows = np.arange(LENGTH)
    want = (rows >= at) & (np.array(PACKED[0]) == PACKED[0][at])
    np.testing.assert_array_equal(moved, np.repeat(want[:, None], 3, 1))


def test_token_moves_the_rows_that_embed_it_and_those_that_see_them(
  target, forced
):
  batch = small_mtp.batch(target, PACKED)
  for at in (4, 8, 10):
    tokens = np.array(batch.tokens)
    tokens[0, at] = (tokens[0, at] + 5) % 60
    moved = _moved(forced, batch, 'tokens', tokens)
    document = np.array(PACKED[0])
    # Row i embeds i + 1 + s at step s; its step-0 key, row i and all later.
    want = np.zeros((LENGTH, 3), bool)
    for row in range(LENGTH):
      if document[row] == document[at]:
        for step in range(3):
          first = max(document.searchsorted(document[at]), at - 1 - step)
          want[row, step] = row >= at - 1 or first <= row
    # The document's first token is embedded by no row.
    want &= at != document.searchsorted(document[at])
    np.testing.assert_array_equal(moved, want)


def test_first_embedding_is_zeroed_where_the_config_says(target):
  """A document's first row embeds its second token, or nothing."""
  batch = small_mtp.batch(target, PACKED)
  tokens = np.array(batch.tokens)
  tokens[0, [1, 9]] = 7
  for rule, want in (
    ('never', [True, True, True]),
    ('first_step', [False, False, False]),
  ):
    drafter = small_mtp.drafter(
      target, loss={'on_policy': False}, zero_first_embedding=rule
    )
    moved = _moved(drafter, batch, 'tokens', tokens)
    np.testing.assert_array_equal(moved[0], want)
    np.testing.assert_array_equal(moved[8], want)
  # Its third token is what the first row embeds at step 1.
  tokens = np.array(batch.tokens)
  tokens[0, 2] = 7
  for rule, want in (('first_step', [0, 1, 1]), ('every_step', [0, 0, 0])):
    drafter = small_mtp.drafter(
      target, loss={'on_policy': False}, zero_first_embedding=rule
    )
    moved = _moved(drafter, batch, 'tokens', tokens)
    np.testing.assert_array_equal(moved[0], np.array(want, bool))


_REDUCED = {
  'draft_token_ids': small_mtp.DRAFT_IDS,
  **small_mtp.OTHER_WAY,
  **small_mtp.EXPERTS,
  'sigmoid_router': False,
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [{}, _REDUCED],
  ids=['dense', 'experts_reduced_other_way'],
)
def test_training_on_policy_is_what_decoding_does(target, monkeypatch, changes):
  """The same tensors at depth 1 to 3, and the same proposals."""
  drafter = small_mtp.drafter(target, loss={'on_policy': True}, **changes)
  batch, row = small_mtp.batch(target), 9
  trained = np.asarray(_hidden(drafter, batch))[:, row]
  logits = trained @ np.asarray(drafter.head[...])
  columns = logits.argmax(-1)
  ids = changes.get('draft_token_ids', np.arange(64))
  served, propose = [], recurrent.propose

  def spy(run, start, root, *args, **named):
    # Feeds the training side's tokens, level by level.
    memory, hidden, words = start(2), root.hidden, tree.chain_words(2, 2)
    served.append(root.logits)
    for level in range(2):
      nodes = recurrent.Nodes(
        jnp.asarray(ids[columns[:, level]], jnp.int32)[:, None],
        hidden[:, None],
        words[:, level : level + 1],
        jnp.int32(level),
      )
      memory, hidden, logits = run(memory, nodes)
      hidden = hidden[:, 0]
      served.append(logits[:, 0])
    return propose(run, start, root, *args, **named)

  monkeypatch.setattr(recurrent, 'propose', spy)
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)

  @jax.jit
  def decode(drafter, state, table):
    served.clear()
    # In two chunks, the second with rows that are not committed.
    for first, last in ((0, 4), (4, row + 1)):
      num_rows = jnp.full((2,), last - first, jnp.int32)
      rows = base.Committed(
        batch.tokens[:, first:],
        batch.taps[:, first:],
        num_rows,
        batch.tokens[:, last],
      )
      state = drafter.commit(state, table, rows)
      table = paged.advance(table, num_rows, jnp.zeros((), bool))
    anchor = batch.tokens[:, row + 1]
    draft = drafter.propose(state, table, anchor, None, None)
    return draft, list(served)

  draft, at_depth = decode(drafter, state, table)
  for depth in range(3):
    np.testing.assert_allclose(at_depth[depth], logits[:, depth], atol=1e-4)
  np.testing.assert_array_equal(draft.tokens[:, 1:], ids[columns])
  probs = np.asarray(jax.nn.softmax(logits, axis=-1)).max(-1)
  np.testing.assert_allclose(draft.confidence[:, 1:], probs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {'tree_size': 6, **small_mtp.EXPERTS},
    {'draft_token_ids': small_mtp.DRAFT_IDS, **small_mtp.OTHER_WAY},
  ],
  ids=['experts_tree', 'dense_reduced_other_way'],
)
def test_conformance(target, changes):
  drafter_suite.run(small_mtp.drafter(target, **changes), target)


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
@pytest.mark.parametrize(
  'changes',
  [{}, {'tree_size': 6, **small_mtp.EXPERTS}],
  ids=['dense_chain', 'experts_tree'],
)
def test_garbage_weights_change_no_token(target, prompts, plain, changes):
  drafter = small_mtp.drafter(target, **changes)
  for leaf in drafter.leaves().values():
    leaf[...] = 30 * leaf[...]
  assert _decode(target, drafter, prompts) == plain


@pytest.mark.slow
def test_one_sample_can_be_learnt(target):
  """By the data's labels, while later steps embed its own drafts."""
  drafter = small_mtp.drafter(
    target, loss={'ground_truth': True, 'ce': 1.0, 'lk': 0.0}, is_random=False
  )
  batch = small_mtp.batch(target)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  tx = optax.adam(3e-3)

  @jax.jit
  def step(params, opt_state):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, jax.random.key(0))

    (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, metrics

  opt_state = tx.init(params)
  params, opt_state, first = step(params, opt_state)
  for _ in range(150):
    params, opt_state, metrics = step(params, opt_state)
  assert first['tokens_per_round'] < 1.5
  # The end of the text cuts the runs of the last two rows.
  most = 1 + np.mean([3] * 10 + [2, 1])
  assert metrics['tokens_per_round'] > 0.95 * most


def test_narrower_drafter_projects_the_states(target):
  """Its embedding and head are its own width, its teacher the target's."""
  rng = np.random.default_rng(0)
  arrays = borrowed.from_target(target, small_mtp.DRAFT_IDS)
  # What is borrowed from one target has one width, and is annotated so.
  with unchecked.constructors():
    narrow = dataclasses.replace(
      arrays,
      embedding=jnp.asarray(rng.normal(size=(64, 16)), jnp.float32),
      head=jnp.asarray(rng.normal(size=(16, 22)), jnp.float32),
    )
  config = small_mtp.config(
    target, width=16, draft_vocab_size=len(small_mtp.DRAFT_IDS)
  )
  loss_config = mtp.LossConfig(ttt_length=2, kl=1.0)
  drafter = mtp.MTP(config, loss_config, narrow, jax.random.key(0))
  assert drafter.leaves()['hidden_proj'].shape == (32, 16)
  loss, metrics = _loss(drafter, small_mtp.batch(target))
  assert np.isfinite(loss) and np.all(metrics['kl'] > 0)
  with pytest.raises(errors.UserError, match='borrowed embedding'):
    mtp.MTP(config, loss_config, arrays, jax.random.key(0))


@pytest.mark.parametrize(
  'changes', [{}, small_mtp.EXPERTS, {**small_mtp.EXPERTS, 'width': 16}]
)
def test_every_leaf_has_its_tensors(target, changes):
  """Cut up as the rules say and put together again."""
  config = small_mtp.config(target, **changes)
  shapes, rules = mtp_config.array_shapes(config), mtp_config.rules(config)
  rng = np.random.default_rng(0)
  leaves = {name: rng.normal(size=shape) for name, shape in shapes.items()}
  tensors = {
    rule.source: rule.convert(leaves[rule.leaf][rule.box]) for rule in rules
  }
  assert len(tensors) == len(rules)
  found = names.fill(
    rules, names.Held('the fixture', tensors), shapes, dtype=np.float64
  )
  for name, values in leaves.items():
    np.testing.assert_array_equal(found[name], values)


def test_only_own_weights_are_parameters(target):
  drafter = small_mtp.drafter(target, **small_mtp.EXPERTS)
  _, params, rest = nnx.split(drafter, nnx.Param, ...)
  found = {path[-1] for path, _ in nnx.to_flat_state(params)}
  assert found == set(mtp_config.array_shapes(drafter.config))
  frozen = {path[-1] for path, _ in nnx.to_flat_state(rest)}
  assert frozen == {'embedding', 'head', 'target_norm'}


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'taps': (1,)}, r'taps=\(1,\): expected \(2,\)'),
    ({'taps': (1, 2)}, 'taps'),
    ({'num_draft_tokens': 0}, 'num_draft_tokens=0'),
    ({'tree_size': 128}, 'tree_size=128: expected 0 .a chain. to 127'),
    ({'num_heads': 3}, 'num_heads=3'),
    ({'zero_first_embedding': 'yes'}, "zero_first_embedding='yes'"),
    ({'num_experts': 4, 'expert_ff_width': 8}, 'top_k=0: expected 1..4'),
    ({'num_experts': 4, 'experts_per_token': 2}, 'expert_ff_width=0'),
    ({'ff_width': 0}, 'ff_width=0'),
  ],
)
def test_config_refuses_when_a_field_is_off(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    small_mtp.config(target, **changes)


def test_options_change_how_it_decodes_and_unknown_ones_are_refused(target):
  drafter = small_mtp.drafter(target)
  drafter.set_options(tree_size=9, tree_width=2)
  assert drafter.num_draft_tokens == 9
  drafter.set_options(tree_size=0, num_draft_tokens=2)
  assert drafter.num_draft_tokens == 2
  for options, message in (
    ({'width': 64}, 'width: no option'),
    ({'tree_size': 'big'}, "tree_size='big': expected int"),
    ({'tree_size': 128}, 'tree_size=128'),
  ):
    with pytest.raises(errors.UserError, match=message):
      drafter.set_options(**options)
