# SPDX-License-Identifier: MIT
"""GPT-OSS with experts in MXFP4, as it is published."""

import numpy as np

from jspec.checkpoints import mxfp4, names
from jspec.targets import gpt_oss
from tests.targets import goldens


def packed(values):
  """Codes and scales of values [E, D, F] that MXFP4 holds exactly."""
  turned = values.transpose(0, 2, 1)
  codes = np.argmax(turned[..., None] == mxfp4.VALUES, axis=-1)
  pairs = codes.reshape(*turned.shape[:2], -1, 16, 2).astype(np.uint8)
  blocks = pairs[..., 0] | pairs[..., 1] << 4
  return blocks, np.full(blocks.shape[:-1], 127, np.uint8)


def test_experts_in_mxfp4_load_as_their_values_do():
  said = {'quantization_config': {'quant_method': 'mxfp4'}}
  # Widths in blocks of 32.
  config = goldens.config('gpt_oss', intermediate_size=32, **said)
  rng = np.random.default_rng(0)
  plain, stored = {}, {}
  shapes = {
    'experts.gate_up_proj': (4, 64, 64),
    'experts.gate_up_proj_bias': (4, 64),
    'experts.down_proj': (4, 32, 64),
    'experts.down_proj_bias': (4, 64),
    'router.weight': (4, 64),
    'router.bias': (4,),
  }
  for rule in gpt_oss.rules(config):
    *_, key = rule.source.split('.mlp.')
    if key not in shapes:
      continue
    values = rng.choice(mxfp4.VALUES, shapes[key])
    plain[rule.source] = values
    if key.endswith('proj'):
      blocks, scales = packed(values)
      stored |= {rule.source + '_blocks': blocks}
      stored |= {rule.source + '_scales': scales}
    else:
      stored[rule.source] = values
  source = gpt_oss.prepare(names.Held('here', stored))
  assert set(source.names()) == set(plain)
  for name, values in plain.items():
    assert source.shape(name) == values.shape
    np.testing.assert_array_equal(source.read(name), values)


def test_gate_and_up_columns_lie_apart():
  _, read = goldens.arrays('gpt_oss')
  table = {
    rule.source: rule for rule in gpt_oss.rules(goldens.config('gpt_oss'))
  }
  rule = table['model.layers.1.mlp.experts.gate_up_proj']
  values = np.arange(4 * 64 * 32, dtype=np.float32).reshape(4, 64, 32)
  apart = rule.convert(values)
  np.testing.assert_array_equal(apart[..., :16], values[..., 0::2])
  np.testing.assert_array_equal(apart[..., 16:], values[..., 1::2])
  assert read[rule.leaf][rule.box].shape == apart.shape
