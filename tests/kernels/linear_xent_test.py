# SPDX-License-Identifier: MIT
"""LM head and loss, chunked against unchunked."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.linear_xent import api, cases


def make(case, dtype=np.float32):
  """Arrays of a case: (hidden, head) and labels and teacher by name."""
  rng = np.random.default_rng(0)
  rows = (*case.batch, case.num_rows)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  arrays = (
    normal(*rows, case.width),
    normal(case.width, case.vocab_size),
  )
  labels = rng.integers(0, case.vocab_size, rows)
  labels.flat[:2] = 0, case.vocab_size - 1
  named = dict(
    labels=jnp.asarray(labels, jnp.int32),
    teacher_hidden=normal(*rows, case.teacher_width),
    teacher_head=normal(case.teacher_width, case.vocab_size),
  )
  return arrays, named


def top_k(case, losses):
  """What `losses` need, or nothing."""
  return case.top_k if set(losses) & set(api.OF_TOP) else None


MEMORY = [('ce',), ('kl', 'tv'), ('lk', 'kl_topk_b')]


def value_and_gradients(case, arrays, named, losses, **settings):
  """All outputs, and gradients of their sum with unequal weights."""
  rng = np.random.default_rng(1)
  shape = arrays[0].shape[:-1]
  weights = {n: jnp.asarray(rng.normal(size=shape)) for n in api.LOSSES}

  @jax.jit
  def run(arrays, named):
    def total(hidden, head):
      out = api.linear_xent(
        hidden,
        head,
        losses=losses,
        row_chunk=case.row_chunk,
        vocab_chunk=case.vocab_chunk,
        top_k=top_k(case, losses),
        **named,
        **settings,
      )
      return sum(jnp.sum(weights[n] * out[n]) for n in losses), out

    (_, out), grads = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
      *arrays
    )
    return out, dict(zip(('hidden', 'head'), grads, strict=True))

  return run(arrays, named)


@pytest.mark.few(4)
@pytest.mark.parametrize(
  'case, losses',
  [
    *((case, api.LOSSES) for case in cases.CASES),
    # Alone, each takes along what it needs and no more.
    *((case, (name,)) for case in cases.CASES[:2] for name in api.LOSSES),
  ],
  ids=lambda x: x.name if isinstance(x, cases.Case) else '_'.join(x),
)
def test_equals_the_unchunked_form_in_value_and_gradient(case, losses):
  arrays, named = make(case)
  if not set(losses) & set(api.OF_TEACHER):
    named = dict(labels=named['labels'])
  got = value_and_gradients(case, arrays, named, losses)
  want = value_and_gradients(
    case, arrays, named, losses, implementation='reference'
  )
  assert set(got[0]) == set(want[0]) == {*losses, 'is_hit'}
  for x, y in zip(got, want, strict=True):
    for name in x:
      np.testing.assert_allclose(
        x[name], y[name], rtol=1e-5, atol=1e-5, err_msg=name
      )
  assert all(np.abs(x).max() > 1e-2 for x in want[1].values())


def test_reference_equals_the_formulas():
  case = cases.CASES[0]
  arrays, named = make(case)
  out = api.linear_xent(
    *arrays,
    losses=api.LOSSES,
    top_k=case.top_k,
    **named,
    implementation='reference',
  )
  logits = np.asarray(arrays[0] @ arrays[1], np.float64)
  teacher = np.asarray(named['teacher_hidden'] @ named['teacher_head'])
  q = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  p = np.exp(teacher) / np.exp(teacher).sum(-1, keepdims=True)
  at_label = np.take_along_axis(q, np.asarray(named['labels'])[..., None], -1)
  top = np.argsort(-teacher, axis=-1)[..., : case.top_k]
  p_top, q_top = (np.take_along_axis(x, top, axis=-1) for x in (p, q))
  p_a, q_a = (x / x.sum(-1, keepdims=True) for x in (p_top, q_top))
  want = {
    'ce': -np.log(at_label[..., 0]),
    'kl': np.sum(p * np.log(p / q), -1),
    'lse': np.log(np.exp(logits).sum(-1)),
    'reverse_kl': np.sum(q * np.log(q / p), -1),
    # Twice: the definition, and what rejection sampling rejects.
    'tv': 1 - np.sum(np.minimum(p, q), -1),
    'lk': -np.log(np.sum(np.minimum(p, q), -1)),
    'kl_topk_a': np.sum(p_a * np.log(p_a / q_a), -1),
    'kl_topk_b': np.sum(p_top * np.log(p_top / q_top), -1),
    'tv_topk': 1 - np.sum(np.minimum(p_a, q_a), -1),
  }
  for name in api.LOSSES:
    np.testing.assert_allclose(out[name], want[name], rtol=2e-5, err_msg=name)
  is_hit = logits.argmax(-1) == np.asarray(named['labels'])
  np.testing.assert_array_equal(out['is_hit'], is_hit)
  assert is_hit.any() and not is_hit.all()


def test_a_tie_with_the_label_is_a_hit():
  head = jnp.asarray([[1.0, 2.0, 2.0, 0.0, 2.0]])
  out = api.linear_xent(
    jnp.ones((5, 1)), head, labels=jnp.arange(5), vocab_chunk=2, row_chunk=2
  )
  np.testing.assert_array_equal(out['is_hit'], [False, True, True, False, True])


def test_a_perfect_student_has_no_loss_and_no_gradient():
  case = dataclasses.replace(cases.CASES[1], teacher_width=8)
  arrays, named = make(case)
  named['teacher_hidden'], named['teacher_head'] = arrays
  # A sum over some columns only is least where all mass is on them.
  losses = tuple(name for name in api.OF_TEACHER if name != 'kl_topk_b')
  out, grads = value_and_gradients(case, arrays, named, losses)
  for x in (*(out[name] for name in losses), *grads.values()):
    np.testing.assert_allclose(x, 0, atol=1e-5)


def test_a_reduced_vocabulary_renormalises_the_teacher():
  case = cases.CASES[1]
  arrays, named = make(case)
  ids = jnp.arange(1, case.vocab_size, 3)
  arrays = (arrays[0], arrays[1][:, ids])
  named['labels'] = named['labels'] % ids.size
  got = value_and_gradients(
    case, arrays, dict(named, teacher_columns=ids), api.LOSSES
  )
  named['teacher_head'] = named['teacher_head'][:, ids]
  want = value_and_gradients(
    case, arrays, named, api.LOSSES, implementation='reference'
  )
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_within_its_rounding():
  case = cases.CASES[1]
  narrow = make(case, jnp.bfloat16)
  wide = jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, narrow
  )
  got = value_and_gradients(case, *narrow, api.LOSSES)
  want = value_and_gradients(
    case, *wide, api.LOSSES, implementation='reference'
  )
  for name in api.LOSSES:
    assert got[0][name].dtype == jnp.float32
    # Products are exact in float32; only their sums differ in order.
    np.testing.assert_allclose(got[0][name], want[0][name], atol=1e-4)
  for name, x in got[1].items():
    assert x.dtype == jnp.bfloat16
    tolerance = 0.02 * np.abs(want[1][name]).max()
    np.testing.assert_allclose(
      x.astype(jnp.float32), want[1][name], atol=tolerance
    )


def num_products(jaxpr):
  """Matrix products in a jaxpr, those inside loops counted once."""
  text = str(jaxpr)
  return text.count('dot_general')


def test_a_frozen_head_costs_two_products_and_its_gradient_two_more():
  case = cases.CASES[0]
  (hidden, head), named = make(case)

  def loss(hidden, head):
    out = api.linear_xent(hidden, head, labels=named['labels'], row_chunk=3)
    return jnp.sum(out['ce'])

  def count(argnums):
    return num_products(
      jax.make_jaxpr(jax.grad(loss, argnums=argnums))(hidden, head)
    )

  assert num_products(jax.make_jaxpr(loss)(hidden, head)) == 1
  assert count(0) == 2
  assert count((0, 1)) == 4
  assert count(1) == 3


@pytest.mark.parametrize('name', ['kl', 'kl_topk_a'])
def test_the_teacher_gets_no_gradient(name):
  case = cases.CASES[0]
  (hidden, head), named = make(case)

  def loss(teacher_hidden, teacher_head):
    return jnp.sum(
      api.linear_xent(
        hidden,
        head,
        losses=api.OF_TEACHER,
        teacher_hidden=teacher_hidden,
        teacher_head=teacher_head,
        top_k=case.top_k,
      )[name]
    )

  grads = jax.grad(loss, argnums=(0, 1))(
    named['teacher_hidden'], named['teacher_head']
  )
  assert all(np.all(x == 0) for x in grads)


@pytest.mark.few(1)
@pytest.mark.parametrize('losses', MEMORY)
def test_memory_does_not_grow_with_rows_times_vocabulary(losses):
  def peak(implementation, num_rows, vocab_size):
    case = dataclasses.replace(
      cases.CASES[0],
      num_rows=num_rows,
      vocab_size=vocab_size,
      row_chunk=16,
      vocab_chunk=512,
    )
    arrays, named = jax.eval_shape(lambda: make_shapes(case, losses))

    def loss(hidden, head, named):
      out = api.linear_xent(
        hidden,
        head,
        losses=losses,
        row_chunk=case.row_chunk,
        vocab_chunk=case.vocab_chunk,
        top_k=top_k(case, losses),
        implementation=implementation,
        **named,
      )
      return sum(jnp.sum(out[name]) for name in losses)

    compiled = jax.jit(jax.grad(loss)).lower(*arrays, named).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  logits = 2 * 512 * 8192 * 4
  large = peak('xla', 512, 8192)
  # The control holds all of them.
  assert large < logits / 20 and peak('reference', 512, 8192) >= logits
  # Rows cost what they and their gradients weigh; columns cost nothing.
  row = 2 * (8 + 6 + 8 * len(losses) + 16) * 4
  assert large - peak('xla', 128, 8192) < 2 * (512 - 128) * row
  assert large - peak('xla', 512, 2048) < 2**14


def make_shapes(case, losses):
  """As `make`, without numbers and without what `losses` do not use."""
  rows = (*case.batch, case.num_rows)
  arrays = (
    jnp.zeros((*rows, case.width)),
    jnp.zeros((case.width, case.vocab_size)),
  )
  if losses == ('ce',):
    return arrays, dict(labels=jnp.zeros(rows, jnp.int32))
  return arrays, dict(
    teacher_hidden=jnp.zeros((*rows, case.teacher_width)),
    teacher_head=jnp.zeros((case.teacher_width, case.vocab_size)),
  )


@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
@pytest.mark.parametrize(
  'vocab_chunk', [pytest.param(None, marks=pytest.mark.slow), 8192]
)
@pytest.mark.parametrize('losses', MEMORY)
@pytest.mark.parametrize('case', cases.LARGE, ids=lambda case: case.name)
def test_lowers_with_all_gradients(case, losses, vocab_chunk, platform):
  arrays, named = jax.eval_shape(lambda: make_shapes(case, losses))
  arrays, named = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
    ),
    (arrays, named),
  )

  def loss(hidden, head, named):
    out = api.linear_xent(
      hidden,
      head,
      losses=losses,
      row_chunk=case.row_chunk,
      vocab_chunk=vocab_chunk,
      top_k=top_k(case, losses),
      **named,
    )
    return sum(jnp.sum(out[name]) for name in losses)

  exported = jax.export.export(
    jax.jit(jax.grad(loss, argnums=(0, 1))), platforms=[platform]
  )(*arrays, named)
  assert exported.platforms == (platform,)
  assert exported.out_avals[1].shape == (case.width, case.vocab_size)


def test_what_cannot_be_meant_is_refused():
  (hidden, head), named = make(cases.CASES[0])
  labels, teacher = named['labels'], dict(named)
  del teacher['labels']

  def refused(match, **changes):
    with pytest.raises(ValueError, match=match):
      api.linear_xent(hidden, head, **changes)

  refused("'ce' needs labels")
  refused('choose from', losses=('ce', 'mse'), labels=labels)
  refused('choose from', losses=(), labels=labels)
  refused('choose from', implementation='tpu', labels=labels)
  refused('need teacher_hidden', losses=('tv',))
  refused('leave it out', **named)
  refused('say nothing', labels=labels, teacher_columns=jnp.arange(33))
  refused('number from 1', labels=labels, row_chunk=0)
  refused('no loss uses top_k', labels=labels, top_k=3)
  refused('need top_k', losses=('kl_topk_a',), **teacher)
  refused('33 columns', losses=('tv_topk',), top_k=34, **teacher)
  fewer = dict(teacher, teacher_head=teacher['teacher_head'][:, :9])
  refused('give teacher_columns', losses=('kl',), **fewer)


def test_rows_are_not_moved_when_the_batch_is_sharded():
  mesh = jax.make_mesh(
    (2,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  spec = jax.sharding.PartitionSpec('data')
  (hidden, head), named = make(cases.CASES[0])
  hidden, labels = jax.device_put(
    (hidden, named['labels']), jax.sharding.NamedSharding(mesh, spec)
  )

  def loss(hidden, labels):
    out = api.linear_xent(hidden, head, labels=labels, row_chunk=4)
    return jnp.mean(out['ce'])

  run = jax.jit(jax.value_and_grad(functools.partial(loss)))
  text = run.lower(hidden, labels).compile().as_text()
  assert 'all-gather' not in text and 'all-to-all' not in text
  assert 'all-reduce' in text, 'the mean does cross the devices'
