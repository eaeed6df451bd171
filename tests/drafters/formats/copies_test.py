# SPDX-License-Identifier: MIT
"""Copies of the target: checked where there is one, and never kept."""

import dataclasses
import types

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.drafters.formats import copies, layouts
from tests.drafters.formats import tiny

CASES = [
  ('dflash', 'angelspec', 'embed_tokens.weight'),
  ('mtp', 'angelspec', 'embed_tokens.weight'),
  ('eagle3', 'eagle', 'embed_tokens.weight'),
  ('specblock', 'specblock', 'input_layer.embed_tokens.weight'),
  ('dspark', 'deepspec', 'embed_tokens.weight'),
  ('dspark', 'deepspec', 'lm_head.weight'),
]
SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}


class Model(nnx.Module):
  """As much of a loaded target as is read."""

  def __init__(self, target):
    self.config = types.SimpleNamespace(
      num_layers=target.num_layers, embedding_scale=1.0
    )
    self.embedding = nnx.Param(jnp.asarray(target.embedding))
    self.head = nnx.Param(jnp.asarray(target.head.T))


def foreign(name, layout, **changes):
  if layout == 'deepspec':
    changes |= SHIFTED
  config, tensors = tiny.native(name, **changes)
  return layouts.from_native(config, tensors, layout, tiny.target())


@pytest.mark.parametrize('name, layout, copy', CASES)
def test_copy_is_written_checked_and_dropped(name, layout, copy):
  config, theirs = foreign(name, layout)
  target = tiny.target()
  own = target.head if 'lm_head' in copy else target.embedding
  np.testing.assert_array_equal(theirs[copy], own)
  _, ours = layouts.to_native(config, theirs, {}, target)
  assert copy in copies.left_out(theirs, ours)
  rounded = theirs[copy].astype(ml_dtypes.bfloat16)
  layouts.to_native(config, {**theirs, copy: rounded}, {}, target)
  other = {**theirs, copy: theirs[copy] + 0.1}
  with pytest.raises(errors.UserError, match="not this target's.*0.1"):
    layouts.to_native(config, other, {}, target)
  layouts.to_native(config, other)  # Nothing to compare it with.


@pytest.mark.parametrize('name, layout, copy', CASES)
def test_copy_of_another_size_is_refused_without_a_target(name, layout, copy):
  config, theirs = foreign(name, layout)
  cut = {**theirs, copy: theirs[copy][:-1]}
  with pytest.raises(errors.UserError, match=r'\[39, 16\].*\[40, 16\]'):
    layouts.to_native(config, cut)


@pytest.mark.parametrize('name, layout, copy', CASES)
def test_copy_cannot_be_written_without_a_target(name, layout, copy):
  changes = SHIFTED if layout == 'deepspec' else {}
  config, tensors = tiny.native(name, **changes)
  with pytest.raises(errors.UserError, match='give --target'):
    layouts.from_native(config, tensors, layout)


def test_copy_is_written_in_the_dtype_of_the_drafter():
  config, tensors = tiny.native('dflash')
  half = {n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}
  out, theirs = layouts.from_native(config, half, 'angelspec', tiny.target())
  assert theirs['embed_tokens.weight'].dtype == ml_dtypes.bfloat16
  assert out['torch_dtype'] == 'bfloat16'


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_layers': 7}, 'target_num_hidden_layers is 6, .* 7'),
    ({'embedding': np.zeros((41, 16))}, 'vocab_size is 40, .* 41'),
    ({'embedding': np.zeros((40, 8))}, 'target_hidden_size is 16, .* 8'),
  ],
)
def test_target_of_another_shape_is_refused(changes, message):
  config, tensors = tiny.native('dflash')
  out, theirs = layouts.from_native(config, tensors, 'zlab')
  target = dataclasses.replace(tiny.target(), **changes)
  with pytest.raises(errors.UserError, match=message):
    layouts.to_native(out, theirs, {}, target)
  with pytest.raises(errors.UserError, match=message):
    layouts.from_native(config, tensors, 'zlab', target)


def test_own_head_is_no_copy():
  config, theirs = foreign('eagle3', 'eagle')
  _, ours = layouts.to_native(config, theirs)
  assert copies.left_out(theirs, ours) == ['embed_tokens.weight']


def test_loaded_target_gives_its_arrays():
  want = tiny.target()
  target = copies.of_model(Model(want))
  assert target.num_layers == want.num_layers
  np.testing.assert_array_equal(target.embedding, want.embedding)
  np.testing.assert_array_equal(target.head, want.head)
