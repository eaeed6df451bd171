# SPDX-License-Identifier: MIT
"""D2SD as a whole: it loses no token, it pays, and it comes back from disk."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import nnx

from jspec import errors
from jspec.cache import paged
from jspec.decode import generate, sampling
from jspec.drafters import base, interchange
from jspec.testing import drafter_suite, toy
from tests.drafters import small_d2sd

TEXT_LEN, PROMPT_LEN = 28, 4


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _decode(target, drafter, requests):
  prompts = [toy.prompts(1, n, seed=n)[0].tolist() for n in (1, 2, 9, 17)]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    decoder = generate.Decoder(target, drafter, max_len=40, num_rows=3)
  return decoder.generate(prompts, requests)


@pytest.mark.parametrize(
  'options',
  [{'tree_size': 6}, {'shared': False, 'draft_token_ids': np.arange(0, 64, 3)}],
  ids=['shared', 'separate'],
)
def test_garbage_weights_change_no_token(target, options):
  requests = [
    sampling.SamplingParams(max_tokens=20, seed=i, temperature=i % 2 * 1.0)
    for i in range(4)
  ]
  want = _decode(target, None, requests)
  got = _decode(target, small_d2sd.drafter(target, **options), requests)
  assert [x.tokens for x in got] == [x.tokens for x in want]
  assert sum(sum(x.num_drafted) for x in got) > 0


def _written(target):
  """One text of the target, and all that training wants of it."""
  text = np.zeros((1, TEXT_LEN), np.int32)
  text[0, :PROMPT_LEN] = toy.prompts(1, PROMPT_LEN, seed=5)
  positions = jnp.arange(TEXT_LEN, dtype=jnp.int32)[None]
  encode = jax.jit(
    lambda target, text: target.encode(
      text, positions, jnp.ones_like(text), (0, 1, 2)
    )
  )
  noise = np.random.default_rng(0).gumbel(size=(TEXT_LEN, toy.VOCAB_SIZE))
  for i in range(PROMPT_LEN, TEXT_LEN):
    hidden, _ = encode(target, jnp.asarray(text))
    logits = np.asarray(target.logits(hidden))[0, i - 1]
    text[0, i] = np.argmax(logits + noise[i])
  hidden, taps = encode(target, jnp.asarray(text))
  return base.DraftBatch(
    tokens=jnp.asarray(text),
    positions=positions,
    segments=jnp.ones((1, TEXT_LEN), jnp.int32),
    is_answer=positions >= PROMPT_LEN,
    taps=taps,
    last=base.LastHidden(hidden, is_normed=True),
  )


@jax.jit
def _propose_everywhere(drafter, batch):
  """Drafts of all blocks and of all trees, a row for every anchor."""
  lengths = jnp.arange(PROMPT_LEN, TEXT_LEN - 4, dtype=jnp.int32)
  count = lengths.shape[0]
  table = paged.contiguous_table(count, 7)
  anchor = batch.tokens[0, lengths]
  rows = base.Committed(
    jnp.repeat(batch.tokens, count, axis=0),
    jnp.repeat(batch.taps, count, axis=0),
    lengths,
    anchor,
  )
  state = drafter.init_state(table, count * 7, 4)
  state = drafter.commit(state, table, rows)
  table = paged.advance(table, lengths, jnp.zeros((), bool))
  return tuple(
    one.propose(own, table, anchor, None, None)
    for one, own in ((drafter.first, state[0]), (drafter, state))
  )


def _accepted(draft, text):
  """Drafts accepted behind every anchor, when the target says `text`."""
  found = []
  for row in range(draft.tokens.shape[0]):
    node, depth = 0, 0
    while True:
      children = np.asarray(draft.parents[row]) == node
      children &= np.arange(children.size) < int(draft.num_nodes[row])
      children &= (
        np.asarray(draft.tokens[row]) == text[PROMPT_LEN + row + depth + 1]
      )
      if not children.any():
        break
      node, depth = int(np.flatnonzero(children)[0]), depth + 1
    found.append(depth)
  return np.asarray(found)


def test_overfits_one_text_and_branches_never_accept_less(target):
  """On the way there they accept more, round by round on the same text."""
  batch = _written(target)
  drafter = small_d2sd.drafter(
    target, num_cuts=3, num_anchors=24, is_random=False
  )
  drafter.calibrate(batch)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  optimizer = optax.adam(3e-3)

  @jax.jit
  def steps(params, state, first):
    def one(i, carry):
      def loss(params):
        key = jax.random.fold_in(jax.random.key(0), i)
        return nnx.merge(graph, params, rest).loss(batch, key)[0]

      params, state = carry
      updates, state = optimizer.update(jax.grad(loss)(params), state)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(first, first + 50, one, (params, state))

  state, text = optimizer.init(params), np.asarray(batch.tokens)[0]
  gained = []
  for i in range(6):
    params, state = steps(params, state, 50 * i)
    block, tree = (
      _accepted(draft, text)
      for draft in _propose_everywhere(nnx.merge(graph, params, rest), batch)
    )
    print(block, tree)
    assert np.all(tree >= block)
    gained.append((tree - block).sum())
  assert max(gained) > 3
  assert block.mean() > 2.7 and tree.mean() > 2.7


@pytest.mark.parametrize(
  'changes',
  [{}, {'shared': False, 'draft_token_ids': small_d2sd.DRAFT_IDS}],
  ids=['shared', 'separate'],
)
def test_drafter_comes_back_as_it_was_saved(target, tmp_path, changes):
  drafter = small_d2sd.drafter(target, **changes)
  interchange.save(
    tmp_path, drafter, target_name='toy', target_fingerprint='f00'
  )
  loaded = interchange.load(tmp_path, target, target_fingerprint='f00')
  assert loaded.config == drafter.config
  assert loaded.num_draft_tokens == drafter.num_draft_tokens
  want = jax.tree.leaves(nnx.state(drafter))
  for a, b in zip(want, jax.tree.leaves(nnx.state(loaded)), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=2**-8)
  tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  tensors.pop('draft_token_ids', None)
  seconds = {name for name in tensors if name.startswith('second.')}
  firsts = tensors.keys() - seconds
  names = {name.removeprefix('second.') for name in seconds}
  assert names == (firsts if changes else set())
  assert len(firsts) == 3 + 2 * 11
  _refuse_another_config(tmp_path, target, changes)


def _refuse_another_config(folder, target, changes):
  path = folder / 'config.json'
  raw = json.loads(path.read_text())
  other = bool(changes)
  for key, value, message in (
    ('shared', other, 'is not known' if other else 'is missing'),
    ('num_cuts', None, 'does not say num_cuts'),
    ('num_cuts', 9, 'num_cuts=9'),
    ('markov_rank', 2, 'unknown keys markov_rank'),
  ):
    changed = {**raw, key: value}
    if value is None:
      del changed[key]
    path.write_text(json.dumps(changed))
    with pytest.raises(errors.UserError, match=message):
      interchange.load(folder, target, target_fingerprint='f00')


def test_suite_runs_what_was_loaded(target, tmp_path):
  drafter = small_d2sd.drafter(target)
  interchange.save(
    tmp_path, drafter, target_name='toy', target_fingerprint='f00'
  )
  loaded = interchange.load(tmp_path, target, target_fingerprint='f00')
  suite = drafter_suite.Suite(loaded, target)
  suite.check_draft_is_well_formed()
