# SPDX-License-Identifier: MIT
"""Drafters whose acceptance is known beforehand, for any target."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged


class Known(nnx.Module):
  """Drafts with the target itself: all right, all wrong, or all wrong from one.

  `num_right` drafts of each round are the target's own greedy choice, the next
  ones its least likely token.
  """

  def __init__(self, target, num_draft_tokens=4, num_right=None):
    self.target = target
    self.taps = ()
    self.num_draft_tokens = self.chain_len = num_draft_tokens
    # A variable, so that a test can change it without compiling again.
    num_right = num_draft_tokens if num_right is None else num_right
    self.num_right = nnx.Variable(jnp.int32(num_right))
    self.is_silent = nnx.Variable(jnp.bool_(False))

  def set(self, num_right, *, is_silent=False):
    self.num_right[...] = jnp.int32(num_right)
    self.is_silent[...] = jnp.bool_(is_silent)

  def init_state(self, table, num_pages, page_size):
    t = self.target
    return paged.init_pages(
      t.num_layers,
      num_pages,
      page_size,
      t.num_kv_heads,
      t.head_width,
      form=t.cache_form,
    )

  def propose(self, state, table, anchor, temperature, keys):
    del temperature, keys
    num_rows = anchor.shape[0]

    def step(carry, depth):
      cache, token = carry
      scored, cache = self._feed(cache, token[:, None], jnp.ones_like(token))
      logits = self.target.logits(scored.hidden[:, 0])
      right = jnp.argmax(logits, -1)
      wrong = jnp.argmin(logits, -1)
      token = jnp.where(depth < self.num_right[...], right, wrong)
      token = token.astype(anchor.dtype)
      return (cache, token), token

    _, drafts = jax.lax.scan(
      step,
      (paged.PagedCache(state, table), anchor),
      jnp.arange(self.chain_len),
    )
    tokens = jnp.concatenate([anchor[:, None], drafts.T], axis=1)
    num_nodes = jnp.where(self.is_silent[...], 1, tokens.shape[1])
    return chain(tokens, jnp.broadcast_to(num_nodes, (num_rows,)))

  def commit(self, state, table, rows):
    cache = paged.PagedCache(state, table)
    _, cache = self._feed(cache, rows.tokens, rows.num_rows)
    return cache.pages

  def _feed(self, cache, tokens, num_rows):
    num = tokens.shape[1]
    steps = jnp.broadcast_to(jnp.arange(num, dtype=jnp.int32), tokens.shape)
    scored = self.target.score(
      tokens,
      cache.table.lengths[:, None] + steps,
      tree.chain_words(tokens.shape[0], num),
      cache,
      (),
    )
    return scored, cache.commit(scored.k, scored.v, steps, num_rows)


class Garbage(nnx.Module):
  """Any tokens, any number of them, from a hash of where the row stands."""

  def __init__(self, vocab_size, num_draft_tokens=5):
    self.taps = ()
    self.vocab_size = vocab_size
    self.num_draft_tokens = num_draft_tokens

  def init_state(self, table, num_pages, page_size):
    return None

  def propose(self, state, table, anchor, temperature, keys):
    del state, temperature, keys
    num_nodes = self.num_draft_tokens + 1
    mixed = table.lengths[:, None] * 31 + jnp.arange(num_nodes) * 17
    tokens = (mixed + anchor[:, None]) % self.vocab_size
    tokens = tokens.at[:, 0].set(anchor).astype(anchor.dtype)
    return chain(tokens, 1 + table.lengths % num_nodes)

  def commit(self, state, table, rows):
    return state


class Sampled(nnx.Module):
  """Samples drafts from a fixed law [V]: rule R2 must repair it."""

  def __init__(self, law, num_draft_tokens=2, claimed=None):
    """`claimed` is the law that is reported instead, to lie about q."""
    self.taps = ()
    self.confidence_depends = 'prefix'  # It is 1.
    self.num_draft_tokens = num_draft_tokens
    self.law = nnx.Variable(jnp.asarray(law, jnp.float32))
    claimed = law if claimed is None else claimed
    self.claimed = nnx.Variable(jnp.asarray(claimed, jnp.float32))

  def init_state(self, table, num_pages, page_size):
    return None

  def propose(self, state, table, anchor, temperature, keys):
    num_rows, num = anchor.shape[0], self.num_draft_tokens
    logits = jnp.log(self.law[...])
    drafts = _categorical(keys, logits, num, anchor.dtype)
    tokens = jnp.concatenate([anchor[:, None], drafts], axis=1)
    size = logits.shape[0]
    shape = (num_rows, num + 1, size)
    return dataclasses.replace(
      chain(tokens, jnp.full((num_rows,), num + 1, jnp.int32)),
      q=tree.SparseLaw(
        jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), shape),
        jnp.broadcast_to(self.claimed[...], shape),
        draws='independent',
      ),
    )

  def commit(self, state, table, rows):
    return state


def _categorical(keys, logits, num, dtype):
  draw = jax.vmap(lambda key: jax.random.categorical(key, logits, shape=(num,)))
  return draw(keys).astype(dtype)


def chain(tokens, num_nodes):
  return tree.Draft(
    tokens=tokens,
    parents=tree.chain_parents(*tokens.shape),
    num_nodes=num_nodes.astype(jnp.int32),
    confidence=jnp.ones(tokens.shape, jnp.float32),
  )
