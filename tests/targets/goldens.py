# SPDX-License-Identifier: MIT
"""Tiny random models of every family, with what the reference computes."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.cache import paged
from jspec.checkpoints import safetensors
from jspec.targets import families, tables, transformer
from tests import shared_data

NAMES = (
  *('llama', 'llama_tied', 'llama3_rope', 'qwen2', 'qwen3', 'qwen3_yarn'),
  *('mistral', 'gemma3', 'qwen3_moe', 'gpt_oss'),
  'deepseek_v3',
)
PAGE = 4


def fields(name, config_file='config.json', **changes):
  """The config.json of a golden; a change to None removes the field."""
  path = shared_data.path(f'goldens/targets/{name}/{config_file}')
  found = json.loads(path.read_text()) | changes
  return {k: v for k, v in found.items() if k not in changes or v is not None}


def folder(name):
  return shared_data.path(f'goldens/targets/{name}')


def config(name, config_file='config.json', **changes):
  said = fields(name, config_file, **changes)
  return families.find(said, name).config(said, name)


def arrays(name, **changes):
  """Config and weights as the loader reads them."""
  found = config(name, **changes)
  family = families.find(fields(name), name)
  source = family.prepare(safetensors.SafetensorsFolder(folder(name)))
  read = tables.load(
    found,
    family.rules(found),
    source,
    ignored=family.ignored(found, source),
  )
  return found, read


def load(name, *, is_split=False, **changes):
  return transformer.Transformer(*arrays(name, **changes), is_split=is_split)


@functools.cache
def model(name):
  """The golden model, loaded once."""
  return load(name)


def golden(name, file='golden.npz'):
  return np.load(shared_data.path(f'goldens/targets/{name}/{file}'))


@jax.jit
def _run(target, ids, positions, segments):
  with jax.default_matmul_precision('highest'):
    taps = tuple(range(target.num_layers))
    hidden, tapped = target.encode(ids, positions, segments, taps)
    return target.logits(hidden), hidden, tapped


def run(target, ids, positions=None, segments=None):
  """Logits, states after the final norm, and every layer's output."""
  if positions is None:
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    segments = np.ones(ids.shape)
  return _run(
    target, *(jnp.asarray(x, jnp.int32) for x in (ids, positions, segments))
  )


def empty_cache(target, num_rows, max_len=32):
  pages = max_len // PAGE
  return paged.PagedCache(
    paged.init_pages(
      target.num_layers,
      num_rows * pages,
      PAGE,
      target.num_kv_heads,
      target.head_width,
      form=target.cache_form,
    ),
    paged.contiguous_table(num_rows, pages),
  )


@jax.jit
def score(target, cache, tokens, parents, packing=None):
  """Logits of the nodes [B, T] behind what is cached, and what was scored."""
  depths, words = tree.depths(parents), tree.ancestor_words(parents)
  positions = cache.table.lengths[:, None] + depths
  inputs = (tokens, positions, words)
  if packing is not None:
    inputs = tuple(packing.to_tokens(x)[None] for x in inputs)
  with jax.default_matmul_precision('highest'):
    scored = target.score(*inputs, cache, (), packing)
    return target.logits(scored.hidden), scored


@jax.jit
def commit(cache, scored):
  rows, nodes = scored.k.shape[1:3]
  path = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), (rows, nodes))
  return cache.commit(
    scored.k, scored.v, path, jnp.full((rows,), nodes, jnp.int32)
  )


def feed(target, cache, tokens):
  """Scores a chain and commits all of it."""
  tokens = jnp.asarray(tokens, jnp.int32)
  logits, scored = score(
    target, cache, tokens, tree.chain_parents(*tokens.shape)
  )
  return logits, commit(cache, scored)
