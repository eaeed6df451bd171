# SPDX-License-Identifier: MIT
"""The benchmark runs on a toy and reports figures that add up."""

import types

import pytest

from jspec.bench import step
from jspec.drafters import ngram
from jspec.testing import toy
from tests.targets import goldens


@pytest.mark.slow
def test_every_figure_is_reported_when_run_on_a_toy():
  loaded = types.SimpleNamespace(label='toy', model=toy.target())
  seen = []
  result = step.run(
    loaded,
    ngram.NGram(3),
    rows=(1, 2),
    nodes=(1, 4),
    context=40,
    repeats=2,
    on_progress=lambda done, total: seen.append((done, total)),
  )
  assert seen[-1][0] == seen[-1][1] == len(seen)
  cells = {(c['rows'], c['nodes']) for c in result['verify_ms']}
  assert cells == {(1, 1), (1, 4), (2, 1), (2, 4)}
  assert set(result['sampling_ms']) == set(step.SAMPLERS)
  times = [result['plain_round_ms'], result['stack_ms'], result['head_ms']]
  assert min(times + list(result['sampling_ms'].values())) > 0
  text = step.table(result)
  assert 'GB/s' in text and '4 nodes' in text and 'stack' in text
  assert result['floor_ratio'] > 0
  assert all(cell['floor_ratio'] > 0 for cell in result['verify_ms'])


@pytest.mark.slow
def test_weight_bytes_leave_the_input_embedding_out():
  model = toy.target()
  loaded = types.SimpleNamespace(label='toy', model=model)
  result = step.run(loaded, None, rows=(1,), nodes=(1,), context=8, repeats=1)
  c = model.config
  per_layer = (
    c.width * (c.num_heads + 2 * c.num_kv_heads) * c.head_width
    + c.num_heads * c.head_width * c.width
    + 3 * c.width * c.ff_width
    + 2 * c.width
  )
  total = c.num_layers * per_layer + c.width + c.width * c.vocab_size
  assert result['weight_bytes'] == 4 * total


@pytest.mark.slow
def test_a_target_with_latents_and_experts_is_measured_without_its_stack():
  model = goldens.model('deepseek_v3')
  loaded = types.SimpleNamespace(label='golden', model=model)
  size = dict(rows=(1,), nodes=(1,), context=8, repeats=1)
  result = step.run(loaded, None, samplers={}, **size)
  assert result['stack_ms'] is None
  assert result['floor_ratio'] > 0
  text = step.table(result)
  assert 'layers  ' in text and 'attention' not in text
  assert 'sampling   ' not in text
