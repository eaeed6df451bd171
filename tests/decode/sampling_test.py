# SPDX-License-Identifier: MIT
"""The sampler against a sort, against frequencies and at its edges.

Statistical tests are chi-square at p > 1e-6 on fixed seeds; each names a
control that must fail.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.decode import sampling

sample = jax.jit(sampling.sample)
law = jax.jit(sampling.law)


def stack(*rows):
  return sampling.stack([sampling.SamplingParams(**row) for row in rows])


def reference_law(logits, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0):
  """Hugging Face's warpers in order, by sorting; ties stay together."""
  x = np.where(np.isfinite(logits), logits, -np.inf).astype(np.float32)
  if temperature == 0:
    return np.eye(x.size)[x.argmax()]
  z = ((x - x.max()) / np.float32(temperature)).astype(np.float64)
  descending = np.sort(z)[::-1]
  if top_k:
    z = np.where(z < descending[min(top_k, z.size) - 1], -np.inf, z)
  if top_p < 1:
    p = np.exp(z) / np.exp(z).sum()
    order = np.argsort(-z, kind='stable')
    before = np.cumsum(p[order]) - p[order]
    _, first = np.unique(-z[order], return_index=True)
    # What lies before a token is what lies before the first of its equals.
    before = before[first][np.searchsorted(-z[order][first], -z)]
    z = np.where(before < np.float32(top_p), z, -np.inf)
  if min_p:
    z = np.where(np.exp(z) < np.float32(min_p) * np.exp(z.max()), -np.inf, z)
  return np.exp(z) / np.exp(z).sum()


def chi_square_p(counts, p):
  """The chance of a worse fit; cells expected below 5 are pooled."""
  expected = p * counts.sum()
  small = expected < 5
  if small.any():
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
  counts, expected = counts[expected > 0], expected[expected > 0]
  statistic = ((counts - expected) ** 2 / expected).sum()
  freedom = (len(counts) - 1) / 2
  return float(jax.scipy.special.gammaincc(freedom, statistic / 2))


SETTINGS = [
  {},
  {'temperature': 1.0},
  {'temperature': 0.7, 'top_k': 5},
  {'temperature': 1.3, 'top_p': 0.8},
  {'temperature': 0.9, 'min_p': 0.1},
  {'temperature': 1.1, 'top_k': 20, 'top_p': 0.9, 'min_p': 0.02},
  {'temperature': 1.0, 'top_k': 1},
  {'temperature': 1.0, 'top_k': 10**6},
  {'temperature': 1.0, 'top_p': 1e-9},
  {'temperature': 1e-4, 'top_p': 0.9},
  {'temperature': 1.0, 'min_p': 1.0},
  {'temperature': 50.0, 'top_p': 0.5},
]


@pytest.mark.few(2)
@pytest.mark.parametrize('vocab', [1, 2, 127, 128, 1001])
@pytest.mark.parametrize('kind', ['spread', 'tied', 'masked'])
def test_law_equals_sorting_when_rows_are_mixed(vocab, kind):
  rng = np.random.default_rng(vocab)
  x = rng.normal(size=(len(SETTINGS), vocab)).astype(np.float32) * 3
  if kind == 'tied':
    x = np.round(x)
  if kind == 'masked' and vocab > 1:
    x[:, rng.permutation(vocab)[: vocab // 2]] = -np.inf
    x[:, rng.integers(vocab)] = [np.inf, -np.inf, np.nan][vocab % 3]
    x[:, 0] = 1.0
  params = stack(*SETTINGS)
  found = np.asarray(law(x, params))
  expected = np.stack(
    [reference_law(row, **s) for row, s in zip(x, SETTINGS, strict=True)]
  )
  np.testing.assert_allclose(found, expected, atol=2e-6, rtol=2e-5)
  np.testing.assert_array_equal(found > 0, expected > 1e-38)
  u = rng.uniform(size=len(x)).astype(np.float32)
  tokens = np.asarray(sample(x, params, u))
  assert np.all(expected[np.arange(len(x)), tokens] > 0)


@pytest.mark.parametrize('top', [{'top_k': 50}, {'top_p': 0.9}])
@pytest.mark.parametrize('scale', [0.3, 2.0, 6.0])
def test_law_equals_sorting_when_the_vocabulary_is_large(top, scale):
  vocab = 49_152 - 7
  x = np.random.default_rng(3).normal(size=(2, vocab)).astype(np.float32)
  x = x * np.float32(scale)
  settings = {'temperature': 1.0, **top}
  found = np.asarray(law(x, stack(settings, {})))
  expected = reference_law(x[0], **settings)
  # One token at the edge of the nucleus may fall on either side by rounding.
  assert ((found[0] > 0) != (expected > 0)).sum() <= ('top_p' in top)
  np.testing.assert_allclose(found[0].sum(), 1.0, atol=1e-5)
  np.testing.assert_allclose(found[0], expected, atol=1e-5)
  assert found[1].argmax() == x[1].argmax() and found[1].sum() == 1


def test_sample_returns_the_real_id_when_a_greedy_row_is_among_sampled_ones():
  x = np.zeros((3, 12), np.float32)
  x[:, 9] = 5.0
  x[1, [2, 4]] = 5.0
  params = stack({'temperature': 0.7, 'top_k': 3}, {}, {})
  for u in (0.0, 0.5, 1 - 2**-24):
    tokens = sample(x, params, np.full(3, u, np.float32))
    assert tokens[1:].tolist() == [2, 9]  # the lowest id wins a tie


@pytest.mark.parametrize('vocab', [3, 128, 300, 1025])
def test_argmax_equals_numpy_when_there_are_ties(vocab):
  x = np.random.default_rng(0).integers(0, 6, (50, vocab)).astype(np.float32)
  np.testing.assert_array_equal(jax.jit(sampling.argmax)(x), x.argmax(1))


@pytest.mark.parametrize('vocab', [1, 3, 129, 700, 49_152])
def test_draw_never_takes_a_token_of_probability_zero(vocab):
  rng = np.random.default_rng(vocab)
  rows = 64
  w = rng.uniform(size=(rows, vocab)) * 10.0 ** rng.uniform(-30, 0, (rows, 1))
  w = w * (rng.uniform(size=w.shape) < 3 / vocab)
  w[:, rng.integers(vocab)] = 1e-20
  # Heavy first and nothing behind, and the other way about.
  w[0], w[1] = 0, 0
  w[0, 0] = w[1, -1] = 1.0
  w = w.astype(np.float32)
  draw = jax.jit(sampling.draw)
  edges = [0.0, 1e-45, 2**-24, 0.5, 1 - 2**-23, 1 - 2**-24, 1.0]
  for u in [*edges, *rng.uniform(size=20)]:
    tokens = np.asarray(draw(w, np.full(rows, u, np.float32)))
    assert (tokens >= 0).all()
    assert (w[np.arange(rows), tokens] > 0).all()


@pytest.mark.parametrize('vocab', [2, 130, 1000])
def test_draw_is_the_inverse_cdf(vocab):
  w = np.random.default_rng(1).integers(0, 4, vocab).astype(np.float32)
  w[0] = 1
  total = int(w.sum())
  u = ((np.arange(total) + 0.5) / total).astype(np.float32)
  tokens = jax.jit(sampling.draw)(np.tile(w, (total, 1)), u)
  # Every unit of weight is hit by exactly one of the evenly spaced uniforms.
  counts = np.bincount(np.asarray(tokens), minlength=vocab)
  np.testing.assert_array_equal(counts, w)


@pytest.mark.slow
def test_sample_has_the_right_frequencies():
  num, vocab = 40_000, 200
  rng = np.random.default_rng(0)
  x = rng.normal(size=vocab).astype(np.float32) * 2
  u = np.asarray(jax.random.uniform(jax.random.key(0), (num,)))
  for settings in (
    {'temperature': 1.0},
    {'temperature': 0.8, 'top_k': 30},
    {'temperature': 1.2, 'top_p': 0.9},
    {'temperature': 1.0, 'min_p': 0.05},
  ):
    one = stack(settings)
    params = jax.tree.map(lambda v: jnp.broadcast_to(v, (num,)), one)  # noqa: B023
    tokens = np.asarray(sample(np.tile(x, (num, 1)), params, u))
    counts = np.bincount(tokens, minlength=vocab)
    p = reference_law(x, **settings)
    assert counts[p == 0].sum() == 0
    assert chi_square_p(counts, p) > 1e-6
    wrong = reference_law(x, **{**settings, 'temperature': 0.9})
    assert chi_square_p(counts, wrong) < 1e-6


def test_sample_keeps_the_mass_of_a_tail_of_tiny_probabilities():
  # 10,000 tokens of 1e-7 each, below the sampler's resolution one by one.
  vocab, num = 10_001, 4096
  logits = np.full(vocab, np.log(1e-7), np.float32)
  logits[5000] = np.log(1 - 1e-3)
  u = (np.arange(num) + 0.5) / num  # evenly spaced: the count is exact
  draw = jax.jit(
    lambda u: jax.lax.map(
      lambda one: sampling.sample(
        jnp.asarray(logits)[None], stack({'temperature': 1.0}), one[None]
      )[0],
      u,
    )
  )
  tokens = np.asarray(draw(jnp.asarray(u, jnp.float32)))
  assert abs((tokens != 5000).sum() - num * 1e-3) <= 1


@pytest.mark.slow
def test_sample_does_not_depend_on_the_neighbours_or_the_batch_size():
  rng = np.random.default_rng(5)
  vocab = 128 * 70
  x = rng.normal(size=(16, vocab)).astype(np.float32) * 3
  rows = [SETTINGS[i % len(SETTINGS)] for i in range(16)]
  u = rng.uniform(size=16).astype(np.float32)

  @jax.jit
  def both(x, params, u):
    w = sampling.weights(x, params)
    return sampling.normalise(w), sampling.draw(w, u)

  probs, tokens = map(np.asarray, both(x, stack(*rows), u))
  for b in range(16):
    one = slice(b, b + 1)
    probs_alone, tokens_alone = both(x[one], stack(rows[b]), u[one])
    assert tokens_alone[0] == tokens[b]
    np.testing.assert_array_equal(probs_alone[0], probs[b])


@pytest.mark.parametrize('settings', SETTINGS)
def test_nothing_is_nan_when_logits_are_extreme(settings):
  big = np.finfo(np.float32).max
  x = np.array(
    [
      [big, -big, 0, 1],
      [np.inf, 1, 2, -np.inf],
      [np.nan, 1, 2, 2],
      [-np.inf, -np.inf, 3, -np.inf],
      [-big, -big, -big, -np.inf],
      [1e-40, 0, -1e-40, np.nan],
    ],
    np.float32,
  )
  params = stack(*[settings] * len(x))
  probs = np.asarray(law(x, params))
  np.testing.assert_allclose(probs.sum(1), 1.0, rtol=1e-6)
  assert (probs[~np.isfinite(x)] == 0).all()
  u = np.full(len(x), 0.999, np.float32)
  tokens = np.asarray(sample(x, params, u))
  assert (probs[np.arange(len(x)), tokens] > 0).all()


@pytest.mark.parametrize('settings', SETTINGS)
def test_sample_says_minus_one_when_no_logit_is_finite(settings):
  x = np.array([[np.nan, -np.inf, np.inf], [0, 1, 2]], np.float32)
  params = stack(settings, settings)
  tokens = sample(x, params, np.array([0.5, 0.5], np.float32))
  assert tokens[0] == -1 and tokens[1] >= 0
  np.testing.assert_array_equal(law(x, params)[0], np.zeros(3))


def test_law_is_float32_when_logits_are_bfloat16():
  x = jnp.asarray(np.linspace(-3, 3, 1001)[None], jnp.bfloat16)
  params = stack({'temperature': 1.0})
  probs = law(x, params)
  assert probs.dtype == jnp.float32
  np.testing.assert_array_equal(probs, law(x.astype(jnp.float32), params))


@pytest.mark.parametrize(
  'settings',
  [
    {'temperature': -1.0},
    {'temperature': float('nan')},
    {'temperature': float('inf')},
    {'temperature': 1e-9},
    {'top_k': -1},
    {'top_k': True},
    {'top_p': 0.0},
    {'top_p': 1.1},
    {'min_p': -0.1},
    {'min_p': 2.0},
    {'seed': -1},
    {'seed': 2**32},
    {'max_tokens': 0},
    {'stop_ids': (-1,)},
  ],
)
def test_params_name_the_field_when_it_is_out_of_range(settings):
  with pytest.raises(errors.UserError, match=next(iter(settings))) as info:
    sampling.SamplingParams(**settings)
  assert '\n' not in str(info.value)
