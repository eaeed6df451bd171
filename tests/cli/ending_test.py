# SPDX-License-Identifier: MIT
"""However one of several processes ends, the others end with its cause."""

import pytest

from tests.cli import ending

pytestmark = pytest.mark.slow

GONE = (
  'error: process {} is gone: see its output; the same command goes on from the'
  ' newest checkpoint\n'
)
OWN = 'error: process {} has no "room": ä\n'


def whats(num_processes, **of):
  return [of.get(f'p{i}', 'run') for i in range(num_processes)]


def test_processes_that_all_come_to_the_end_say_nothing():
  assert ending.run(whats(3)) == ([''] * 3, [0] * 3)


@pytest.mark.parametrize('lost', [0, 1, 2])
def test_one_that_is_killed_ends_the_others_with_a_line(lost):
  texts, codes = ending.run(whats(3, **{f'p{lost}': 'kill'}))
  assert codes.pop(lost) == -9
  assert codes == [2, 2], '\n'.join(texts)
  texts.pop(lost)
  assert texts == [GONE.format(lost)] * 2


@pytest.mark.parametrize('failed', [0, 2])
def test_one_that_fails_tells_the_others_its_error(failed):
  texts, codes = ending.run(whats(3, **{f'p{failed}': 'fail'}))
  assert codes == [2, 2, 2], '\n'.join(texts)
  own = OWN.format(failed)
  assert texts.pop(failed) == own
  assert texts == [own.replace('error: ', f'error: process {failed}: ')] * 2


def test_those_that_all_fail_tell_their_own():
  texts, codes = ending.run(['fail'] * 3)
  assert codes == [2, 2, 2], '\n'.join(texts)
  assert texts == [OWN.format(i) for i in range(3)]


def test_a_fault_of_the_program_is_told_and_traced_where_it_is():
  texts, codes = ending.run(whats(2, p1='break'))
  assert codes == [2, 1], '\n'.join(texts)
  assert texts[0] == 'error: process 1: ValueError: of the program\n'
  assert 'Traceback' in texts[1] and texts[1].count('error: ') == 1
