# SPDX-License-Identifier: MIT
"""The teacher's top columns, laws that hardly overlap, and the argmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.linear_xent import api


def on_logits(student, teacher, name, vocab_chunk=None, **settings):
  """A loss of logits [R, V] and its gradient for the student's."""
  size = student.shape[-1]

  @jax.jit
  @jax.value_and_grad
  def run(student):
    out = api.linear_xent(
      student,
      jnp.eye(size),
      losses=(name,),
      teacher_hidden=teacher,
      teacher_head=jnp.eye(size),
      row_chunk=2,
      vocab_chunk=vocab_chunk,
      **settings,
    )
    return jnp.sum(out[name])

  with jax.default_matmul_precision('highest'):
    return run(student)


@pytest.fixture(scope='module')
def logits():
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.normal(size=(5, 9)), jnp.float32) for _ in range(2)]


@pytest.mark.parametrize(
  'name, whole', [('kl_topk_a', 'kl'), ('kl_topk_b', 'kl'), ('tv_topk', 'tv')]
)
def test_all_columns_are_the_whole_loss(logits, name, whole):
  got = on_logits(*logits, name, top_k=9)
  want = on_logits(*logits, whole)
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
  # The control: eight are not all.
  assert abs(on_logits(*logits, name, top_k=8)[0] - want[0]) > 1e-3


@pytest.mark.parametrize('vocab_chunk', [None, 4, 1])
@pytest.mark.parametrize('name', ['kl_topk_a', 'tv_topk'])
def test_a_tie_at_the_last_place_goes_to_the_lower_column(name, vocab_chunk):
  student = jnp.asarray(np.random.default_rng(1).normal(size=(1, 7)))
  teacher = jnp.array([[0.0, 1.0, 5.0, 1.0, -2.0, 1.0, 0.5]])
  _, grad = on_logits(student, teacher, name, vocab_chunk, top_k=3)
  # Columns 2, 1 and 3 of 2, 1, 3 and 5.
  np.testing.assert_array_equal(np.nonzero(grad[0])[0], [1, 2, 3])


@pytest.mark.parametrize('vocab_chunk', [None, 3])
def test_laws_that_hardly_overlap_still_teach(vocab_chunk):
  # sum min(p, q) is about e^-200, which is 0 in float32, and so is 1 - tv.
  student = jnp.array([[200.0, 0.0, 0.0, -5.0]])
  teacher = jnp.array([[0.0, 200.0, 0.0, 0.0]])
  value, grad = on_logits(student, teacher, 'lk', vocab_chunk)
  # Columns 0 (p) and 1, 2 (q) at e^-200, and one that counts e^-5 of it.
  np.testing.assert_allclose(value, 200 - np.log(3 + np.exp(-5)), rtol=1e-6)
  assert np.all(np.isfinite(grad)) and grad[0, 1] < -0.1 < 0.1 < grad[0, 0]


@pytest.mark.parametrize('row_chunk', [1, 4, 100])
def test_argmax_equals_that_of_all_logits(row_chunk):
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(2, 3, 11, 8)), jnp.float32)
  head = jnp.asarray(rng.normal(size=(8, 33)), jnp.float32)
  # The last column repeats another: the lower one is meant.
  head = head.at[:, 32].set(head[:, 7])
  got = jax.jit(lambda *x: api.linear_argmax(*x, row_chunk=row_chunk))(
    hidden, head
  )
  want = np.argmax(np.asarray(hidden) @ np.asarray(head), axis=-1)
  np.testing.assert_array_equal(got, np.where(want == 32, 7, want))
  assert np.any(got == 7) and len(np.unique(got)) > 10


def test_argmax_holds_a_chunk_of_logits_and_has_no_gradient():
  hidden = jax.ShapeDtypeStruct((512, 8), jnp.float32)
  head = jax.ShapeDtypeStruct((8, 4096), jnp.float32)

  def peak(row_chunk):
    run = jax.jit(lambda *x: api.linear_argmax(*x, row_chunk=row_chunk))
    memory = run.lower(hidden, head).compile().memory_analysis()
    return memory.temp_size_in_bytes

  assert peak(16) < 512 * 4096 * 4 / 10 < peak(512)
  with pytest.raises(ValueError, match='row_chunk=0'):
    api.linear_argmax(jnp.ones((3, 2)), jnp.ones((2, 4)), row_chunk=0)
