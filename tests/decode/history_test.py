# SPDX-License-Identifier: MIT
"""What rows have seen, whatever the rounds and chunks it came in."""

import jax
import numpy as np
import pytest

from jspec.decode import history

ROWS, VOCAB, WIDTH = 4, 11, 6
commit = jax.jit(history.commit, donate_argnums=0)
admit = jax.jit(history.admit, donate_argnums=0)
restore = jax.jit(history.restore, donate_argnums=0)
reset = jax.jit(history.reset, donate_argnums=0)


def chunks(function, state, row, tokens, rng):
  """Feeds tokens in chunks of any length, with junk behind the real ones."""
  done = 0
  while done < len(tokens):
    num = int(rng.integers(0, min(WIDTH, len(tokens) - done) + 1))
    chunk = rng.integers(-1, VOCAB, WIDTH).astype(np.int32)
    chunk[:num] = tokens[done : done + num]
    state = function(state, np.int32(row), chunk, np.int32(num))
    done += num
  return state


def check(state, prompts, outputs):
  for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
    counts = np.bincount(np.array(output, int), minlength=VOCAB)
    np.testing.assert_array_equal(state.output_counts[row], counts)
    seen = np.isin(np.arange(VOCAB), prompt)
    np.testing.assert_array_equal(state.prompt_seen[row], seen)
    recent = ([-1] * 8 + list(output))[-8:]
    np.testing.assert_array_equal(state.recent[row], recent)
    assert state.num_output[row] == len(output)


@pytest.mark.parametrize('seed', range(3))
def test_history_equals_counting_after_rounds_and_preemptions(seed):
  rng = np.random.default_rng(seed)
  state = history.init(ROWS, VOCAB)
  prompts = [rng.integers(0, VOCAB, n).tolist() for n in (1, 3, 7, 20)]
  outputs = [[] for _ in range(ROWS)]
  for row, prompt in enumerate(prompts):
    state = chunks(admit, state, row, prompt, rng)
  check(state, prompts, outputs)
  for _ in range(12):
    tokens = rng.integers(0, VOCAB, (ROWS, WIDTH)).astype(np.int32)
    num = rng.integers(0, WIDTH + 1, ROWS).astype(np.int32)
    state = commit(state, tokens, num)
    for row in range(ROWS):
      outputs[row] += tokens[row, : num[row]].tolist()
    check(state, prompts, outputs)
    row = int(rng.integers(ROWS))
    before = jax.tree.map(np.asarray, state)
    state = reset(state, np.int32(row))
    check(
      state,
      [[] if r == row else p for r, p in enumerate(prompts)],
      [[] if r == row else o for r, o in enumerate(outputs)],
    )
    state = chunks(admit, state, row, prompts[row], rng)
    state = chunks(restore, state, row, outputs[row], rng)
    jax.tree.map(np.testing.assert_array_equal, before, state)


def test_emitted_tokens_fed_as_prompt_are_another_history():
  rng = np.random.default_rng(0)
  one = chunks(restore, history.init(1, VOCAB), 0, [3, 4], rng)
  other = chunks(admit, history.init(1, VOCAB), 0, [3, 4], rng)
  with pytest.raises(AssertionError):
    check(other, [[]], [[3, 4]])
  check(one, [[]], [[3, 4]])


def test_a_token_that_is_none_counts_for_no_other():
  state = commit(
    history.init(1, VOCAB),
    np.array([[5, -1]], np.int32),
    np.array([2], np.int32),
  )
  counts = np.asarray(state.output_counts[0])
  assert counts[5] == counts.sum() == 1
  assert state.recent[0, -2:].tolist() == [5, -1] and state.num_output[0] == 2
