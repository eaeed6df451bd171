# SPDX-License-Identifier: MIT
"""Log-probabilities against a sort in float64."""

import jax
import numpy as np
import pytest

from jspec.decode import logprobs, sampling

of = jax.jit(logprobs.of, static_argnames='k')
argmax = jax.jit(sampling.argmax)
law = jax.jit(sampling.law)


def reference(z, chosen, k):
  """One row by a stable sort; logits that are not finite do not exist."""
  z = np.where(np.isfinite(z), z, -np.inf).astype(np.float64)
  with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
    best = z.max() if np.isfinite(z.max()) else 0.0
    mass = np.exp(z - best).sum()
    logp = (z - best - np.log(mass if mass else 1.0)).astype(np.float32)
  order = np.argsort(-z, kind='stable')[:k]
  order = order[np.isfinite(z[order])]
  ids = np.concatenate([order, np.full(k - len(order), -1)]).astype(int)
  values = np.where(ids >= 0, logp[ids], -np.inf)
  if chosen < 0:
    return -np.inf, 0, ids, values
  return logp[chosen], 1 + (z > z[chosen]).sum(), ids, values


def check(z, chosen, k):
  found = of(z, np.asarray(chosen, np.int32), k=k)
  for row in range(len(z)):
    own, rank, ids, values = reference(z[row], chosen[row], k)
    np.testing.assert_allclose(found.chosen[row], own, rtol=1e-5, atol=2e-6)
    assert found.rank[row] == rank
    np.testing.assert_array_equal(found.ids[row], ids)
    np.testing.assert_allclose(found.values[row], values, rtol=1e-5, atol=2e-6)
  return found


@pytest.mark.parametrize('vocab, k', [(1, 3), (12, 0), (12, 5), (12, 20)])
@pytest.mark.parametrize('tied', [False, True])
def test_small_vocabularies_equal_a_sort(vocab, k, tied):
  rng = np.random.default_rng(vocab)
  z = (3 * rng.normal(size=(20, vocab))).astype(np.float32)
  z = np.round(z) if tied else z
  found = check(z, rng.integers(-1, vocab, 20), k)
  assert found.ids.shape == (20, k)


@pytest.mark.parametrize('vocab', [128 * 21, 128 * 40 - 5])
@pytest.mark.parametrize('kind', ['spread', 'tied', 'one block', 'masked'])
def test_blocks_equal_a_sort(vocab, kind):
  rng = np.random.default_rng(3)
  z = (3 * rng.normal(size=(8, vocab))).astype(np.float32)
  if kind == 'tied':
    z = np.minimum(np.round(z), 4)  # many equal maxima in every block
  if kind == 'one block':
    z[:, 256:384] += 30
  if kind == 'masked':
    z[rng.uniform(size=z.shape) > 10 / vocab] = -np.inf
  check(z, rng.integers(0, vocab, 8), 20)


def test_a_search_that_misses_a_tie_is_noticed():
  # The check above holds the lowest id to win: reversed, it must fail.
  z = np.zeros((1, 128 * 30), np.float32)
  found = check(z, [0], 20)
  np.testing.assert_array_equal(found.ids[0], np.arange(20))
  with pytest.raises(AssertionError):
    np.testing.assert_array_equal(
      found.ids[0], reference(z[0, ::-1], 0, 20)[2] + 1
    )


def test_rows_are_handled_as_the_sampler_handles_them():
  z = np.array(
    [
      [np.nan, 1, 2, -np.inf],
      [np.inf, 1, 2, 2],
      [np.nan, -np.inf, np.inf, np.nan],
      [3e38, -3e38, 0, 1],
    ],
    np.float32,
  )
  chosen = np.asarray(argmax(z))
  assert chosen.tolist() == [2, 2, -1, 0]
  found = check(z, chosen, 4)
  assert not np.isnan(found.chosen).any() and not np.isnan(found.values).any()
  assert found.chosen[2] == -np.inf and found.rank[2] == 0
  assert (np.asarray(found.ids[2]) == -1).all()
  # What is impossible may still be asked for, in a prompt.
  assert check(z, [3, 0, 1, 1], 2).chosen[0] == -np.inf


def test_values_are_of_the_law_and_agree_with_each_other():
  z = np.random.default_rng(0).normal(size=(5, 50)).astype(np.float32)
  params = sampling.stack([sampling.SamplingParams(temperature=1.0)] * 5)
  probs = np.asarray(law(z, params))
  found = of(z, z.argmax(1).astype(np.int32), k=50)
  sorted_law = np.take_along_axis(probs, np.asarray(found.ids), 1)
  np.testing.assert_allclose(np.exp(found.values), sorted_law, rtol=1e-5)
  np.testing.assert_array_equal(found.chosen, found.values[:, 0])
  assert (np.asarray(found.rank) == 1).all()


def test_rows_do_not_depend_on_their_neighbours():
  z = np.random.default_rng(1).normal(size=(6, 128 * 25)).astype(np.float32)
  chosen = np.arange(6, dtype=np.int32)
  together = of(z, chosen, k=5)
  for row in range(6):
    alone = of(z[row : row + 1], chosen[row : row + 1], k=5)
    jax.tree.map(
      lambda a, b, row=row: np.testing.assert_array_equal(a[0], b[row]),
      alone,
      together,
    )
