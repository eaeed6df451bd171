# SPDX-License-Identifier: MIT
"""Several rounds with a toy target and a toy drafter, many rows at once.

The target's logits and the drafter's depend on the last token only. The tree
has one shape, its tokens are drawn node by node as `draws` says, and a round
goes through `verify` exactly as in decoding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.decode import keys, sampling

VOCAB, LENGTH = 4, 4
CHAIN = (-1, 0, 1, 2)
TREE = (-1, 0, 0, 1, 1, 2, 2)  # two children at every inner node


def tables(seed=0, noise=1.0):
  """Logits of the target and of the drafter behind every token, [V, V]."""
  rng = np.random.default_rng(seed)
  target = rng.normal(size=(VOCAB, VOCAB)).astype(np.float32)
  other = noise * rng.normal(size=(VOCAB, VOCAB))
  return target, (target + other).astype(np.float32)


def draw_tree(table, parents, draws, params, anchors, positions):
  """A draft with tokens drawn node by node, each with a number of its own."""
  num_rows, num_nodes = anchors.shape[0], len(parents)
  temperature = jnp.where(params.temperature > 0, params.temperature, 1.0)
  uniforms = keys.node_uniforms(params.seeds, positions, keys.DRAFT, num_nodes)
  ids = jnp.arange(VOCAB, dtype=jnp.int32)
  tokens, laws, left = [anchors], [], {}
  for node in range(num_nodes):
    if node:
      parent = parents[node]
      token = sampling.draw(left[parent], uniforms[:, node])
      tokens.append(token)
      if draws == 'without_replacement':
        left[parent] = jnp.where(ids == token[:, None], 0.0, left[parent])
    law = jax.nn.softmax(table[tokens[node]] / temperature[:, None], axis=-1)
    laws.append(law)
    left[node] = law
  return tree.Draft(
    tokens=jnp.stack(tokens, axis=1),
    parents=jnp.broadcast_to(
      jnp.asarray(parents, jnp.int32), (num_rows, num_nodes)
    ),
    num_nodes=jnp.full((num_rows,), num_nodes, jnp.int32),
    confidence=jnp.ones((num_rows, num_nodes)),
    q=tree.SparseLaw(
      jnp.broadcast_to(ids, (num_rows, num_nodes, VOCAB)),
      jnp.stack(laws, axis=1),
      draws=draws,
    ),
  )


@functools.partial(jax.jit, static_argnames=('accept', 'parents', 'draws'))
def decode(accept, parents, draws, target, drafter, params):
  """The first LENGTH tokens of every row, and the drafts accepted.

  Args:
    accept: (logits, draft, params, anchor positions) to `Accepted`.
    parents: the shape of the tree.
    draws: how siblings are drawn; None hands over no law (R1).
    target: logits behind every token.
    drafter: likewise.
    params: sampling parameters of the rows.
  """
  num_rows = params.seeds.shape[0]
  rows = jnp.arange(num_rows)[:, None]

  def one_round(_, state):
    out, num_out, anchors, num_accepted = state
    draft = draw_tree(
      drafter, parents, draws or 'independent', params, anchors, num_out
    )
    if draws is None:
      draft = dataclasses.replace(draft, q=None)
    result = accept(target[draft.tokens], draft, params, num_out)
    step = jnp.arange(len(parents))
    is_new = step <= result.num_accepted[:, None]
    column = jnp.where(is_new, num_out[:, None] + step, LENGTH)
    out = out.at[rows, column].set(result.tokens, mode='drop')
    last = jnp.take_along_axis(
      result.tokens, result.num_accepted[:, None], axis=1
    )
    used = jnp.where(num_out < LENGTH, result.num_accepted, 0)
    num_out = num_out + result.num_accepted + 1
    return out, num_out, last[:, 0], num_accepted + used

  zeros = jnp.zeros((num_rows,), jnp.int32)
  out = jnp.zeros((num_rows, LENGTH), jnp.int32)
  state = (out, zeros, zeros, zeros)
  out, _, _, num_accepted = jax.lax.fori_loop(0, LENGTH, one_round, state)
  return out, num_accepted


def exact_law(target, settings):
  """The law [V ** LENGTH] of the target's tokens behind token 0."""
  params = sampling.stack([sampling.SamplingParams(**settings)] * VOCAB)
  rows = np.asarray(sampling.law(jnp.asarray(target), params), np.float64)
  rows /= rows.sum(axis=1, keepdims=True)
  law = rows[0]
  for _ in range(LENGTH - 1):
    law = (law[:, None] * rows[np.arange(law.size) % VOCAB]).reshape(-1)
  return law


def counts(out):
  """How often each sequence came up, in the order of `exact_law`."""
  index = np.zeros(len(out), np.int64)
  for column in np.asarray(out).T:
    index = index * VOCAB + column
  return np.bincount(index, minlength=VOCAB**LENGTH)
