# SPDX-License-Identifier: MIT
"""Decoding while training: numbers follow the weights, programs stay."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.data import sources
from jspec.decode import generate
from jspec.decode.verify import api as verify
from jspec.evals import online
from jspec.testing import toy
from jspec.train import step
from tests.evals import drafters, lossless_test, small
from tests.serve import compiles

K = small.NUM_DRAFT_TOKENS
PROMPTS = [
  sources.Prompt('a', ('w5 w9 w30', 'w8')),
  sources.Prompt('b', ('w1 w2 w3 w4 w5 w6 w7',)),
  sources.Prompt('c', ('w44',)),
]


@pytest.fixture(autouse=True)
def decoders(monkeypatch):
  """Real decoders, whose compilations are counted here."""
  monkeypatch.setattr(generate, 'PREFILL_CHUNKS', (16,))


def make(loaded, **given):
  # Too short for an answer to be told repeating.
  return online.Online(loaded, PROMPTS, max_tokens=20, num_rows=2, **given)


def known(loaded, num_right):
  return drafters.Known(loaded.model, K, num_right)


@pytest.mark.slow
def test_numbers_follow_the_weights_and_nothing_compiles_again(loaded):
  evaluate = make(loaded)
  with compiles.counted(forget=False) as first:
    good = evaluate(known(loaded, K))
  with compiles.counted(forget=False) as second:
    bad = evaluate(known(loaded, 0))
    half = evaluate(known(loaded, 3))
  assert first and second == []
  assert good['tokens_per_round'] == K + 1 and good['num_accepted'] == K
  assert good['accepted_per_round'] == [1.0] * K
  assert bad['tokens_per_round'] == 1 and bad['num_accepted'] == 0
  assert half['accepted_per_round'] == [1.0, 1.0, 1.0, 0.0]
  for values in (good, bad, half):
    assert values['num_answers'] == values['num_identical'] == 4
    assert values['num_ties'] == values['num_failures'] == 0
    assert values['num_repeating'] == 0
  # The counter counts.
  with compiles.counted(forget=False) as another:
    make(loaded)(known(loaded, 0))
  assert len(another) >= 2


@pytest.mark.slow
def test_answer_that_is_not_the_target_s_is_told(loaded, monkeypatch):
  monkeypatch.setattr(verify, 'accept', lossless_test.accept_everything)
  said = []
  values = make(loaded, on_message=said.append)(known(loaded, 2))
  assert values['num_failures'] >= 3
  assert values['num_identical'] + values['num_failures'] <= 4
  assert len(said) == values['num_failures']
  assert all('not that of plain decoding' in line for line in said)


@pytest.mark.slow
def test_weights_of_a_training_state_decode_wherever_they_lie(loaded):
  """As the trainer hands them in: merged anew, on a mesh, whole or in parts."""
  parts = step.split(toy.drafter(loaded.model))
  evaluate = make(loaded)
  want = evaluate(parts.merge(parts.params, parts.frozen))
  mesh = Mesh(np.array(jax.devices()), ('data',))
  on_mesh = NamedSharding(mesh, PartitionSpec())
  everywhere = jax.device_put((parts.params, parts.frozen), on_mesh)
  assert evaluate(parts.merge(*everywhere)) == want

  def share(x):
    is_even = x.ndim > 1 and x.shape[-1] % mesh.size == 0
    spec = [None] * (x.ndim - 1) + ['data'] if is_even else []
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

  shared = {name: share(x) for name, x in parts.params.items()}
  assert not all(x.is_fully_replicated for x in shared.values())
  assert evaluate(parts.merge(shared, everywhere[1])) == want


def test_the_target_is_not_copied(loaded):
  drafter = known(loaded, K)
  placed = online._beside(loaded.model, drafter)
  ours, theirs = jax.tree.leaves(placed), jax.tree.leaves(drafter)
  for x, y in zip(ours, theirs, strict=True):
    assert x.unsafe_buffer_pointer() == y.unsafe_buffer_pointer()


def test_another_drafter_is_refused_by_the_decoder(loaded):
  decoder = generate.Decoder(
    loaded.model, known(loaded, K), num_rows=1, max_len=32
  )
  decoder.use(known(loaded, 0))
  with pytest.raises(ValueError, match='more than its weights'):
    decoder.use(drafters.Known(loaded.model, K - 1, 0))
  with pytest.raises(ValueError, match='more than its weights'):
    decoder.use(None)


def test_drafter_that_only_trains_is_refused(loaded):
  only_trains = types.SimpleNamespace(taps=(0,), num_draft_tokens=2)
  with pytest.raises(errors.UserError, match='eval.prompts'):
    make(loaded)(only_trains)


def test_prompt_that_does_not_fit_is_refused_before_training(loaded):
  long = sources.Prompt('long', (' '.join(['w5'] * 80),))
  with pytest.raises(errors.UserError, match="'long'.*has 82 tokens"):
    online.Online(loaded, [long], max_tokens=4)
  with pytest.raises(errors.UserError, match='no prompts'):
    online.Online(loaded, [], max_tokens=4)


def test_rates_over_nothing_are_left_out(loaded):
  silent = dict.fromkeys(('tokens_per_round', 'num_accepted'))
  lists = dict.fromkeys(('accepted_per_round', 'accepted_if_drafted'), [None])
  summary = {**silent, **lists, 'drafted_at': [0]}
  assert online._rates(summary) == {}


@pytest.mark.slow
def test_other_precisions_only_count_what_is_equal(loaded):
  evaluate = make(loaded)
  evaluate._is_float32 = False
  values = evaluate(known(loaded, K))
  assert values['num_identical'] == 4 and 'num_failures' not in values
  # A fault then shows by its count alone.
  broken = dataclasses.replace(evaluate._replies[0].output, tokens=[1])
  evaluate._replies[0] = dataclasses.replace(
    evaluate._replies[0], output=broken
  )
  assert evaluate(known(loaded, K))['num_identical'] == 3
