# SPDX-License-Identifier: MIT
"""What every member of the DFlash family must hold, whatever its parts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.cache import paged
from jspec.drafters import (
  anchors,
  base,
  block_config,
  block_drafter,
  block_loss,
  block_steps,
  borrowed,
  dflare,
  dflash,
  dflash2,
  dfly,
  dspark,
  objective,
  token_head,
)
from jspec.nn import layers
from jspec.testing import drafter_suite, toy
from tests.drafters import walk

LENGTH = 20
SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}
# Every part at least once, in both slot conventions.
MEMBERS = {
  'dflash_windows': (dflash.METHOD, {'layer_windows': (6, None)}),
  'dflash_gated': (dflash.METHOD, {'fusion': 'gated', **SHIFTED}),
  'dflash2': (dflash2.METHOD, {}),
  'dflare': (dflare.METHOD, SHIFTED),
  'dfly': (dfly.METHOD, {}),
  'dspark': (dspark.METHOD, SHIFTED),
  'dspark_gated': (dspark.METHOD, {'markov_kind': 'gated'}),
  'dspark_rnn': (dspark.METHOD, {'markov_kind': 'rnn', **SHIFTED}),
}


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


# Together they have every kind of part; the others run with the slow tests.
FAST = ('dflash_windows', 'dfly', 'dspark_rnn')


@pytest.fixture(
  params=[
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for name in MEMBERS
  ],
  scope='module',
)
def member(request, target):
  method, changes = MEMBERS[request.param]
  return toy.drafter(target, method=method, **changes)


def _batch(target, length=LENGTH):
  """Two documents of random text in each of two rows."""
  tokens = toy.prompts(2, length)
  segments = np.where(np.arange(length) < 13, 1, 2) * np.ones((2, 1), int)
  positions = np.where(segments == 1, np.arange(length), np.arange(length) - 13)
  shape = (2, length, target.num_layers, target.width)
  taps = np.random.default_rng(0).normal(size=shape)
  return base.DraftBatch(
    tokens=jnp.asarray(tokens),
    positions=jnp.asarray(positions, jnp.int32),
    segments=jnp.asarray(segments, jnp.int32),
    is_answer=jnp.ones(tokens.shape, bool),
    taps=jnp.asarray(taps, jnp.float32),
    last=base.LastHidden(
      jnp.asarray(taps[:, :, -1], jnp.float32), is_normed=False
    ),
  )


def _at(*index):
  index = jnp.asarray([index, index], jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


@jax.jit
def _states(drafter, batch, at):
  """What the head is applied to, given the true tokens before."""
  hidden = drafter.train_hidden(batch, at)
  if drafter.token_head is None:
    return hidden, hidden
  index = at.index[..., None] + jnp.arange(hidden.shape[2])
  before = anchors.gather(batch.tokens, index)
  return hidden, token_head.teacher_forced(
    drafter.token_head, hidden, drafter.embedding[...][before], before
  )


@jax.jit
def _serve(drafter, batch, index):
  """States of the slots behind token `index`, through the cache, in two calls.

  Rows behind what is committed are garbage on purpose.
  """
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)
  for start, count in ((0, 5), (5, index - 5)):
    rows = base.Committed(
      batch.tokens[:, start:],
      batch.taps[:, start:],
      jnp.full((2,), count, jnp.int32),
      batch.tokens[:, index],
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, rows.num_rows, jnp.zeros((), bool))
  x = drafter.slots(batch.tokens[:, index])
  return drafter.predicting(drafter.block.score(x, state, table))


@pytest.mark.few(1)
def test_training_equals_serving_with_the_same_forced_tokens(member, target):
  batch, index = _batch(target), 9
  hidden, states = _states(member, batch, _at(4, index))
  served = _serve(member, batch, index)
  np.testing.assert_allclose(served, hidden[:, 1], atol=1e-5)
  tokens = batch.tokens[:, index : index + 3]
  source = block_steps.build(member, served, tokens[:, 0])
  laws = walk.laws(source, tokens[:, 1 : served.shape[1]], target.vocab_size)
  head = member.head[...]
  if member.token_head is not None:
    head = member.token_head.matrix(head)
  logits = states[:, 1] @ head
  for depth, found in enumerate(laws):
    before = tokens[:, depth : depth + 1]
    want = jax.nn.log_softmax(logits[:, depth])
    if member.selector is not None:
      want = _selected(member, served[:, depth], logits[:, depth], before)
    want = np.take_along_axis(np.asarray(want), found.ids, axis=-1)
    np.testing.assert_allclose(found.log_probs, want, atol=1e-4)


def _selected(drafter, hidden, logits, before):
  """The selector's law, spelled out row by row."""
  selector = drafter.selector
  out = np.full(logits.shape, -np.inf)
  for row in range(logits.shape[0]):
    unary = np.asarray(jax.nn.log_softmax(logits[row]))
    best = np.argsort(-unary, kind='stable')[: selector.size]
    query = selector.prev[...][before[row, 0]] * (
      hidden[row] @ selector.proj[...]
    )
    scores = unary[best] + np.asarray(selector.next[...])[best] @ query
    out[row, best] = scores - np.log(np.sum(np.exp(scores)))
  return out


@pytest.mark.parametrize('position', [3, 4, 5, 12, 14])
def test_block_sees_no_feature_at_or_after_its_anchor(member, target, position):
  """Anchor 4 in document 1, 17 in document 2; features move one at a time."""
  batch, at = _batch(target), _at(4, 17)
  taps = np.array(batch.taps)
  taps[:, position] += 5
  changed = dataclasses.replace(batch, taps=jnp.asarray(taps))
  before, after = (
    np.asarray(_states(member, b, at)[1]) for b in (batch, changed)
  )
  moved = np.abs(after - before).max(axis=(0, 2, 3)) > 1e-4
  np.testing.assert_array_equal(moved, [position < 4, 13 <= position < 17])


@pytest.mark.slow
def test_parts_start_as_the_identity(target):
  """At step 0 a child is its parent: same states, same logits."""
  batch, at = _batch(target), _at(4, 9)
  arrays = borrowed.from_target(target)
  for name, (method, changes) in MEMBERS.items():
    if method not in (dflash2.METHOD, dfly.METHOD, dspark.METHOD):
      continue
    changes = {**toy.PARTS[method.name], **changes}
    key = jax.random.key(3)
    child = method.make(
      toy.config(target, method, **changes), None, arrays, key
    )
    bare = {
      field: value
      for field, value in dataclasses.asdict(child.config).items()
      if field not in toy.PARTS[method.name] and field != 'markov_kind'
    }
    parent = block_method_of(bare, arrays, key)
    hidden, states = _states(child, batch, at)
    want, _ = _states(parent, batch, at)
    np.testing.assert_array_equal(hidden, want, err_msg=name)
    head = child.head[...]
    if child.token_head is not None:
      head = child.token_head.matrix(head)
    got = states @ head
    np.testing.assert_allclose(got, want @ child.head[...], atol=1e-6)
    if child.selector is not None:
      source = block_steps.build(child, hidden[:, 0], batch.tokens[:, 4])
      best = np.argmax(want[:, 0, 0] @ child.head[...], axis=-1)
      np.testing.assert_array_equal(source.root(1).ids[:, 0], best)


def block_method_of(fields, arrays, key):
  """The drafter of a config, given as fields."""
  config = block_config.BlockDrafterConfig(**fields)
  return block_drafter.BlockDrafter(
    config, block_loss.LossConfig(), arrays, key
  )


@pytest.mark.slow
@pytest.mark.parametrize('tree_size', [0, 7])
def test_conformance(member, target, tree_size):
  member.set_options(tree_size=tree_size)
  drafter_suite.run(member, target)
  member.set_options(tree_size=0)


@pytest.mark.slow
def test_a_tree_of_dependent_slots_holds_the_greedy_chain(target):
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  drafter = toy.drafter(target, method=dfly.METHOD)
  suite = drafter_suite.Suite(drafter, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['one_prefill'])
  chain = suite.propose(state, table, text)
  drafter.set_options(tree_size=40, beam_width=8)
  tree = suite.propose(state, table, text)
  for row in range(drafter_suite.NUM_ROWS):
    node = 0
    for token in np.asarray(chain.tokens)[row, 1:]:
      children = np.flatnonzero(np.asarray(tree.parents)[row] == node)
      found = [n for n in children if tree.tokens[row, n] == token]
      assert found
      node = found[0]


LOSSES = {
  'teacher': (dflash.METHOD, objective.Mix(ce=0.1, l1=0.9), {}),
  'confidence': (dspark.METHOD, objective.Mix(l1=0.9, confidence=1.0), {}),
  'selector': (dflash2.METHOD, objective.Mix(), {'selector': 1.0}),
  'gate': (dflash.METHOD, objective.Mix(), {'gate_entropy': 0.1}),
}


@pytest.mark.few(1)
@pytest.mark.parametrize('name', LOSSES)
def test_loss_is_finite_and_the_sum_of_its_terms(target, name):
  method, mix, more = LOSSES[name]
  parts = {'fusion': 'gated'} if name == 'gate' else {}
  loss = block_loss.LossConfig(num_anchors=4, mix=mix, **more)
  drafter = toy.drafter(target, method=method, loss_config=loss, **parts)
  total, metrics = jax.jit(lambda d, b, k: d.loss(b, k))(
    drafter, _batch(target), jax.random.key(0)
  )
  want = sum(getattr(mix, term) * metrics[term] for term in mix.active)
  want += sum(weight * metrics[term] for term, weight in more.items())
  np.testing.assert_allclose(total, want, rtol=1e-5)
  assert np.isfinite(total) and total > 0


@pytest.mark.slow
def test_teacher_is_the_same_from_either_capture_and_must_be_there(target):
  loss = block_loss.LossConfig(num_anchors=4, mix=objective.Mix(l1=1.0))
  drafter = toy.drafter(target, loss_config=loss)
  assert drafter.needs_last
  batch = _batch(target)
  normed = layers.rms_norm(
    batch.last.hidden, target.final_norm[...], target.config.norm_eps
  )
  other = dataclasses.replace(
    batch, last=base.LastHidden(normed, is_normed=True)
  )
  key = jax.random.key(0)
  first, second = (drafter.loss(b, key)[0] for b in (batch, other))
  np.testing.assert_allclose(first, second, rtol=1e-6)
  wrong = base.LastHidden(batch.last.hidden, is_normed=True)
  third = drafter.loss(dataclasses.replace(batch, last=wrong), key)[0]
  assert abs(third - first) > 1e-3
  with pytest.raises(errors.UserError, match='last states'):
    drafter.loss(dataclasses.replace(batch, last=None), key)


@pytest.mark.parametrize(
  'method, loss, message',
  [
    (dflash.METHOD, {'mix': {'confidence': 1.0}}, 'confidence=1.0'),
    (dflash.METHOD, {'selector': 1.0}, 'selector=1.0'),
    (dflash.METHOD, {'gate_entropy': 0.1}, 'gate_entropy=0.1'),
    (dflash2.METHOD, {'selector': -1.0}, 'selector=-1.0'),
  ],
)
def test_a_term_without_its_part_is_refused(target, method, loss, message):
  loss = {**loss, 'mix': objective.Mix(**loss.get('mix', {}))}
  with pytest.raises(errors.UserError, match=message):
    toy.drafter(
      target, method=method, loss_config=block_loss.LossConfig(**loss)
    )


def test_confidence_has_no_gradient_in_the_backbone(target):
  mix = objective.Mix(ce=0.0, confidence=1.0)
  for detach in (True, False):
    loss = block_loss.LossConfig(
      num_anchors=4, mix=mix, detach_confidence=detach
    )
    drafter = toy.drafter(target, method=dspark.METHOD, loss_config=loss)
    graph, params, rest = nnx.split(drafter, nnx.Param, ...)

    @jax.jit
    def grad(params, graph=graph, rest=rest):
      def value(params):
        model = nnx.merge(graph, params, rest)
        return model.loss(_batch(target), jax.random.key(0))[0]

      return jax.grad(value)(params)

    found = grad(params)
    backbone = [np.abs(x).max() for x in jax.tree.leaves(found['block'])]
    assert (max(backbone) == 0) == detach
    assert np.abs(found['confidence']['proj'][...]).max() > 0
