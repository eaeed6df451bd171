# SPDX-License-Identifier: MIT
"""Any part of a leaf is what is there of the leaf when all of it is read."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import conversions, lazy, names

ALL = slice(None)


def swapped(values):
  """Rows in pairs, the other way round, as [in, out]."""
  return (
    values.reshape(-1, 2, values.shape[-1])[:, ::-1].reshape(values.shape).T
  )


PAIRS = conversions.Conversion(
  swapped, lambda values: values, is_turned=True, units=(1, 2)
)
WHOLE = conversions.Conversion(
  lambda values: values.reshape(4, 6), lambda values: values, keeps_axes=False
)
SHAPES = {'a': (2, 4, 9), 'b': (2, 4), 'c': (4, 6), 'd': (4, 6)}
RULES = [
  rule
  for i in range(2)
  for rule in (
    names.Rule(f'a.{i}.x', 'a', (i, ALL, slice(0, 3)), names.transpose),
    names.Rule(f'a.{i}.y', 'a', (i, ALL, slice(3, 9)), PAIRS, shape=(6, 4)),
    names.Rule(f'b.{i}', 'b', (i,), conversions.plus_one),
  )
] + [
  names.Rule('c', 'c', (), WHOLE, shape=(24,)),
  names.Rule('d', 'd', (), lambda values: -values),
]


def source():
  rng = np.random.default_rng(0)
  shapes = {'c': (24,), 'd': (4, 6)}
  for i in range(2):
    shapes |= {f'a.{i}.x': (3, 4), f'a.{i}.y': (6, 4), f'b.{i}': (4,)}
  return names.Held(
    'memory',
    {k: rng.normal(size=v).astype(np.float32) for k, v in shapes.items()},
  )


def parts(size):
  ends = itertools.combinations(range(size + 1), 2)
  return [slice(start, stop) for start, stop in ends]


@pytest.mark.parametrize('large', [0, 1 << 24])
@pytest.mark.parametrize('leaf', SHAPES)
def test_every_part_equals_the_part_of_the_whole(leaf, large, monkeypatch):
  monkeypatch.setattr(lazy, '_LARGE_BYTES', large)
  whole = names.fill(RULES, source(), SHAPES)[leaf]
  leaves = lazy.Leaves(RULES, source(), SHAPES)
  boxes = list(itertools.product(*map(parts, SHAPES[leaf])))
  for box in boxes[:: max(1, len(boxes) // 60)]:
    out = np.full(whole[box].shape, np.nan, np.float32)
    leaves.read(leaf, box, out)
    np.testing.assert_array_equal(out, whole[box], err_msg=str(box))


def test_parts_are_rounded_to_the_dtype_they_go_to():
  whole = names.fill(RULES, source(), SHAPES)['a']
  out = np.zeros((2, 4, 9), ml_dtypes.bfloat16)
  lazy.Leaves(RULES, source(), SHAPES).read(
    'a', (slice(0, 2), slice(0, 4), slice(0, 9)), out
  )
  np.testing.assert_array_equal(out, whole.astype(ml_dtypes.bfloat16))


def test_a_table_that_does_not_fit_is_refused_before_anything_is_read():
  with pytest.raises(errors.UserError, match='tensor d is missing'):
    held = source()
    lazy.Leaves(
      RULES,
      names.Held('x', {k: v for k, v in held.tensors.items() if k != 'd'}),
      SHAPES,
    )


class Packed(names.Held):
  """A source that writes columns itself, and counts how often."""

  num_columns = 0

  def columns(self, name, box, moves, out):
    Packed.num_columns += 1
    out[...] = moves(self.tensors[name][box]).T
    return True


@pytest.mark.parametrize('leaf', SHAPES)
def test_a_source_of_few_bits_writes_the_same(leaf, monkeypatch):
  monkeypatch.setattr(lazy, '_DECODED', 10)
  monkeypatch.setattr(Packed, 'num_columns', 0)
  rules = [*RULES[:-1], names.Rule('d', 'd', (), names.identity)]
  held = source()
  whole = names.fill(rules, held, SHAPES)[leaf]
  leaves = lazy.Leaves(rules, Packed('memory', held.tensors), SHAPES)
  for turned in (False, True):
    box = tuple(slice(0, size) for size in SHAPES[leaf])
    out = np.zeros(whole.shape, np.float32, order='F' if turned else 'C')
    leaves.read(leaf, box, out)
    np.testing.assert_array_equal(out, whole)
  # The transposed ones of `a`, and `d` where it is asked for turned.
  assert Packed.num_columns == {'a': 2, 'd': 1}.get(leaf, 0)
