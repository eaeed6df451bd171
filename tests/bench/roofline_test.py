# SPDX-License-Identifier: MIT
"""The bound by hand: bytes of weights, experts and cached rows; operations."""

import dataclasses

import numpy as np
import pytest

from jspec.bench import roofline, timing
from jspec.nn import moe
from jspec.testing import toy


@pytest.fixture(autouse=True)
def rates(monkeypatch):
  monkeypatch.setattr(timing, 'read_rate', lambda arrays: 1e9)
  monkeypatch.setattr(timing, 'flop_rate', lambda dtype: 1e9)


def matrices(config):
  c = config
  heads = (2 * c.num_heads + 2 * c.num_kv_heads) * c.head_width
  return c.width * (c.num_layers * heads + c.vocab_size)


def test_a_dense_target_by_hand():
  model = toy.target()
  c = model.config
  numbers = matrices(c) + 3 * c.num_layers * c.width * c.ff_width
  norms = (2 * c.num_layers + 1) * c.width
  found = roofline.measure(model, context=40)
  assert found.token_flop == 2 * numbers
  assert found.weight_bytes == found.held_bytes == 4 * (numbers + norms)
  row = 2 * c.num_kv_heads * c.head_width * 4
  assert found.row_bytes == c.num_layers * 40 * row
  num_bytes = found.weight_bytes + 3 * found.row_bytes
  assert found.seconds(3, 1) == max(num_bytes, 3 * found.token_flop) / 1e9
  slow = dataclasses.replace(found, flop_per_s=1e3)
  assert slow.seconds(3, 2) == 6 * found.token_flop / 1e3


def test_a_window_and_a_small_cache_are_read_in_part():
  plain = roofline.measure(toy.target(), context=40).row_bytes
  windows = toy.target(windows=(10, None, 100))
  assert roofline.measure(windows, context=40).row_bytes == plain * 90 // 120
  small = toy.target(cache_form='int8')
  width = small.config.head_width
  found = roofline.measure(small, context=40)
  assert found.row_bytes == plain * (width + 2) // (4 * width)


def test_of_experts_those_of_one_token_count():
  experts = moe.MoeConfig(width=32, num_experts=8, top_k=2, ff_width=16)
  model = toy.target(experts=experts)
  found = roofline.measure(model, context=8)
  numbers = model.num_layers * 8 * 3 * 32 * 16
  assert found.held_bytes - found.weight_bytes == 4 * numbers * 3 // 4
  numbers = matrices(model.config)
  numbers += model.num_layers * (2 * 3 * 32 * 16 + 32 * 8)
  assert found.token_flop == 2 * numbers


def test_types_of_few_bits_are_summed_as_they_lie(monkeypatch):
  monkeypatch.undo()
  arrays = [np.ones((64, 33), np.int8), np.ones((7,), np.int8)]
  assert 0 < timing.read_rate(arrays, repeats=1) < 1e13
  ids = timing._fast_to_sum(arrays[0].reshape(-1))
  assert ids.nbytes == 64 * 33 // 8 * 8
