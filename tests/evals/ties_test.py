# SPDX-License-Identifier: MIT
"""What rounding may explain, and what it may not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import keys, sampling
from jspec.evals import ties

POSITION = 17
GREEDY = sampling.SamplingParams()
HOT = sampling.SamplingParams(temperature=1.0, seed=3)


def judge(rows, params, *tokens):
  return ties.judge(np.asarray(rows, np.float32), params, POSITION, tokens)


def twice(row):
  return [row, row]


@pytest.mark.parametrize(
  'gap, expected', [(0, True), (9e-5, True), (1.2e-4, False), (1.0, False)]
)
def test_greedy_tokens_tie_when_their_logits_do(gap, expected):
  verdict = judge(twice([0.0, 2.0, 2.0 - gap, -1.0]), GREEDY, 1, 2)
  assert verdict.is_tie is expected
  assert verdict.unit == 'logit'
  assert verdict.gap == pytest.approx(gap, abs=1e-6)
  assert verdict.top2_gaps == pytest.approx([gap, gap], abs=1e-6)


def test_token_outside_of_a_tie_is_a_failure():
  """The two best tie, but one decoding chose a third token."""
  verdict = judge(twice([0.0, 2.0, 2.0, -1.0]), GREEDY, 1, 3)
  assert verdict.top2_gaps == [0, 0]
  assert not verdict.is_tie and verdict.gap == 3


def test_both_scorings_must_agree():
  """Each token is right by one scoring: several nodes are scored wrong."""
  verdict = judge([[0.0, 1.0], [1.0, 0.0]], GREEDY, 1, 0)
  assert not verdict.is_tie
  assert verdict.scoring_gap == 1
  u = ties.uniform(HOT, POSITION)
  rows = np.log([[u + 0.1, 0.8 - u, 0.1], [u - 0.1, 1.0 - u, 0.1]])
  assert not judge(rows, HOT, 0, 1).is_tie


def test_uniform_is_the_one_that_decoding_uses():
  seeds = jnp.asarray([3], jnp.uint32)
  u = keys.uniforms(seeds, jnp.asarray([POSITION]), keys.ACCEPT)
  assert ties.uniform(HOT, POSITION) == float(u[0])


@pytest.mark.parametrize(
  'distance, expected', [(0, True), (5e-5, True), (1e-3, False), (0.2, False)]
)
def test_sampled_tokens_tie_at_the_edge_of_the_cdf(distance, expected):
  edge = ties.uniform(HOT, POSITION) + distance
  assert 0.2 < edge < 0.8
  verdict = judge(twice(np.log([edge / 2, edge / 2, 1 - edge])), HOT, 1, 2)
  assert verdict.is_tie is expected
  assert verdict.unit == 'probability'
  # Logits move a little to look for a tie, so the gap may come out less.
  assert distance - 1e-4 <= verdict.gap <= distance + 1e-6


def test_chosen_token_has_no_gap():
  """Judging by the law agrees with the sampler itself, seed by seed."""
  row = np.log([0.2, 0.3, 0.5]).astype(np.float32)
  params = [
    sampling.SamplingParams(temperature=1.0, seed=seed) for seed in range(12)
  ]
  uniforms = [ties.uniform(p, POSITION) for p in params]
  chosen = jax.jit(sampling.sample)(
    jnp.asarray(np.tile(row, (12, 1))),
    sampling.stack(params),
    jnp.asarray(uniforms, jnp.float32),
  )
  assert len(set(chosen.tolist())) == 3
  for p, token in zip(params, chosen.tolist(), strict=True):
    assert judge(twice(row), p, token, token).gap == 0
    assert judge(twice(row), p, token, (token + 1) % 3).gap > 0


def edge_of_filter(gap):
  """Three tokens, top-k 2: the second and the third all but tie."""
  row = np.array([np.log(2.0), 0.0, -gap])
  seeds = jnp.arange(200, dtype=jnp.uint32)
  at = jnp.full((200,), POSITION)
  # A uniform in the stretch of whichever of the two is kept.
  u = keys.uniforms(seeds, at, keys.ACCEPT)
  seed = int(jnp.argmin(jnp.abs(u - 0.9)))
  params = sampling.SamplingParams(temperature=1.0, top_k=2, seed=seed)
  return judge(twice(row), params, 1, 2)


def test_tokens_that_tie_at_a_filter_are_a_tie():
  assert edge_of_filter(2e-5).is_tie
  assert not edge_of_filter(1e-2).is_tie
