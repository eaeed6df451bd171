# SPDX-License-Identifier: MIT
"""Verification rules as mathematics: exact laws in float64, no sampling.

A model maps a context (a tuple of tokens) to a law. A draft is nested lists of
children (token, children), siblings in the order drawn. A rule maps a draft to
the law of what a round commits: {committed tokens: probability}. Nothing here
shares code with jspec.
"""

import itertools

import numpy as np

VOCAB = 3
INDEPENDENT, WITHOUT = 'independent', 'without_replacement'


def random_model(rng, depth, concentration=0.8, zeros=0.0, vocab=VOCAB):
  """A law for every context shorter than `depth`, with some zeros."""
  model = {}
  for length in range(depth):
    for context in itertools.product(range(vocab), repeat=length):
      law = rng.dirichlet(np.ones(vocab) * concentration)
      law = np.where(rng.uniform(size=vocab) < zeros, 0, law)
      if law.sum() < 1e-3:
        law = np.eye(vocab)[rng.integers(vocab)]
      model[context] = law / law.sum()
  return model


def constant_model(law, depth):
  """The same law in every context shorter than `depth`."""
  contexts = itertools.chain.from_iterable(
    itertools.product(range(len(law)), repeat=i) for i in range(depth)
  )
  return {context: np.array(law, float) for context in contexts}


def draws(q, num, mode):
  """All ways to draw siblings from q, in order, with probabilities.

  There are `num` of them, or as many as q has tokens to draw.
  """
  if num == 0 or q.sum() <= 0:
    yield (), 1.0
    return
  for token in np.flatnonzero(q):
    left = q.copy()
    if mode == WITHOUT:
      left[token] = 0.0
    for others, chance in draws(left, num - 1, mode):
      yield (int(token), *others), chance * q[token] / q.sum()


def drafts(q, shape, mode, context=()):
  """All drafts with `shape[i]` children at every node of depth i."""
  if not shape:
    yield [], 1.0
    return
  for tokens, chance in draws(q[context], shape[0], mode):
    below = [
      list(drafts(q, shape[1:], mode, (*context, token))) for token in tokens
    ]
    for combination in itertools.product(*below):
      chances = [chance, *(c for _, c in combination)]
      trees = [tree for tree, _ in combination]
      yield list(zip(tokens, trees, strict=True)), float(np.prod(chances))


def normed(x):
  return x / x.sum() if x.sum() > 0 else x


def add(law, context, p, weight):
  """One more token, from p."""
  for token, chance in enumerate(p):
    if weight * chance > 0:
      s = (*context, token)
      law[s] = law.get(s, 0.0) + weight * chance


def walk(p, q, draft, mode, context=(), weight=1.0, law=None):
  """R1: draw from p, follow the child that holds it."""
  law = {} if law is None else law
  children = dict(reversed(draft))  # The first of equal siblings stays.
  for token, chance in enumerate(p[context]):
    if token in children:
      s = (*context, token)
      walk(p, q, children[token], mode, s, weight * chance, law)
    else:
      add(law, context, np.eye(len(p[context]))[token], weight * chance)
  return law


def recursive(p, q, draft, mode, context=(), weight=1.0, law=None):
  """Recursive rejection; on a chain token verification."""
  law = {} if law is None else law
  left = p[context].copy()
  drawn = q[context].copy() if draft else None
  for token, below in draft:
    chance = min(1.0, left[token] / drawn[token]) if drawn[token] > 0 else 0.0
    if chance > 0:
      s = (*context, token)
      recursive(p, q, below, mode, s, weight * chance, law)
    weight *= 1 - chance
    if weight <= 0:
      return law
    rest = np.maximum(left - drawn, 0)
    left = normed(rest) if rest.sum() > 0 else left
    if mode == WITHOUT:
      drawn[token] = 0
      drawn = normed(drawn)
  add(law, context, left, weight)
  return law


def block(p, q, draft, mode):
  """Block verification of a chain, by its formulas."""
  tokens = []
  while draft:
    ((token, draft),) = draft
    tokens.append(token)
  x, length = tuple(tokens), len(tokens)
  a = [1.0]
  for i in range(length):
    drawn = q[x[:i]][x[i]]
    ratio = p[x[:i]][x[i]] / drawn if drawn > 0 else 0.0
    a.append(min(1.0, a[-1] * ratio))
  law, weight = {}, 1.0
  for i in range(length, -1, -1):
    left = p[x[:i]]
    chance = a[i]
    if i < length:
      left = np.maximum(a[i] * left - q[x[:i]], 0)
      total = left.sum()
      chance = total / (total + 1 - a[i]) if total + 1 - a[i] > 0 else 1.0
      left = left / total if total > 0 else p[x[:i]]
    add(law, x[:i], left, weight * (chance if i else 1.0))
    weight *= 1 - chance
  return law


def sum_update(total, alpha, taken):
  """The exact update of a parent's alpha."""
  divisor = total + 1 - alpha
  return total / divisor if divisor > 1e-15 else 1.0


def min_update(total, alpha, taken):
  """Wrong: what a port of traversal verification does."""
  return min(1.0, total / (1 - taken)) if taken < 1 else 1.0


def traversal(p, q, draft, mode, update=sum_update):
  """Traversal verification, taking the tree apart leaf by leaf."""

  def node(context, children):
    laws = p[context].copy(), (q[context].copy() if children else None)
    below = [node((*context, token), inner) for token, inner in children]
    return {'at': context, 'laws': laws, 'below': below, 'alpha': 1.0}

  def refresh(v):
    left, drawn = v['laws']
    for child in v['below']:
      token = child['at'][-1]
      ratio = left[token] / drawn[token] if drawn[token] > 0 else 0.0
      child['alpha'] = min(1.0, v['alpha'] * ratio)
      refresh(child)

  root, law, weight = node((), draft), {}, 1.0
  refresh(root)
  while True:
    path = [root]
    while path[-1]['below']:
      path.append(path[-1]['below'][0])
    leaf = path[-1]
    chance = 1.0 if leaf is root else leaf['alpha']
    add(law, leaf['at'], leaf['laws'][0], weight * chance)
    weight *= 1 - chance
    if weight <= 0:
      return law
    parent = path[-2]
    parent['below'].pop(0)
    left, drawn = parent['laws']
    rest = np.maximum(parent['alpha'] * left - drawn, 0)
    token = leaf['at'][-1]
    total = rest.sum()
    parent['alpha'] = update(total, parent['alpha'], drawn[token])
    left = rest / total if total > 0 else left
    if mode == WITHOUT:
      drawn[token] = 0
      drawn = normed(drawn)
    parent['laws'] = left, drawn
    refresh(parent)


def overall(rule, p, q, shape, mode, verified_as=None, **options):
  """The law of what a round commits, over all drafts."""
  law = {}
  for draft, chance in drafts(q, shape, mode):
    given = rule(p, q, draft, verified_as or mode, **options)
    for s, weight in given.items():
      law[s] = law.get(s, 0.0) + chance * weight
  return law


def completed(p, law, length):
  """The law of the first `length` tokens; the target adds what is missing."""
  vocab = len(p[()])
  found = dict.fromkeys(itertools.product(range(vocab), repeat=length), 0.0)
  for s, weight in law.items():
    s = s[:length]
    for tail in itertools.product(range(vocab), repeat=length - len(s)):
      chance, whole = weight, s
      for token in tail:
        chance *= p[whole][token]
        whole = (*whole, token)
      found[whole] += chance
  return found


def target_law(p, length):
  """The law of the target's first `length` tokens."""
  return completed(p, {(): 1.0}, length)


def distance(p, law, length):
  """Largest error of a probability of the first `length` tokens."""
  found, expected = completed(p, law, length), target_law(p, length)
  return max(abs(found[s] - expected[s]) for s in expected)


def num_accepted(law):
  """Drafts accepted on average, without the bonus."""
  return sum(weight * (len(s) - 1) for s, weight in law.items())
