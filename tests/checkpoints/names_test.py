# SPDX-License-Identifier: MIT
"""Rename tables: what fits is read once, what does not is listed whole."""

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import names


class Memory:
  """A checkpoint in memory that counts its reads."""

  where = 'memory'

  def __init__(self, tensors):
    self.tensors = tensors
    self.reads = []

  def names(self):
    return self.tensors.keys()

  def shape(self, name):
    return self.tensors[name].shape

  def read(self, name):
    self.reads.append(name)
    return self.tensors[name]

  def part(self, name, box):
    return self.tensors[name][box]


def source():
  rng = np.random.default_rng(0)
  return Memory(
    {
      'a.0': rng.normal(size=(3, 4)).astype(np.float32),
      'a.1': rng.normal(size=(3, 4)).astype(np.float32),
      'b.0': rng.normal(size=(2, 4)).astype(np.float32),
      'b.1': rng.normal(size=(2, 4)).astype(np.float32),
      'norm': rng.normal(size=(4,)).astype(np.float32),
    }
  )


SHAPES = {'ab': (2, 4, 5), 'norm': (4,)}


def rules():
  out = [names.Rule('norm', 'norm')]
  for i in range(2):
    first, second = slice(0, 3), slice(3, None)
    out += [
      names.Rule(f'a.{i}', 'ab', (i, names.ALL, first), names.transpose),
      names.Rule(f'b.{i}', 'ab', (i, names.ALL, second), names.transpose),
    ]
  return out


def test_leaves_hold_transposed_and_fused_tensors():
  memory = source()
  seen = []
  leaves = names.fill(
    rules(), memory, SHAPES, on_tensor=lambda *x: seen.append(x)
  )
  np.testing.assert_array_equal(leaves['ab'][1, :, :3], memory.read('a.1').T)
  np.testing.assert_array_equal(leaves['ab'][0, :, 3:], memory.read('b.0').T)
  np.testing.assert_array_equal(leaves['norm'], memory.read('norm'))
  assert sorted(memory.reads[:5]) == sorted(memory.names())
  assert seen == [(i, 5) for i in range(1, 6)]


def test_all_problems_are_reported_together_before_reading():
  memory = source()
  memory.tensors['extra'] = np.zeros(1)
  del memory.tensors['a.0']
  memory.tensors['b.0'] = np.zeros((4, 2))
  with pytest.raises(errors.UserError) as caught:
    names.fill(rules(), memory, SHAPES)
  message = str(caught.value)
  assert 'a.0 is missing' in message
  assert 'extra is not known' in message
  assert 'b.0 has shape (4, 2), not (2, 4)' in message
  assert '\n' not in message
  assert not memory.reads


def test_ignored_tensor_is_accepted_only_when_named():
  memory = source()
  memory.tensors['inv_freq'] = np.zeros(1)
  names.fill(rules(), memory, SHAPES, ignored=['inv_freq'])
  with pytest.raises(errors.UserError, match='inv_freq'):
    names.fill(rules(), memory, SHAPES)


def test_source_used_twice_is_refused():
  twice = rules()[:-1] + [
    names.Rule('b.0', 'ab', (1, names.ALL, slice(3, None)), names.transpose)
  ]
  with pytest.raises(errors.UserError, match='b.0 is used 2 times'):
    names.fill(twice, source(), SHAPES, ignored=['b.1'])


@pytest.mark.parametrize('box', [(1,), (1, names.ALL, slice(0, 2))])
def test_overlapping_or_partial_leaf_is_refused(box):
  wrong = [
    names.Rule('norm', 'norm'),
    names.Rule('a.0', 'ab', box, names.transpose),
    names.Rule('a.1', 'ab', (1,), names.transpose),
  ]
  problems = names.check(wrong, source(), SHAPES)
  assert any('leaf ab' in p for p in problems)


def test_same_volume_with_overlap_and_hole_is_refused():
  # Half of layer 0 twice: the volumes add up, the cover does not.
  half = (slice(0, 1), slice(0, 2))
  shapes = {'x': (2, 2)}
  memory = Memory({n: np.zeros((1, 2)) for n in 'pq'})
  wrong = [names.Rule('p', 'x', half), names.Rule('q', 'x', half)]
  assert names.check(wrong, memory, shapes)
  right = [wrong[0], names.Rule('q', 'x', (slice(1, 2), slice(0, 2)))]
  assert not names.check(right, memory, shapes)


def test_long_reports_are_cut():
  memory = Memory({f't{i}': np.zeros(1) for i in range(40)})
  with pytest.raises(errors.UserError, match='and 28 more'):
    names.fill([], memory, {})
