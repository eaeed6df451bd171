# SPDX-License-Identifier: MIT
"""Damaged checkpoints: a line that says what is wrong, never a traceback."""

import numpy as np
import pytest

from jspec import errors
from jspec.drafters.formats import layouts
from tests.drafters.formats import tiny

CASES = [
  ('dflash', 'zlab'),
  ('dflash2', 'zlab'),
  ('gated', 'angelspec'),
  ('dspark', 'angelspec'),
  ('dfly', 'vllm'),
  ('eagle3', 'eagle'),
  ('mtp', 'qwen3_mtp'),
  ('mtp_moe', 'hy3'),
  ('specblock', 'specblock'),
]
STRANGE = ('x', -1, 0, 1.5, True, [], ['x'], {}, {'k': 1})


def _foreign(name, layout):
  native = tiny.reduced if name in ('eagle3', 'specblock') else tiny.native
  return layouts.from_native(*native(name), layout, tiny.target())


def _tried(config, tensors, layout):
  """The native checkpoint, or None with a line for the user."""
  try:
    return layouts.to_native(config, tensors, layout=layout)
  except errors.UserError as error:
    assert '\n' not in str(error)
    return None


@pytest.mark.parametrize('name, layout', CASES)
def test_strange_values_are_refused_by_line_or_change_nothing(name, layout):
  config, tensors = _foreign(name, layout)
  want, _ = layouts.to_native(config, tensors)
  for key in config:
    for value in STRANGE:
      found = _tried({**config, key: value}, tensors, layout)
      if found is not None and value != config[key]:
        changed = {k for k in want if found[0].get(k) != want[k]}
        # A number of any value is a rotary base; so is a flag its opposite.
        assert changed <= {key}, (key, value, changed)


@pytest.mark.few(3)
@pytest.mark.parametrize('name, layout', CASES)
def test_missing_keys_are_refused_by_line_or_read_off_the_tensors(name, layout):
  config, tensors = _foreign(name, layout)
  want, _ = layouts.to_native(config, tensors)
  # With experts there is no dense layer that it could be the width of.
  unused = {'intermediate_size'} if name == 'mtp_moe' else set()
  for key in config.keys() - unused:
    rest = {k: v for k, v in config.items() if k != key}
    found = _tried(rest, tensors, layout)
    assert found is None or found[0] == want, key
    for other in rest:
      _tried({k: v for k, v in rest.items() if k != other}, tensors, layout)


@pytest.mark.parametrize('name, layout', CASES)
def test_missing_tensors_are_refused_by_line(name, layout):
  config, tensors = _foreign(name, layout)
  copied = ('embed_tokens', 't2d')
  for name in tensors:
    rest = {n: t for n, t in tensors.items() if n != name}
    found = _tried(config, rest, layout)
    assert found is None or any(part in name for part in copied), name


@pytest.mark.parametrize('name, layout', CASES)
def test_tensors_of_other_shapes_are_refused_by_line(name, layout):
  config, tensors = _foreign(name, layout)
  for name, values in tensors.items():
    for other in (values[None], values[:0], np.float32(1) * values.ravel()[:1]):
      if other.shape != values.shape:
        found = _tried(config, {**tensors, name: other}, layout)
        assert found is None, (name, other.shape)


@pytest.mark.parametrize('layout', sorted(layouts.LAYOUTS))
def test_layout_forced_on_anything_is_refused_by_line(layout):
  for name, other in CASES:
    config, tensors = _foreign(name, other)
    if other != layout:
      _tried(config, tensors, layout)
    _tried({}, tensors, layout)
    _tried(config, {}, layout)
