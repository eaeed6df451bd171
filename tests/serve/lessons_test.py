# SPDX-License-Identifier: MIT
"""The engine hands lessons to who asks for them and else fetches none."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import lessons as lessons_lib
from jspec.decode import round as round_lib
from jspec.serve import asks, launch
from jspec.serve import device as device_lib
from jspec.testing import toy
from tests.evals import unchecked
from tests.serve import small

NUM_ROWS = 2
FIELDS = (
  'tokens',
  'origins',
  'lengths',
  'num_by_depth',
  'num_by_budget',
  'scores',
  'confidence',
  'parents',
  'num_verified',
  'path',
)


def report():
  """Of a launch of two rows."""
  fields = {field: np.zeros((NUM_ROWS, 3), np.int32) for field in FIELDS}
  return launch.Report(
    **{
      **fields,
      'stats': round_lib.Stats(
        *(np.zeros((NUM_ROWS,) + (0,) * (i in (1, 2)), int) for i in range(4))
      ),
      'num_tokens': np.asarray([1, 2]),
      'num_rounds': np.int32(1),
      'dropped': np.bool_(False),
      'is_stopped': np.zeros((NUM_ROWS,), bool),
      'logprobs': {},
      'lessons': lessons_lib.none(NUM_ROWS, 1, 4),
    }
  )


def test_lessons_that_nobody_wants_are_not_fetched(monkeypatch):
  fetched = []
  get = jax.device_get
  monkeypatch.setattr(jax, 'device_get', lambda x: fetched.append(x) or get(x))
  with unchecked.constructors():
    given = report()
    for wanted in (False, True):
      _, used = device_lib.read(
        given, [5], with_logprobs=False, with_lessons=wanted
      )
      assert (used.lessons is not None) == wanted
      leaves = jax.tree.leaves(fetched.pop())
      is_in = any(leaf is given.lessons.taps for leaf in leaves)
      assert is_in == wanted
  assert used.lessons.taps.shape == (1, 1, 4)  # One row was asked for.


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN)


@pytest.mark.slow
def test_lessons_come_with_every_launch_once_they_are_wanted(target):
  drafter = toy.drafter(target, taps=(0, 2))
  engine = small.make(target, drafter)
  prompt_of, texts, got = {}, {}, []

  def learn(sent, lessons):
    for i, decode in enumerate(sent.plan.decodes):
      one = types.SimpleNamespace(
        **{name: leaf[i] for name, leaf in vars(lessons).items()}
      )
      if one.depth >= 0:
        got.append((decode.request_id, one))

  def serve(name):
    for i, (prompt, params) in enumerate(
      zip(small.prompts(), small.requests(), strict=True)
    ):
      request_id = name, i
      prompt_of[request_id] = prompt
      texts[request_id] = list(prompt)
      engine.submit(prompt, asks.Ask(params=params), request_id=request_id)
    while engine.has_work:
      for event in engine.step():
        texts[event.request_id] += event.tokens

  serve('unasked')
  assert not got
  engine.on_lessons = learn
  serve('asked')
  engine.on_lessons = None
  count = len(got)
  serve('unasked again')
  assert len(got) == count > len(small.LENGTHS)
  for i in range(len(small.LENGTHS)):  # Nobody's tokens changed.
    assert texts['asked', i] == texts['unasked', i]
  assert engine.programs.num_missing == 0

  @jax.jit
  def encode(tokens):
    at = jnp.arange(tokens.shape[1])[None]
    hidden, taps = target.encode(
      tokens, at, jnp.ones_like(tokens), drafter.taps
    )
    return taps[0], jax.nn.log_softmax(target.logits(hidden[0]))

  num_rejected = 0
  for request_id, one in got:
    text = texts[request_id]
    at = int(one.position + one.depth)
    assert len(prompt_of[request_id]) - 1 <= one.position
    assert text[at + 1] == one.token
    padded = np.zeros((1, small.MAX_LEN), np.int32)
    padded[0, : len(text)] = text
    taps, logprobs = jax.tree.map(np.asarray, encode(padded))
    np.testing.assert_allclose(one.taps, taps[at], atol=3e-5)
    np.testing.assert_allclose(
      one.top_logprobs, logprobs[at][one.top_ids], atol=3e-5
    )
    best = np.sort(logprobs[at])[::-1][: lessons_lib.NUM_TOP]
    np.testing.assert_allclose(one.top_logprobs, best, atol=3e-5)
    num_rejected += one.rejected >= 0
    assert one.rejected != one.token
  assert num_rejected > 0
