# SPDX-License-Identifier: MIT
"""An engine on a mesh gives the tokens of one device."""

import functools
import math
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jspec.drafters import ngram
from jspec.serve import (
  asks,
  empty,
  placement,
  programs,
  settings,
  structured,
)
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked
from tests.serve import compiles, constrained, small

pytestmark = pytest.mark.slow


def mesh_of(num_devices):
  return Mesh(np.array(jax.devices()[:num_devices]), ('model',))


@pytest.fixture(scope='module')
def target():
  return toy.target(
    max_len=small.MAX_LEN, num_heads=8, num_kv_heads=8, ff_width=64
  )


@pytest.fixture(scope='module')
def alone(target):
  return answer(small.make(target, None))


@pytest.fixture(scope='module')
def served(target):
  drafter = drafters.Known(target, 4, num_right=3)
  return small.make(target, drafter, mesh=mesh_of(8))


def answer(engine):
  wanted = [asks.Ask(params=params) for params in small.requests()]
  return offline_lib.generate(engine, small.prompts(), wanted)


def test_eight_devices_give_the_tokens_of_one(served, alone):
  assert answer(served) == alone
  assert served.metrics.tokens_per_round > 1.2


def test_found_prefixes_give_the_same(served, alone):
  trie = served._scheduler.ledger.trie
  answer(served)
  before = trie.num_hit_tokens
  assert answer(served) == alone
  assert trie.num_hit_tokens > before


def test_traffic_compiles_nothing_and_the_state_stays_where_it_lies(served):
  with unchecked.constructors():
    lies = jax.tree.leaves(placement.shardings(served._device._calls.state))
  with compiles.counted() as found:
    answer(served)
  assert found == []
  assert served.programs.num_missing == 0
  after = jax.tree.leaves(served._device._calls.state)
  assert [leaf.sharding for leaf in after] == lies


def test_two_devices_with_split_layers_and_a_block_drafter(target, alone):
  drafter = toy.drafter(target)
  engine = small.make(toy.split(target), drafter, mesh=mesh_of(2))
  assert answer(engine) == alone


def test_grammars_and_heads_that_do_not_share_out_give_the_same():
  pytest.importorskip('llguidance', reason="needs the extra 'structured'")
  compiler = constrained.compiler()
  target = toy.target(
    max_len=small.MAX_LEN,
    num_heads=6,
    num_kv_heads=3,
    ff_width=64,
    vocab_size=constrained.VOCAB_SIZE,
  )
  wanted = [
    asks.Ask(
      params=params,
      constraint=structured.Constraint('regex', '(ab|cd){12,14}')
      if params.seed % 2
      else None,
    )
    for params in small.requests()
  ]

  def answers(**more):
    drafter = ngram.NGram(num_draft_tokens=4)
    engine = small.make(target, drafter, compiler, **more)
    found = offline_lib.generate(engine, small.prompts(), wanted)
    assert engine.metrics.num_split
    return found

  assert answers(mesh=mesh_of(2)) == answers()


MESSAGE = re.compile(r'= \w+\[([\d,]*)\]\S* (all-gather|all-to-all)\(')


def largest_message(text):
  """Elements of the largest array that devices put together from parts."""
  return max(
    (math.prod(map(int, m[1].split(','))) for m in MESSAGE.finditer(text)),
    default=0,
  )


def test_a_round_moves_sums_and_no_weights_pages_or_logits():
  vocab_size = 8192
  target = toy.target(
    max_len=64, num_heads=16, num_kv_heads=8, ff_width=64, vocab_size=vocab_size
  )
  mesh = placement.checked(mesh_of(8))
  target, _ = placement.models(target, None, mesh)
  sizes = settings.resolve(small.SETTINGS, target, None)
  shapes = programs.Shapes(
    row_buckets=(4,),
    chunk_sizes=(16,),
    num_rounds=2,
    num_budgets=3,
    policies=sizes.policies,
    rule=sizes.rule,
    is_split=False,
  )
  make = functools.partial(
    empty.init_state,
    target,
    None,
    num_rows=4,
    num_pages=32,
    page_size=8,
    capacity=8,
  )
  with unchecked.constructors():
    state = placement.state(make, mesh)
    found = programs.sources(target, None, state, shapes, 64, mesh)
    text = found[programs.Key(programs.PLAIN, 4)].lower().compile().as_text()
  # The most are the maxima of blocks of 128 logits, where a row filters.
  assert 0 < largest_message(text) <= 4 * vocab_size // 128
  # Attention and MLP, inside the loop over layers, and the embedding.
  sums = re.findall(r'= f32\[4,1,32\]\S* all-reduce\(', text)
  assert len(sums) == 3
  # The control: pages that have to be brought together are seen.
  gather = jax.jit(lambda x: x, out_shardings=placement.whole(mesh))
  pool = state.cache.pages.k
  assert largest_message(gather.lower(pool).compile().as_text()) == pool.size
