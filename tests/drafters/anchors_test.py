# SPDX-License-Identifier: MIT
"""Where blocks start and which tokens they predict."""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import anchors

_sample = jax.jit(anchors.sample, static_argnums=2)
_label_run = jax.jit(anchors.label_run, static_argnums=3)


def _one_answer():
  """A prompt of 5, an answer of 4 (tokens 5..8), padding after 10."""
  is_answer = np.zeros((1, 12), bool)
  is_answer[0, 5:9] = True
  segments = np.ones((1, 12), np.int32)
  segments[0, 10:] = 0
  return is_answer, segments


def test_every_answer_token_is_a_label_and_no_anchor_is_without_one():
  is_answer, segments = _one_answer()
  seen = np.zeros(12, int)
  for seed in range(200):
    drawn = _sample(is_answer, segments, 2, jax.random.key(seed))
    assert np.all(drawn.keep)
    index, run = _label_run(drawn, is_answer, segments, 3)
    assert np.all(np.asarray(run)[..., 0]), 'an anchor has no label'
    index, run = np.asarray(index), np.asarray(run)
    np.add.at(seen, index[run], 1)
  assert np.all(seen[5:9] > 0)
  assert np.all(seen[:5] == 0) and np.all(seen[9:] == 0)


def test_anchor_may_be_the_last_prompt_token_and_not_the_last_answer_token():
  allowed = jax.jit(anchors.candidates)(*_one_answer())
  np.testing.assert_array_equal(
    np.flatnonzero(np.asarray(allowed)[0]), [4, 5, 6, 7]
  )


def test_shapes_are_static_when_anchors_are_few_or_none():
  is_answer, segments = _one_answer()
  drawn = _sample(is_answer, segments, 40, jax.random.key(0))
  assert drawn.index.shape == drawn.keep.shape == (1, 40)
  assert int(np.sum(drawn.keep)) == 4
  np.testing.assert_array_equal(np.asarray(drawn.index)[0, :4], [4, 5, 6, 7])
  none = _sample(np.zeros_like(is_answer), segments, 40, jax.random.key(0))
  assert not np.any(none.keep)


def test_sample_when_key_is_equal_or_not():
  is_answer = jnp.ones((2, 64), bool)
  segments = jnp.ones((2, 64), jnp.int32)

  def draw(seed):
    return np.asarray(
      _sample(is_answer, segments, 8, jax.random.key(seed)).index
    )

  np.testing.assert_array_equal(draw(0), draw(0))
  assert np.any(draw(0) != draw(1))
  assert np.all(np.diff(draw(0), axis=1) > 0)


def test_run_ends_at_a_hole_a_document_and_the_end():
  is_answer = np.arange(12)[None] != 3
  segments = jnp.asarray([[1] * 6 + [2] * 6], jnp.int32)
  at = anchors.Anchors(
    jnp.asarray([[1, 4, 5, 10, 0]], jnp.int32),
    jnp.asarray([[True, True, True, True, False]]),
  )
  _, run = _label_run(at, is_answer, segments, 3)
  np.testing.assert_array_equal(
    np.asarray(run)[0].sum(-1),
    # To the hole, to the border, over it, to the end, and none at all.
    [1, 1, 0, 1, 0],
  )
  # The negative control: each block existed but for what ended it.
  _, exists = anchors.label_index(at, 3, 12)
  np.testing.assert_array_equal(np.asarray(exists)[0].sum(-1), [3, 3, 3, 1, 0])


def test_a_missing_anchor_is_no_row():
  at = anchors.Anchors(
    jnp.asarray([[3, 7, 0]], jnp.int32), jnp.asarray([[True, True, False]])
  )
  np.testing.assert_array_equal(anchors.rows(at), [[3, 7, -1]])


def test_what_is_near_every_token_is_moved():
  rng = np.random.default_rng(0)
  values = jnp.asarray(rng.normal(size=(2, 6, 3)), jnp.float32)
  index = jnp.broadcast_to(jnp.arange(6, dtype=jnp.int32), (2, 6))
  some = anchors.Anchors(index, jnp.ones((2, 6), bool))
  every = anchors.Anchors(index, jnp.ones((2, 6), bool), is_every=True)
  distances = (-1, 0, 2)
  got = anchors.near(values, every, distances)
  want = anchors.near(values, some, distances)
  assert got.shape == (2, 6, 3, 3)
  for i, distance in enumerate(distances):
    there = slice(max(0, -distance), 6 - max(0, distance))
    np.testing.assert_array_equal(got[:, there, i], want[:, there, i])
  # Where there is no such token: nothing, or the nearest.
  np.testing.assert_array_equal(got[:, 0, 0], 0)
  np.testing.assert_array_equal(want[:, 0, 0], values[:, 0])
  np.testing.assert_array_equal(anchors.moved(values > 0, 9), False)
