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
from tests.evals import unchecked

TEXT_LEN, FIRST, DEPTH = 28, 4, 3


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
    with unchecked.constructors():
      decoder = generate.Decoder(target, drafter, max_len=40, num_rows=3)
      return decoder.generate(prompts, requests)


# At temperature 0 and 1; the rows draw different texts.
REQUESTS = [
  sampling.SamplingParams(max_tokens=20, seed=i, temperature=i % 2 * 1.0)
  for i in range(4)
]
SEPARATE = {'shared': False, 'draft_token_ids': small_d2sd.DRAFT_IDS}


@pytest.fixture(scope='module')
def plain(target):
  return _decode(target, None, REQUESTS)


@pytest.mark.slow
@pytest.mark.parametrize(
  'options', [{'tree_size': 6}, SEPARATE], ids=['shared', 'separate']
)
def test_garbage_weights_change_no_token(target, plain, options):
  got = _decode(target, small_d2sd.drafter(target, **options), REQUESTS)
  assert [x.tokens for x in got] == [x.tokens for x in plain]
  assert sum(sum(x.num_drafted) for x in got) > 0


def _forks(target, rows, seed):
  """Texts of 9 1 2 3 (40 %), 9 4 5 6 and 9 7 5 6 (30 % each).

  Of every slot alone 1, 5 and 6 are the likeliest, which never come together.
  """
  rng = np.random.default_rng(seed)
  kinds = np.asarray([[9, 1, 2, 3], [9, 4, 5, 6], [9, 7, 5, 6]])
  drawn = rng.choice(3, p=[0.4, 0.3, 0.3], size=(rows, TEXT_LEN // 4))
  text = jnp.asarray(kinds[drawn].reshape(rows, TEXT_LEN), jnp.int32)
  positions = jnp.broadcast_to(
    jnp.arange(TEXT_LEN, dtype=jnp.int32), text.shape
  )
  one = jnp.ones_like(text)
  taps = drafter_suite.encode(target, text, positions, one, (0, 1, 2))
  return base.DraftBatch(
    tokens=text,
    positions=positions,
    segments=one,
    is_answer=positions >= 1,
    taps=taps,
  )


@jax.jit
def _propose_everywhere(drafter, batch):
  """Drafts of all blocks and of all trees, a row for every anchor."""
  num_texts = batch.tokens.shape[0]
  anchors = batch.tokens[:, FIRST:-DEPTH]
  count = anchors.shape[1]
  lengths = jnp.tile(FIRST + jnp.arange(count, dtype=jnp.int32), num_texts)
  num_pages = TEXT_LEN // 4
  table = paged.contiguous_table(num_texts * count, num_pages)
  rows = base.Committed(
    jnp.repeat(batch.tokens, count, axis=0),
    jnp.repeat(batch.taps, count, axis=0),
    lengths,
    anchors.reshape(-1),
  )
  state = drafter.init_state(table, num_texts * count * num_pages, 4)
  state = drafter.commit(state, table, rows)
  table = paged.advance(table, lengths, jnp.zeros((), bool))
  return tuple(
    one.propose(own, table, rows.next_token, None, None)
    for one, own in ((drafter.first, state[0]), (drafter, state))
  )


def _accepted(draft, texts):
  """Drafts accepted behind every anchor, when the target says the texts."""
  tokens, parents = np.asarray(draft.tokens), np.asarray(draft.parents)
  live = np.arange(tokens.shape[1]) < np.asarray(draft.num_nodes)[:, None]
  count = TEXT_LEN - FIRST - DEPTH
  found = []
  for row in range(tokens.shape[0]):
    start = FIRST + row % count + 1
    node = 0
    for depth, token in enumerate(texts[row // count][start : start + DEPTH]):
      hits = live[row] & (parents[row] == node) & (tokens[row] == token)
      if not hits.any():
        found.append(depth)
        break
      node = int(np.flatnonzero(hits)[0])
    else:
      found.append(DEPTH)
  return np.asarray(found)


@pytest.mark.slow
def test_branches_pay_and_never_accept_less_and_a_sample_is_overfit(target):
  """Round by round on the same text, half trained and overfit."""
  seen, held_out = _forks(target, 4, 0), _forks(target, 4, 1)
  drafter = small_d2sd.drafter(
    target, num_cuts=3, num_anchors=24, is_random=False
  )
  drafter.calibrate(seen)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  optimizer = optax.adam(3e-3)

  @jax.jit
  def train(params, state, first, stop):
    def step(i, carry):
      def loss(params):
        key = jax.random.fold_in(jax.random.key(0), i)
        return nnx.merge(graph, params, rest).loss(seen, key)[0]

      params, state = carry
      updates, state = optimizer.update(jax.grad(loss)(params), state)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(first, stop, step, (params, state))

  def compare(params, batch):
    drafts = _propose_everywhere(nnx.merge(graph, params, rest), batch)
    block, tree = (_accepted(x, np.asarray(batch.tokens)) for x in drafts)
    assert np.all(tree >= block)
    return block.mean(), tree.mean()

  params, state = train(params, optimizer.init(params), 0, 100)
  for batch in (seen, held_out):
    block, tree = compare(params, batch)
    assert block > 1.5 and tree > block + 0.1
  params, state = train(params, state, 100, 250)
  block, tree = compare(params, seen)
  assert tree >= block > 0.9 * DEPTH


@pytest.mark.parametrize(
  'changes',
  [{}, SEPARATE],
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
