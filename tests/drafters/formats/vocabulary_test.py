# SPDX-License-Identifier: MIT
"""Maps of a reduced vocabulary: never read with the wrong convention."""

import numpy as np
import pytest

from jspec import errors
from jspec.drafters.formats import layouts, vocabulary
from tests.drafters.formats import tiny

IDS, V = tiny.IDS.astype(np.int64), tiny.VOCAB
OFFSETS = IDS - np.arange(len(IDS))
MARKS = np.isin(np.arange(V), IDS)


def test_offsets_are_told_by_the_marks():
  np.testing.assert_array_equal(vocabulary.read(OFFSETS, MARKS, V), IDS)


def test_absolute_ids_are_told_by_the_marks():
  np.testing.assert_array_equal(vocabulary.read(IDS, MARKS, V), IDS)


def test_absolute_ids_are_told_by_their_range():
  """As offsets they would reach 39 + 7."""
  np.testing.assert_array_equal(vocabulary.read(IDS, None, V), IDS)


def test_offsets_are_told_because_they_repeat():
  """0 0 .. as absolute ids would name a token twice."""
  first = np.zeros(5, np.int64)
  np.testing.assert_array_equal(
    vocabulary.read(first, None, V), [0, 1, 2, 3, 4]
  )


def test_identity_of_the_whole_vocabulary_is_read_either_way():
  for stored in (np.zeros(V, np.int64), np.arange(V)):
    np.testing.assert_array_equal(
      vocabulary.read(stored, None, V), np.arange(V)
    )


def test_ambiguous_map_asks_and_takes_the_answer():
  few = np.arange(8)
  with pytest.raises(errors.UserError, match='token 1: 2 or 1.*--set d2t='):
    vocabulary.read(few, None, V)
  np.testing.assert_array_equal(vocabulary.read(few, None, V, 'absolute'), few)
  np.testing.assert_array_equal(
    vocabulary.read(few, None, V, 'offset'), 2 * few
  )
  with pytest.raises(errors.UserError, match='expected offset or absolute'):
    vocabulary.read(few, None, V, 'guess')


@pytest.mark.parametrize(
  'd2t, t2d, message',
  [
    (IDS + 30, None, r'ids 30\.\.76 .*0\.\.39.*ids 30\.\.69'),
    (IDS - 50, None, r'-50'),
    (np.asarray([1, 1, 0, 5, 5]), MARKS, '5 entries name 3|t2d marks 8'),
    (np.zeros(8, np.int64), np.ones(V, bool), 't2d marks 40.*d2t names 8'),
    (OFFSETS, MARKS[:-1], r't2d is \[39\], vocab_size is 40'),
    (OFFSETS[None], None, r'shape \[1, 8\]'),
    (OFFSETS.astype(np.float32), None, 'float32'),
  ],
)
def test_map_that_fits_neither_way_is_refused(d2t, t2d, message):
  with pytest.raises(errors.UserError, match=message):
    vocabulary.read(d2t, t2d, V)


@pytest.mark.parametrize(
  'name, layout',
  [
    ('eagle3', 'eagle'),
    ('eagle3', 'sglang'),
    ('specblock', 'specblock'),
    ('dfly', 'vllm'),
    ('dflare', 'angelspec'),
  ],
)
def test_reduced_vocabulary_goes_there_and_back(name, layout):
  config, tensors = tiny.reduced(name)
  target = tiny.target()
  foreign, theirs = layouts.from_native(config, tensors, layout, target)
  np.testing.assert_array_equal(theirs['d2t'], OFFSETS)
  if layout in ('eagle', 'sglang', 'specblock'):
    np.testing.assert_array_equal(theirs['t2d'], MARKS)
  back, ours = layouts.to_native(foreign, theirs, {}, target)
  assert back == config
  assert tiny.same(ours, tensors)


def test_reduced_head_of_deepspec_has_the_rows_of_the_target():
  config, tensors = tiny.reduced('dflash', label_shift=1)
  target = tiny.target()
  foreign, theirs = layouts.from_native(config, tensors, 'deepspec', target)
  np.testing.assert_array_equal(theirs['lm_head.weight'], target.head[IDS])
  back, ours = layouts.to_native(foreign, theirs, {}, target)
  assert back == config
  theirs['lm_head.weight'] = target.head[IDS + (IDS < 39)]
  with pytest.raises(errors.UserError, match="not this target's"):
    layouts.to_native(foreign, theirs, {}, target)


def test_head_follows_ids_that_are_not_ascending():
  config, tensors = tiny.reduced('eagle3')
  foreign, theirs = layouts.from_native(config, tensors, 'sglang')
  order = np.asarray([3, 1, 7, 0, 2, 6, 5, 4])
  theirs['d2t'] = IDS[order]
  theirs['lm_head.weight'] = theirs['lm_head.weight'][order]
  _, ours = layouts.to_native(foreign, theirs)
  assert tiny.same(ours, tensors)


@pytest.mark.parametrize(
  'drop, keys, message',
  [
    (('d2t', 't2d'), {}, 'draft_vocab_size is 8, vocab_size 40.*no tensor d2t'),
    ((), {'draft_vocab_size': 9}, 'draft_vocab_size is 9, but d2t has 8'),
  ],
)
def test_reduced_vocabulary_without_its_map_is_refused(drop, keys, message):
  foreign, theirs = layouts.from_native(*tiny.reduced('eagle3'), 'sglang')
  theirs = {n: t for n, t in theirs.items() if n not in drop}
  with pytest.raises(errors.UserError, match=message):
    layouts.to_native({**foreign, **keys}, theirs)


def test_map_of_the_whole_vocabulary_is_dropped():
  config, tensors = tiny.native('eagle3')
  foreign, theirs = layouts.from_native(config, tensors, 'sglang')
  theirs['d2t'] = np.zeros(V, np.int64)
  theirs['t2d'] = np.ones(V, bool)
  back, ours = layouts.to_native(foreign, theirs)
  assert back == config
  assert tiny.same(ours, tensors)
