# SPDX-License-Identifier: MIT
"""Flags of `jspec train` for several processes."""

import argparse

import pytest

from jspec import errors
from jspec.cli import processes


def flags(*words):
  parser = argparse.ArgumentParser()
  processes.add(parser)
  return parser.parse_args(words)


def test_without_flags_there_is_nobody_else():
  with processes.joined(flags()) as num_processes:
    assert num_processes == 1


def test_what_is_raised_is_passed_on_where_there_is_nobody_else():
  with pytest.raises(errors.UserError, match='as it was'):
    with processes.joined(flags()):
      raise errors.UserError('as it was')


@pytest.mark.parametrize(
  'words, message',
  [
    (['--coordinator', '10.0.0.2:1'], 'need --coordinator, --num-processes'),
    (['--process-id', '0', '--num-processes', '2'], 'need --coordinator'),
    (
      ['--coordinator=h:x', '--process-id=0', '--num-processes=2'],
      'no HOST:PORT',
    ),
  ],
)
def test_flags_that_do_not_go_together_are_refused(words, message):
  with pytest.raises(errors.UserError, match=message):
    with processes.joined(flags(*words)):
      pass
