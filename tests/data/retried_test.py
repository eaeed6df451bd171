# SPDX-License-Identifier: MIT
"""A read that fails now and then is tried again; one that always does is not
hidden.
"""

import errno

import pytest

from jspec import errors
from jspec.data import retried

EIO = OSError(errno.EIO, 'Input/output error')


class Flaky:
  """Fails so many times before an element is read."""

  documents = ('a', 'b', 'c')

  def __init__(self, num_failures, error):
    self.num_failures = num_failures
    self.error = error
    self.num_reads = 0

  def __len__(self):
    return 3

  def __getitem__(self, number):
    self.num_reads += 1
    if self.num_reads <= self.num_failures:
      raise self.error
    return number


def explained(cause):
  error = errors.UserError('record 3 is damaged')
  error.__cause__ = cause
  return error


def read(source, max_retries=3):
  pauses = []
  found = retried.Retried(source, max_retries, sleep=pauses.append)
  return found, pauses


@pytest.mark.parametrize(
  'error',
  [EIO, TimeoutError('slow'), explained(EIO), explained(RuntimeError('pread'))],
)
def test_read_that_works_a_moment_later_is_counted(error):
  source, pauses = read(Flaky(2, error))
  assert [source[n] for n in range(3)] == [0, 1, 2]
  assert source.num_retries == 2 and pauses == [0.2, 0.4]
  assert len(source) == 3 and source.documents == Flaky.documents


@pytest.mark.parametrize('max_retries', [0, 1, 3])
def test_read_that_always_fails_is_raised_after_the_tries(max_retries):
  flaky = Flaky(9, EIO)
  source, pauses = read(flaky, max_retries)
  with pytest.raises(OSError, match='Input/output'):
    source[0]
  assert flaky.num_reads == max_retries + 1
  assert source.num_retries == len(pauses) == max_retries


@pytest.mark.parametrize(
  'error',
  [
    FileNotFoundError('absent'),
    explained(PermissionError('not yours')),
    errors.UserError('record 3 is damaged (checksum)'),
    KeyError('a defect'),
  ],
)
def test_what_no_try_can_mend_is_raised_at_once(error):
  flaky = Flaky(1, error)
  source, pauses = read(flaky)
  with pytest.raises(type(error)):
    source[0]
  assert flaky.num_reads == 1 and not pauses
