# SPDX-License-Identifier: MIT
"""The law of the output when a policy cuts sampled drafts, by enumeration.

Two requests draft two tokens each of a vocabulary of two. Every draft has a
probability under q; the policy sees its scores and decides how many drafts of
request 0 are verified; what verification commits is completed by the target.
Summed over all drafts this is the output's law, to be compared with p.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tests.depth import cases

V = 2
DRAFTS = tuple(itertools.product(range(V), repeat=2))
PAIRS = tuple(itertools.product(DRAFTS, DRAFTS))


def random_model(seed):
  """Laws p, q of the next token and confidences, by the tokens before it."""
  rng = np.random.default_rng(seed)

  def by_context(draw, longest):
    return {
      context: draw()
      for length in range(longest + 1)
      for context in itertools.product(range(V), repeat=length)
    }

  def twice(draw, longest):
    return by_context(draw, longest), by_context(draw, longest)

  p = twice(lambda: rng.dirichlet(np.ones(V)), 2)
  q = twice(lambda: rng.dirichlet(np.ones(V)), 1)
  confidence = twice(lambda: rng.uniform(0.05, 0.99), 1)
  return tuple(zip(p, q, confidence, strict=True))


def scores(model, confidence):
  """Survival of all pairs of drafts: [16, 2, 2]."""
  found = []
  for pair in PAIRS:
    rows = []
    for (_, q, c), draft in zip(model, pair, strict=True):
      if confidence == 'before':
        chance = [c[()], c[draft[:1]]]
      elif confidence == 'token':
        chance = [q[()][draft[0]], q[draft[:1]][draft[1]]]
      else:
        chance = [c[()], c[(0,)]]  # Whatever was drafted.
      rows.append(np.cumprod(chance))
    found.append(rows)
  return np.array(found, np.float32)


def kept(policy, models, confidence, table):
  """Drafts of request 0 to verify, for every model and pair of drafts."""
  who = cases.full_load(2, 2)

  def plan(one):
    return policy.plan(one, who, table)[0]

  all_scores = np.stack([scores(model, confidence) for model in models])
  return np.asarray(jax.jit(jax.vmap(jax.vmap(plan)))(jnp.asarray(all_scores)))


def bias(model, counts, accept):
  """Largest error of the law of three tokens of request 0."""
  (p, q, _), (_, q_other, _) = model
  law = dict.fromkeys(itertools.product(range(V), repeat=3), 0.0)
  for (draft, other), count in zip(PAIRS, counts, strict=True):
    weight = q[()][draft[0]] * q[draft[:1]][draft[1]]
    weight *= q_other[()][other[0]] * q_other[other[:1]][other[1]]
    for committed, chance in accept(p, q, draft[:count]):
      for rest in itertools.product(range(V), repeat=3 - len(committed)):
        out, total = committed, weight * chance
        for token in rest:
          total *= p[out][token]
          out += (token,)
        law[out] += total
  truth = {x: p[()][x[0]] * p[x[:1]][x[1]] * p[x[:2]][x[2]] for x in law}
  return max(abs(law[x] - truth[x]) for x in law)


def token_rule(p, q, draft):
  """Rejection sampling token by token: (committed, probability)."""
  alive = 1.0
  for j, token in enumerate(draft):
    before = draft[:j]
    chance = min(1.0, p[before][token] / q[before][token])
    residual = _normal(np.maximum(p[before] - q[before], 0))
    for other in range(V):
      yield (*before, other), alive * (1 - chance) * residual[other]
    alive *= chance
  for other in range(V):
    yield (*draft, other), alive * p[draft][other]


def block_rule(p, q, draft):
  """Block verification: the longest prefix that passes, from the end."""
  last = len(draft)
  ratio = [1.0]
  for j, token in enumerate(draft):
    before = draft[:j]
    ratio.append(min(1.0, ratio[-1] * p[before][token] / q[before][token]))
  alive = 1.0
  for j in range(last, -1, -1):
    prefix = draft[:j]
    if j == last:
      chance, law = ratio[j], p[prefix]
    else:
      gap = np.maximum(ratio[j] * p[prefix] - q[prefix], 0)
      rest = gap.sum()
      spare = rest + 1 - ratio[j]
      chance = rest / spare if spare > 0 else 1.0
      law = _normal(gap) if rest > 0 else p[prefix]
    if j == 0:
      chance = 1.0
    for other in range(V):
      yield (*prefix, other), alive * chance * law[other]
    alive *= 1 - chance


def _normal(law):
  total = law.sum()
  return law / total if total > 0 else law
