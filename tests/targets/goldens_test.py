# SPDX-License-Identifier: MIT
"""Every family equals the reference: whole, step by step, and in trees."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import packing
from tests.targets import goldens

FILES = ('config.json', 'config_v4.json')
# By golden, a field that changes what is computed and another value of it.
CHANGES = (
  ('llama', {'rms_norm_eps': 1e-2}),
  ('qwen2', {'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'}}),
  ('mistral', {'sliding_window': 9}),
  ('mistral', {'sliding_window': 7}),
  ('qwen3_moe', {'norm_topk_prob': False}),
  ('qwen3_moe', {'num_experts_per_tok': 1}),
  ('gpt_oss', {'sliding_window': 9}),
  ('gpt_oss', {'num_experts_per_tok': 3}),
  ('deepseek_v3', {'topk_group': 2}),
  ('deepseek_v3', {'routed_scaling_factor': 2.0}),
  ('deepseek_v3', {'norm_topk_prob': False}),
  ('gemma3', {'query_pre_attn_scalar': 24}),
  ('gemma3', {'sliding_window': 9}),
  ('gemma3', {'layer_types': None, '_sliding_window_pattern': 5}),
  ('gemma3', {'final_logit_softcapping': 30.0}),
)


def close(got, want, atol=1e-4):
  np.testing.assert_allclose(got, want, atol=atol, rtol=0)


@pytest.mark.parametrize('name', goldens.NAMES)
def test_both_layouts_of_the_config_say_the_same(name):
  new, old = (goldens.config(name, file) for file in FILES)
  assert new == old


@pytest.mark.few(4)
@pytest.mark.parametrize('name', goldens.NAMES)
def test_logits_and_states_equal_the_reference(name):
  golden = goldens.golden(name)
  target = goldens.model(name)
  logits, hidden, tapped = goldens.run(target, golden['input_ids'])
  close(logits, golden['logits'])
  last = target.num_layers
  for i in range(1, last):
    close(tapped[:, :, i - 1], golden[f'hidden_{i}'])
  close(tapped[:, :, -1], golden['last_hidden_prenorm'])
  close(hidden, golden[f'hidden_{last}'])


@pytest.mark.few(5)
@pytest.mark.parametrize('name, change', CHANGES)
def test_another_value_of_a_field_gives_something_else(name, change):
  golden = goldens.golden(name)
  target = goldens.load(name, **change)
  logits, _, _ = goldens.run(target, golden['input_ids'])
  assert np.abs(logits - golden['logits']).max() > 1e-3


@pytest.mark.few(2)
@pytest.mark.parametrize('name', goldens.NAMES)
def test_decoding_over_pages_equals_the_reference(name):
  ids, want = (
    goldens.golden(name)['input_ids'],
    goldens.golden(name, 'decode.npz')['decode_logits'],
  )
  # As on a CPU; the other tests run the stacked form.
  target = goldens.load(name, is_split=True)
  target.add_tiles()
  cache = goldens.empty_cache(target, len(ids))
  # Two chunks of prefill, so that windows reach into pages as well.
  _, cache = goldens.feed(target, cache, ids[:, :8])
  logits, cache = goldens.feed(target, cache, ids[:, 8:16])
  close(logits[:, -1], want[:, 0])
  for step in range(8):
    at = 16 + step
    logits, cache = goldens.feed(target, cache, ids[:, at : at + 1])
    close(logits[:, 0], want[:, step + 1])


QUICK = ('llama', 'gemma3')  # The others in the slow suite.

# A node behind another in the list, its parent before it: two branches that
# leave the anchor, and one that leaves the first of them.
PARENTS = np.array([-1, 0, 1, 0, 3, 1, 4, 6, 7])
BRANCHES = ([0, 1, 2], [0, 3, 4, 6, 7, 8], [0, 1, 5])


@pytest.mark.parametrize(
  'name',
  [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in goldens.NAMES
  ],
)
def test_rows_of_a_tree_equal_rows_of_chains(name):
  target = goldens.model(name)
  ids = goldens.golden(name)['input_ids']
  cache = goldens.empty_cache(target, 2)
  _, cache = goldens.feed(target, cache, ids[:, :10])
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, target.vocab_size, (2, len(PARENTS)), np.int32)
  parents = np.broadcast_to(PARENTS, tokens.shape).astype(np.int32)
  logits, scored = goldens.score(
    target, cache, jnp.asarray(tokens), jnp.asarray(parents)
  )
  for branch in BRANCHES:
    chain = np.pad(tokens[:, branch], ((0, 0), (0, 6 - len(branch))))
    want, _ = goldens.feed(target, cache, chain)
    close(logits[:, branch], want[:, : len(branch)], atol=2e-5)
  # Packed on one axis, the first row cut short: the same of what is left.
  counts = np.array([4, len(PARENTS)], np.int32)
  packed = packing.pack_rows(jnp.asarray(counts), 16, len(PARENTS))
  flat, _ = goldens.score(
    target, cache, jnp.asarray(tokens), jnp.asarray(parents), packed
  )
  close(flat[0, :4], logits[0, :4], atol=2e-5)
  close(flat[0, 4 : 4 + len(PARENTS)], logits[1], atol=2e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize('name', goldens.NAMES)
def test_documents_in_one_row_do_not_see_each_other(name):
  target = goldens.model(name)
  golden = goldens.golden(name)
  ids = golden['input_ids'][:, :20].reshape(1, 40)
  place = np.arange(40)[None]
  _, hidden, _ = goldens.run(target, ids, place % 20, place // 20 + 1)
  want = golden[f'hidden_{target.num_layers}'][:, :20].reshape(1, 40, -1)
  close(hidden, want)


def test_capped_logits_equal_the_reference():
  golden = goldens.golden('gemma3')
  target = goldens.load('gemma3', final_logit_softcapping=30.0)
  logits, _, _ = goldens.run(target, golden['input_ids'])
  close(logits, golden['logits_softcap30'])
