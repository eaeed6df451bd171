# SPDX-License-Identifier: MIT
"""Members of the DFlash family from training to decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jspec.decode import generate, sampling
from jspec.drafters import (
  anchors,
  base,
  block_loss,
  borrowed,
  dflare,
  dflash,
  dflash2,
  dfly,
  dspark,
  objective,
)
from jspec.testing import toy
from tests.evals import unchecked

SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}
MEMBERS = {
  'dflash': (dflash.METHOD, {}, {}),
  'dflash2': (dflash2.METHOD, {}, {'selector': 1.0}),
  'dflare': (dflare.METHOD, SHIFTED, {}),
  'dfly': (dfly.METHOD, SHIFTED, {}),
  'dspark': (dspark.METHOD, SHIFTED, {}),
}


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _decode(target, drafter, prompts, requests):
  with unchecked.constructors():
    decoder = generate.Decoder(target, drafter, num_rows=2, max_len=64)
    return decoder.generate(prompts, requests)


@pytest.mark.slow
@pytest.mark.parametrize('tree_size', [0, 9])
@pytest.mark.parametrize('name', MEMBERS)
def test_garbage_weights_change_no_token(target, name, tree_size):
  method, changes, _ = MEMBERS[name]
  drafter = toy.drafter(target, method=method, **changes)
  drafter.set_options(tree_size=tree_size)
  requests = [
    sampling.SamplingParams(max_tokens=20, seed=i, temperature=i % 2 * 0.8)
    for i in range(4)
  ]
  prompts = [toy.prompts(1, n, seed=n)[0].tolist() for n in (1, 2, 9, 17)]
  want = _decode(target, None, prompts, requests)
  got = _decode(target, drafter, prompts, requests)
  assert [x.tokens for x in got] == [x.tokens for x in want]
  assert sum(sum(x.num_drafted) for x in got) > 0


def _own_text(target):
  """The target's greedy continuation of a prompt, with its states."""
  length = 20
  text = np.zeros((1, length), np.int32)
  text[0, :4] = toy.prompts(1, 4, seed=5)
  positions = jnp.arange(length, dtype=jnp.int32)[None]
  ones = jnp.ones((1, length), jnp.int32)
  encode = jax.jit(
    lambda target, text: target.encode(text, positions, ones, (0, 1, 2))
  )
  for i in range(4, length):
    hidden, _ = encode(target, jnp.asarray(text))
    text[0, i] = np.argmax(target.logits(hidden)[0, i - 1])
  hidden, taps = encode(target, jnp.asarray(text))
  return base.DraftBatch(
    tokens=jnp.asarray(text),
    positions=positions,
    segments=ones,
    is_answer=positions >= 4,
    taps=taps,
    last=base.LastHidden(hidden, is_normed=True),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', MEMBERS)
def test_overfits_one_sample_and_then_drafts_all_of_it(target, name):
  """From fresh weights, as a run starts: calibrated, parts without effect."""
  method, changes, loss = MEMBERS[name]
  mix = objective.Mix(weights='dpace', chunk=8)
  fields = toy.config(target, method, **changes)
  drafter = method.make(
    fields,
    block_loss.LossConfig(num_anchors=16, mix=mix, **loss),
    borrowed.from_target(target),
    jax.random.key(0),
  )
  batch = _own_text(target)
  drafter.calibrate(batch)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  index = jnp.arange(3, 19, dtype=jnp.int32)[None]
  at = anchors.Anchors(index, jnp.ones(index.shape, bool))
  optimizer = optax.adam(5e-3)

  def value(params):
    return nnx.merge(graph, params, rest).loss_at(batch, at)

  @jax.jit
  def train(params, state):
    grads, metrics = jax.grad(value, has_aux=True)(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, metrics

  state = optimizer.init(params)
  for _ in range(150):
    params, state, metrics = train(params, state)
  # Blocks at the end have fewer labels than a block can draft.
  most = np.mean([min(fields.num_labels, 19 - i) for i in range(3, 19)])
  assert metrics['tokens_per_round'] > 1 + 0.95 * most
  trained = nnx.merge(graph, params, rest)
  prompt = [np.asarray(batch.tokens)[0, :4].tolist()]
  request = [sampling.SamplingParams(max_tokens=16)]
  (got,) = _decode(target, trained, prompt, request)
  assert got.tokens == np.asarray(batch.tokens)[0, 4:].tolist()
  assert got.num_rounds <= 16 / (1 + fields.num_draft_tokens) + 2
