# SPDX-License-Identifier: MIT
"""Lessons are what whole passes over the committed text say at those places."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import lessons as lessons_lib
from jspec.decode import prefill, sampling
from jspec.decode import round as round_lib
from jspec.decode.verify import accepted as accepted_lib
from jspec.testing import toy
from tests.evals import drafters

MAX_LEN, NUM_DRAFTS, NUM_ROUNDS = 32, 3, 3
TAPS = (0, 2)
LENGTHS = (4, 9, 6, 5)
RESTING = 3  # This row has a prompt and is never started.
WHOLE, PACKED = (4, 16), (11,)


class Known(drafters.Known):
  """Right for two tokens, then wrong."""

  def __init__(self, target):
    super().__init__(target, NUM_DRAFTS, num_right=2)
    self.taps = TAPS


class Sampled(drafters.Sampled):
  def __init__(self, law):
    super().__init__(law, NUM_DRAFTS)
    self.taps = TAPS


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.fixture(scope='module')
def encode(target):
  """Taps and log-probabilities [S, V] of a whole text, without a cache."""

  @jax.jit
  def run(tokens):
    at = jnp.arange(tokens.shape[1])[None]
    hidden, taps = target.encode(tokens, at, jnp.ones_like(tokens), TAPS)
    return taps[0], jax.nn.log_softmax(target.logits(hidden[0]))

  def padded(text):
    row = np.zeros((1, MAX_LEN), np.int32)
    row[0, : len(text)] = text
    return jax.tree.map(np.asarray, run(row))

  return padded


def prompts():
  return [toy.prompts(1, n, seed=n)[0].tolist() for n in LENGTHS]


def begin(target, drafter, heat):
  """All rows with their prompts read; all but one decode."""
  state = round_lib.init_state(
    target,
    drafter,
    num_rows=len(LENGTHS),
    max_len=MAX_LEN,
    page_size=8,
    num_stop_ids=2,
  )
  read, admit = jax.jit(prefill.prefill), jax.jit(prefill.admit)
  for row, prompt in enumerate(prompts()):
    params = sampling.SamplingParams(temperature=heat * (row == 2), seed=row)
    state = admit(
      drafter,
      state,
      jnp.int32(row),
      jnp.int32(prompt[-1]),
      jnp.int32(0),
      sampling.stack([params]),
      jnp.full((2,), -1, jnp.int32),
    )
    tokens = np.zeros((max(LENGTHS),), np.int32)
    tokens[: len(prompt) - 1] = prompt[:-1]
    args = jnp.int32(row), tokens, jnp.int32(len(prompt) - 1)
    state = read(target, drafter, state, *args, jnp.int32(prompt[-1]))
    if row != RESTING:
      state = prefill.start(state, jnp.int32(row), jnp.int32(12))
  return state


@functools.partial(jax.jit, static_argnames=('rule', 'sizes'))
def run(target, drafter, state, wants, rule, sizes):
  """A round; the second row verifies one draft, so that packing is ragged."""
  counts = jnp.asarray([4, 2, 4, 1], jnp.int32)
  return round_lib.run_round(
    target,
    drafter,
    state,
    rule=rule,
    sizes=sizes,
    plan=lambda draft, state: jnp.minimum(draft.num_nodes, counts),
    wants_lessons=wants,
  )


def rounds(target, drafter, state, *, rule='walk', sizes=PACKED, **given):
  """What each round did and the texts after it."""
  wants = jnp.bool_(given.get('wants', True))
  for _ in range(given.get('num', NUM_ROUNDS)):
    state, last = run(target, drafter, state, wants, rule, sizes)
    output = [
      np.asarray(state.output)[row, :size].tolist()
      for row, size in enumerate(state.num_output)
    ]
    texts = [a + b for a, b in zip(prompts(), output, strict=True)]
    yield jax.tree.map(np.asarray, last), texts


def check(last, texts, encode, shift=0):
  """Compares with whole passes; `shift` looks at another place."""
  got = last.lessons
  assert got.depth[RESTING] == -1
  for row, text in enumerate(texts):
    if row == RESTING:
      continue
    depth = got.depth[row]
    assert got.position[row] + depth + 1 == len(text) - 1
    assert got.token[row] == text[-1]
    taps, logprobs = encode(text)
    at = len(text) - 2 + shift
    np.testing.assert_allclose(got.taps[row], taps[at], atol=3e-5)
    order = np.argsort(-logprobs[at], kind='stable')[: lessons_lib.NUM_TOP]
    np.testing.assert_array_equal(got.top_ids[row], order)
    np.testing.assert_allclose(
      got.top_logprobs[row], logprobs[at][order], atol=3e-5
    )
    tokens, num_nodes = last.draft.tokens[row], last.draft.num_nodes[row]
    if depth + 1 < num_nodes:
      assert got.rejected[row] == tokens[depth + 1] != got.token[row]
    else:
      assert got.rejected[row] == -1


@pytest.fixture(scope='module')
def begun(target):
  law = np.random.default_rng(0).dirichlet(np.ones(toy.VOCAB_SIZE))
  made = {}
  for rule, drafter in {'walk': Known(target), 'token': Sampled(law)}.items():
    heat = 0.8 if rule == 'walk' else 1.2
    made[rule] = drafter, begin(target, drafter, heat)
  return made


@pytest.mark.slow
@pytest.mark.parametrize(
  ('rule', 'sizes'),
  [('walk', PACKED), ('walk', WHOLE), ('token', WHOLE), ('token', PACKED)],
)
def test_lessons_are_those_of_whole_passes(target, encode, begun, rule, sizes):
  drafter, state = begun[rule]
  ran = rounds(target, drafter, state, rule=rule, sizes=sizes)
  depths, rejected = [], []
  for last, texts in ran:
    check(last, texts, encode)
    depths += last.lessons.depth[:RESTING].tolist()
    rejected += last.lessons.rejected[:RESTING].tolist()
  assert -1 not in depths
  if rule == 'walk':  # Drafts were kept, all of them too, and rejected.
    assert max(depths) == 2 and min(rejected) == -1 < max(rejected)
  else:
    assert max(rejected) > -1
  with pytest.raises(AssertionError):
    check(last, texts, encode, shift=-1)


def test_nobody_who_wants_none_gets_any(target, begun):
  drafter, state = begun['walk']
  ((last, _),) = rounds(target, drafter, state, wants=False, num=1)
  assert last.lessons.depth.tolist() == [-1] * len(LENGTHS)
  assert not last.lessons.taps.any() and not last.lessons.top_ids.any()
  assert (last.num_committed[:RESTING] > 0).all()


def test_a_row_that_a_stop_id_ended_before_the_place_has_no_lesson(
  target, encode, begun
):
  drafter, state = begun['walk']
  ((last, texts),) = rounds(target, drafter, state, num=1)
  assert last.lessons.depth[0] == 2
  first, end = texts[0][LENGTHS[0]], texts[0][-1]
  for stop, has_lesson in ((first, False), (end, True)):
    stops = state.stop_ids.at[0].set(jnp.asarray([stop, -1]))
    stopped = dataclasses.replace(state, stop_ids=stops)
    ((last, texts),) = rounds(target, drafter, stopped, num=1)
    assert texts[0][-1] == stop
    assert (last.lessons.depth[0] >= 0) == has_lesson
    assert (last.lessons.depth[1:RESTING] >= 0).all()
  check(last, texts, encode)


def hand_made(**changes):
  """A tree: the anchor's children are 1 and 2, those of 1 are 3 and 4."""
  given = dict(tokens=[[9, 5, 6, 7, 8]], num_nodes=[5], path=[1], said=30)
  given |= changes
  path = [0, *given['path']]
  draft = tree.Draft(
    tokens=jnp.asarray(given['tokens'], jnp.int32),
    parents=jnp.asarray([[-1, 0, 0, 1, 1]], jnp.int32),
    num_nodes=jnp.asarray(given['num_nodes'], jnp.int32),
    confidence=jnp.ones((1, 5)),
  )
  emitted = [*(given['tokens'][0][node] for node in path[1:]), given['said']]
  padded = jnp.zeros((2, 1, 5), jnp.int32)
  padded = padded.at[0, 0, : len(path)].set(jnp.asarray(path))
  padded = padded.at[1, 0, : len(emitted)].set(jnp.asarray(emitted))
  accepted = accepted_lib.Accepted(
    path=padded[0],
    num_accepted=jnp.asarray([len(path) - 1], jnp.int32),
    tokens=padded[1],
  )
  found = lessons_lib.of(
    jnp.bool_(True),
    lessons_lib.likeliest(
      jnp.bool_(True), jnp.zeros((1, 5, 3)), accepted, None
    ),
    draft,
    accepted,
    jnp.arange(5.0).reshape(1, 5, 1, 1),
    jnp.asarray([40], jnp.int32),
    jnp.asarray([len(path)], jnp.int32),
  )
  return jax.tree.map(lambda leaf: np.asarray(leaf)[0], found)


def test_of_siblings_the_first_was_rejected_if_it_was_verified():
  found = hand_made()
  assert (found.depth, found.rejected, found.token) == (1, 7, 30)
  assert found.taps.tolist() == [[1.0]]
  assert hand_made(path=[]).rejected == 5
  assert hand_made(path=[2]).rejected == -1  # a leaf
  assert hand_made(num_nodes=[3]).rejected == -1  # children not verified
  # Three tokens exist: the places behind them are marked.
  assert found.top_ids.tolist() == [0, 1, 2] + [-1] * 13
  assert np.isneginf(found.top_logprobs[3:]).all()


def test_a_target_without_a_finite_logit_teaches_nothing():
  assert hand_made(said=-1).depth == -1
