# SPDX-License-Identifier: MIT
"""Branches: equal to the target on every spliced sequence, and alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import rope
from jspec.targets import branches, transformer

CONFIG = transformer.TransformerConfig(
  num_layers=3,
  width=32,
  ff_width=48,
  num_heads=4,
  num_kv_heads=2,
  head_width=8,
  vocab_size=64,
  max_len=64,
  norm_eps=1e-5,
  rope=rope.RopeConfig(base=10000.0),
  tied=False,
)

# Two documents and padding; the second row is one document.
SEGMENTS = np.array([[1] * 6 + [2] * 5 + [0] * 3, [1] * 14])
POSITIONS = np.array([[*range(6), *range(5), 0, 0, 0], [*range(14)]])
# A first token, neighbours, a last token, no branch, out of order.
ANCHORS = np.array([[0, 4, 6, 10, -1], [13, 7, 7, 1, -1]])
G = 3


@pytest.fixture(scope='module')
def target():
  return transformer.random(CONFIG, jax.random.key(0))


@pytest.fixture(scope='module')
def problem():
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, CONFIG.vocab_size, SEGMENTS.shape, dtype=np.int32)
  branch_tokens = rng.integers(
    0, CONFIG.vocab_size, (*ANCHORS.shape, G), dtype=np.int32
  )
  return tokens, branch_tokens


@pytest.fixture(scope='module')
def score(target):
  @jax.jit
  def run(tokens, branch_tokens):
    with jax.default_matmul_precision('highest'):
      return branches.score(
        target,
        tokens,
        jnp.asarray(POSITIONS),
        jnp.asarray(SEGMENTS),
        jnp.asarray(ANCHORS),
        branch_tokens,
      )

  return lambda *args: np.asarray(run(*map(jnp.asarray, args)))


def test_a_branch_equals_the_spliced_sequence(target, problem, score):
  tokens, branch_tokens = problem
  got = score(tokens, branch_tokens)
  # Padded to one length behind, where causal attention does not look.
  spliced, places = [], []
  for b, a in zip(*np.nonzero(ANCHORS >= 0), strict=True):
    anchor = ANCHORS[b, a]
    start = anchor - POSITIONS[b, anchor]
    text = [*tokens[b, start : anchor + 1], *branch_tokens[b, a]]
    places.append((b, a, len(text)))
    spliced.append(np.pad(text, (0, 20 - len(text))))
  spliced = jnp.asarray(np.stack(spliced))
  positions = jnp.broadcast_to(jnp.arange(20), spliced.shape)
  with jax.default_matmul_precision('highest'):
    want, _ = target.encode(spliced, positions, jnp.ones_like(spliced), ())
  assert len(places) == 8
  for row, (b, a, length) in zip(want, places, strict=True):
    np.testing.assert_allclose(
      got[b, a], row[length - G - 1 : length], atol=1e-4
    )
  assert np.isfinite(got).all()


@pytest.mark.slow
def test_a_branch_sees_a_window_as_the_spliced_sequence_does():
  windows = dict(windows=(3, None, 8), attention_scale=0.5)
  target = transformer.random(
    dataclasses.replace(CONFIG, **windows), jax.random.key(0)
  )
  rng = np.random.default_rng(0)
  tokens = jnp.asarray(rng.integers(0, 64, (1, 14)), jnp.int32)
  positions, ones = jnp.arange(14)[None], jnp.ones_like(tokens)
  proposed = jnp.asarray(rng.integers(0, 64, (1, 2, 6)), jnp.int32)
  anchors = jnp.array([[9, 1]])
  with jax.default_matmul_precision('highest'):
    got = branches.score(target, tokens, positions, ones, anchors, proposed)
    for branch, anchor in enumerate((9, 1)):
      text = jnp.concatenate(
        [tokens[:, : anchor + 1], proposed[:, branch], tokens], axis=1
      )[:, : anchor + 7]
      place = jnp.arange(anchor + 7)[None]
      want, _ = target.encode(text, place, jnp.ones_like(text), ())
      np.testing.assert_allclose(got[0, branch], want[0, anchor:], atol=1e-4)


def test_other_branches_and_later_tokens_change_nothing(problem, score):
  tokens, branch_tokens = problem
  before = score(tokens, branch_tokens)

  def changed(tokens=tokens, branch_tokens=branch_tokens):
    after = score(tokens, branch_tokens)
    return np.abs(after - before).max(axis=(2, 3)) > 1e-6

  # One branch: itself and none else.
  other = branch_tokens.copy()
  other[1, 1] = (other[1, 1] + 1) % CONFIG.vocab_size
  want = np.zeros(ANCHORS.shape, bool)
  want[1, 1] = True
  np.testing.assert_array_equal(changed(branch_tokens=other), want)
  # Trunk tokens from 8 on, of which the first row's are a second document:
  # whoever leaves behind them, or is rooted there (its anchor is token 13).
  later = tokens.copy()
  later[:, 8:] = (later[:, 8:] + 1) % CONFIG.vocab_size
  np.testing.assert_array_equal(changed(later), ANCHORS > 8)
  # The anchor token itself roots its branch; the trunk's row is not seen.
  root = tokens.copy()
  root[0, 4] = (root[0, 4] + 1) % CONFIG.vocab_size
  np.testing.assert_array_equal(
    changed(root), (ANCHORS == 4) & np.array([[True], [False]])
  )


def test_tokens_of_a_branch_see_only_those_before(problem, score):
  tokens, branch_tokens = problem
  other = branch_tokens.copy()
  other[:, :, 1] = (other[:, :, 1] + 1) % CONFIG.vocab_size
  difference = np.abs(score(tokens, other) - score(tokens, branch_tokens))
  difference = difference.max(axis=3)[ANCHORS >= 0]
  assert np.all(difference[:, :2] == 0) and np.all(difference[:, 2:] > 1e-4)


def test_the_anchors_own_token_counts_once(target, problem, score):
  # A branch that repeats the trunk gives the trunk's own states.
  tokens, branch_tokens = problem
  repeated = branch_tokens.copy()
  repeated[1, 1] = tokens[1, 8 : 8 + G]
  with jax.default_matmul_precision('highest'):
    want, _ = target.encode(
      jnp.asarray(tokens), jnp.asarray(POSITIONS), jnp.asarray(SEGMENTS), ()
    )
  got = score(tokens, repeated)
  np.testing.assert_allclose(got[1, 1], want[1, 7 : 8 + G], atol=1e-4)
  # The control: the branch beside it at the same anchor holds other tokens.
  assert np.abs(got[1, 2] - want[1, 7 : 8 + G]).max() > 1e-2
