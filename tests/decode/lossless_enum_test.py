# SPDX-License-Identifier: MIT
"""Exact output laws of chain verification, by enumerating every uniform.

All probabilities are multiples of 1/4, so every acceptance ratio and every
residual probability is a multiple of 1/12: with u = (i + 1/2) / 12 each of the
12 cells decides alike throughout, and counting cells gives exact
probabilities. A decision at depth j is one of these draws: the test of y_j
(ACCEPT), its replacement (RESIDUAL, only if it failed) or the bonus (ACCEPT,
behind the last). Replacing y_j and testing y_{j+1} exclude each other, so both
may read axis j + 1, and depth + 1 axes enumerate everything.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import sampling
from jspec.decode.verify import accepted, chain, walk

CELLS = 12
VOCAB = 3


def quarter_laws(rng, shape):
  """Random laws in multiples of 1/4, zeros included."""
  return rng.multinomial(4, np.ones(VOCAB) / VOCAB, size=shape) / 4


def logits_of(p):
  with np.errstate(divide='ignore'):
    return np.log(p).astype(np.float32)


def target_law(p, length):
  """Law of the first `length` tokens of a target p[prefix length][prefix]."""
  law = {}
  for s in itertools.product(range(VOCAB), repeat=length):
    law[s] = float(np.prod([p[i][s[:i]][s[i]] for i in range(length)]))
  return law


def either_rule(logits, draft, params, accept_uniforms, residual_uniforms):
  """R2 where there is a law of the drafts, R1 where there is none."""
  if draft.q is None:
    return walk.accept_with(logits, draft, params, accept_uniforms)
  return chain.accept_with(
    logits, draft, params, accept_uniforms, residual_uniforms
  )


@functools.partial(jax.jit, static_argnums=0)
def run(accept_with, logits, draft, params, accept_u, residual_u):
  def at(x):
    return lambda depth: jax.lax.dynamic_index_in_dim(x, depth, 1, False)

  return accept_with(logits, draft, params, at(accept_u), at(residual_u))


def enumerate_law(
  accept_with, p, q, depth, drafts=None, rule='R2', raw=None, settings=None
):
  """Output law (committed tokens, completed by the target) and E[A].

  Args:
    accept_with: what is under test.
    p: p[i] maps a prefix of length i to the target's law after it.
    q: as p, for the drafter: the law that is handed over.
    depth: draft tokens.
    drafts: the law tokens are drawn from; None for q itself, as it should be.
    rule: R1 hands over no q.
    raw: the target's law before `settings`' filters, if there are any.
    settings: sampling parameters other than temperature 1.
  """
  drafts, raw = drafts or q, raw or p
  settings = {'temperature': 1.0, **(settings or {})}
  axes = depth + 1
  grid = (np.arange(CELLS) + 0.5) / CELLS
  u = np.stack(np.meshgrid(*[grid] * axes, indexing='ij'), -1).reshape(-1, axes)
  rows, weights, uniforms, logits, laws = [], [], [], [], []
  for y in itertools.product(range(VOCAB), repeat=depth):
    weight = np.prod([drafts[i][y[:i]][y[i]] for i in range(depth)])
    rows += [(0, *y)] * len(u)
    weights += [weight / len(u)] * len(u)
    uniforms.append(u)
    x = np.stack([logits_of(raw[i][y[:i]]) for i in range(depth + 1)])
    logits.append(np.broadcast_to(x, (len(u), *x.shape)))
    law = np.stack([q[i][y[:i]] for i in range(depth)] + [np.zeros(VOCAB)])
    laws.append(np.broadcast_to(law, (len(u), *law.shape)))
  u = jnp.asarray(np.concatenate(uniforms), jnp.float32)
  ends = jnp.concatenate([u[:, 1:], u[:, :1]], 1)
  tokens = jnp.asarray(rows, jnp.int32)
  num = len(rows)
  probs = np.concatenate(laws)
  # Support in reverse order with a padding entry: ids must be respected.
  ids = np.broadcast_to(np.array([2, 1, 0, 0]), (*probs.shape[:2], 4))
  probs = np.concatenate([probs[..., ::-1], np.zeros_like(probs[..., :1])], -1)
  draft = tree.Draft(
    tokens=tokens,
    parents=tree.chain_parents(*tokens.shape),
    num_nodes=jnp.full((num,), depth + 1),
    confidence=jnp.ones(tokens.shape),
    q=None
    if rule == 'R1'
    else tree.SparseLaw(
      jnp.asarray(ids), jnp.asarray(probs, jnp.float32), draws='independent'
    ),
  )
  params = sampling.stack([sampling.SamplingParams(**settings)] * num)
  result = run(
    accept_with, jnp.asarray(np.concatenate(logits)), draft, params, u, ends
  )
  law = {s: 0.0 for s in itertools.product(range(VOCAB), repeat=depth + 1)}
  committed = np.asarray(result.tokens)
  num_accepted = np.asarray(result.num_accepted)
  for tokens_out, num_out, weight in zip(
    committed, num_accepted, weights, strict=True
  ):
    prefix = tuple(tokens_out[: num_out + 1].tolist())
    rest = depth + 1 - len(prefix)
    for tail in itertools.product(range(VOCAB), repeat=rest):
      chance, s = weight, prefix
      for token in tail:
        chance *= p[len(s)][s][token]
        s = (*s, token)
      law[s] += chance
  return law, float(num_accepted @ np.array(weights))


def random_model(rng, depth):
  return [
    {
      s: quarter_laws(rng, ())
      for s in itertools.product(range(VOCAB), repeat=length)
    }
    for length in range(depth)
  ]


def same_everywhere(law, depth):
  return [
    {s: np.array(law) for s in itertools.product(range(VOCAB), repeat=length)}
    for length in range(depth)
  ]


def worst(found, expected):
  return max(abs(found[s] - expected[s]) for s in expected)


@pytest.mark.few(2)
@pytest.mark.parametrize('rule', ['R1', 'R2'])
@pytest.mark.parametrize('depth', [1, 2])
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_law_is_the_targets_when_enumerated(rule, depth, seed):
  rng = np.random.default_rng(seed)
  p, q = random_model(rng, depth + 1), random_model(rng, depth)
  law, _ = enumerate_law(either_rule, p, q, depth, rule=rule)
  assert abs(sum(law.values()) - 1) < 1e-9
  assert worst(law, target_law(p, depth + 1)) < 1e-9


def test_r1_law_is_the_targets_when_drafts_are_greedy():
  rng = np.random.default_rng(3)
  p, q = random_model(rng, 3), random_model(rng, 2)
  greedy = [{s: np.eye(VOCAB)[x.argmax()] for s, x in m.items()} for m in q]
  law, _ = enumerate_law(either_rule, p, greedy, 2, rule='R1')
  assert worst(law, target_law(p, 3)) < 1e-9


@pytest.mark.parametrize('rule', ['R1', 'R2'])
@pytest.mark.parametrize(
  'settings', [{'top_k': 2}, {'top_p': 0.8}, {'min_p': 0.3}]
)
def test_law_is_the_filtered_one_when_the_target_is_filtered(rule, settings):
  raw = same_everywhere([0.66, 0.12, 0.22], 2)
  p = same_everywhere([0.75, 0.0, 0.25], 2)
  q = same_everywhere([0.5, 0.25, 0.25], 1)
  law, _ = enumerate_law(
    either_rule, p, q, 1, rule=rule, raw=raw, settings=settings
  )
  assert worst(law, target_law(p, 2)) < 1e-9


def test_expected_accepted_is_ten_ninths_on_the_toy():
  p = same_everywhere([1 / 3, 2 / 3, 0], 3)
  q = same_everywhere([2 / 3, 1 / 3, 0], 2)
  law, num_accepted = enumerate_law(either_rule, p, q, 2)
  assert abs(num_accepted - 10 / 9) < 1e-9
  assert worst(law, target_law(p, 3)) < 1e-9


def test_r2_is_biased_when_q_is_not_what_drafts_were_drawn_from():
  # The published counter-example, on a grid that its tenths divide.
  p = same_everywhere([0.5, 0.25, 0.25], 2)
  q = same_everywhere([0.75, 0.25, 0.0], 1)
  greedy = same_everywhere([1.0, 0.0, 0.0], 1)
  law, _ = enumerate_law(either_rule, p, q, 1, drafts=greedy)
  first = np.zeros(VOCAB)
  for s, chance in law.items():
    first[s[0]] += chance
  np.testing.assert_allclose(first, [2 / 3, 0, 1 / 3], atol=1e-9)
  # With the law it was drawn from the same draft is lossless.
  law, _ = enumerate_law(either_rule, p, greedy, 1)
  assert worst(law, target_law(p, 2)) < 1e-9


def test_r2_gives_the_published_bias_when_greedy_drafts_claim_softmax_q():
  cells = 600  # p / q of the drafted token is 5 / 6
  u = jnp.asarray((np.arange(cells) + 0.5) / cells, jnp.float32)
  p = logits_of(np.array([0.5, 0.3, 0.2]))
  q = tree.SparseLaw(
    jnp.broadcast_to(jnp.arange(3), (cells, 2, 3)),
    jnp.broadcast_to(jnp.array([0.6, 0.3, 0.1]), (cells, 2, 3)),
    draws='independent',
  )
  draft = tree.Draft(
    tokens=jnp.zeros((cells, 2), jnp.int32),
    parents=tree.chain_parents(cells, 2),
    num_nodes=jnp.full((cells,), 2),
    confidence=jnp.ones((cells, 2)),
    q=q,
  )
  result = chain.accept_with(
    jnp.broadcast_to(jnp.asarray(p), (cells, 2, 3)),
    draft,
    sampling.stack([sampling.SamplingParams(temperature=1.0)] * cells),
    lambda depth: u,
    lambda depth: u[::-1],
  )
  first = np.bincount(np.asarray(result.tokens[:, 0]), minlength=3) / cells
  np.testing.assert_allclose(first, [5 / 6, 0, 1 / 6], atol=1.5 / cells)


def unclipped_residual(p, q_ids, q_probs, is_rejected, u, residual_u):
  """Wrong: the replacement is drawn from p itself."""
  return sampling.draw(p, residual_u)


def unnormalised_residual(p, q_ids, q_probs, is_rejected, u, residual_u):
  """Wrong: [p - q]_+ is used as if it summed to 1; the missing mass is lost."""
  rows = jnp.arange(p.shape[0])[:, None]
  taken = jnp.where(is_rejected[:, None], q_probs, 0.0)
  rest = jnp.maximum(p.at[rows, q_ids].add(-taken), 0.0)
  u = jnp.where(is_rejected, residual_u, u)
  cdf = jnp.cumsum(rest, axis=-1)
  return jnp.minimum(jnp.sum(cdf <= u[:, None], axis=-1), p.shape[-1] - 1)


def always_passes(p, drafted, q_ids, q_probs, u):
  """Wrong: accepts min(1, p / q) without q."""
  return u < jnp.take_along_axis(p, drafted[:, None], axis=1)[:, 0]


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'name, wrong',
  [
    ('_replace', unclipped_residual),
    ('_replace', unnormalised_residual),
    ('_passes', always_passes),
  ],
)
def test_enumeration_fails_when_the_rule_is_wrong(name, wrong, monkeypatch):
  p = same_everywhere([0.75, 0.0, 0.25], 2)
  q = same_everywhere([0.25, 0.25, 0.5], 1)
  law, _ = enumerate_law(either_rule, p, q, 1)
  assert worst(law, target_law(p, 2)) < 1e-9
  monkeypatch.setattr(chain, name, wrong)

  def patched(*args):  # another function, so that it is traced again
    return chain.accept_with(*args)

  law, _ = enumerate_law(patched, p, q, 1)
  assert worst(law, target_law(p, 2)) > 1e-2


def test_enumeration_fails_when_the_rejection_is_one_row_late():
  p = random_model(np.random.default_rng(0), 3)
  q = same_everywhere([0.5, 0.25, 0.25], 2)

  def late(logits, draft, params, accept_uniforms, residual_uniforms):
    right = chain.accept_with(
      logits, draft, params, accept_uniforms, residual_uniforms
    )
    rows = jnp.arange(logits.shape[0])
    after = jnp.minimum(right.num_accepted + 1, logits.shape[1] - 1)
    # The replacement comes from the row behind the rejected token.
    u = residual_uniforms(jnp.int32(0))
    token = sampling.sample(logits[rows, after], params, u)
    is_rejected = right.num_accepted + 1 < draft.num_nodes
    place = rows, right.num_accepted
    token = jnp.where(is_rejected, token, right.tokens[place])
    return accepted.Accepted(
      right.path, right.num_accepted, right.tokens.at[place].set(token)
    )

  law, _ = enumerate_law(late, p, q, 2)
  assert worst(law, target_law(p, 3)) > 1e-3
