# SPDX-License-Identifier: MIT
"""A drafter on the host drafts, and when it breaks only drafts are lost."""

import numpy as np
import pytest

from jspec.decode import sampling
from jspec.drafters import suffix
from jspec.serve import asks
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.serve import compiles, small

pytestmark = pytest.mark.slow

GREEDY = sampling.SamplingParams(max_tokens=24)


class Fragile:
  """A host that does something else at its fourth call."""

  def __init__(self, host, instead):
    self.host, self.instead, self.num_calls = host, instead, 0

  def propose(self, *args):
    self.num_calls += 1
    if self.num_calls == 4:
      return self.instead(*args)
    return self.host.propose(*args)


def broken(*args):
  raise OSError('no such file')


def no_tree(buffer, lengths, anchor, rows):
  del buffer, lengths, rows
  shape = len(anchor), 5
  parents = np.full(shape, 4, np.int32)
  return (
    np.zeros(shape, np.int32),
    parents,
    np.full(shape[0], 5),
    np.ones(shape),
  )


def too_many(buffer, lengths, anchor, rows):
  del buffer, lengths, rows
  chain = np.tile(np.arange(-1, 4), (len(anchor), 1))
  return chain + 2, chain, np.full(len(anchor), 9), np.ones(chain.shape)


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN)


@pytest.fixture(scope='module')
def plain(target):
  return small.make(target, None)


@pytest.fixture(scope='module')
def drafter():
  return suffix.Suffix(suffix.Config(num_draft_tokens=4, min_prob=0.0))


@pytest.fixture
def served(target, drafter):
  return small.make(target, drafter)


def mixed():
  return [asks.Ask(params=params) for params in small.requests()]


def test_drafts_are_accepted_and_change_no_token(plain, served):
  prompts = [prompt * 2 for prompt in small.prompts()[:4]]
  for wanted in (GREEDY, mixed()[:4]):
    got = offline_lib.generate(served, prompts, wanted)
    assert got == offline_lib.generate(plain, prompts, wanted)
    assert served.metrics.num_accepted.sum() > 9
  with compiles.counted() as found:
    offline_lib.generate(served, small.prompts(), mixed())
  assert not found
  # Without drafts there is nothing to ask, and several rounds a launch.
  served.forms.pinned = 'plain'
  before = served.metrics.num_split
  offline_lib.generate(served, prompts, GREEDY)
  assert served.metrics.num_split == before
  assert served.metrics.drafter_problem == ''


@pytest.mark.parametrize(
  ('instead', 'problem'),
  [
    (broken, 'OSError: no such file'),
    (no_tree, 'UserError: row 0 of the draft: node 0 has parent 4'),
    (too_many, 'UserError: draft.num_nodes is [9'),
  ],
)
def test_answers_go_on_when_it_breaks(plain, served, instead, problem):
  served._host._host = Fragile(served._host._host, instead)
  with pytest.warns(RuntimeWarning, match='is switched off') as said:
    got = offline_lib.generate(served, small.prompts(), mixed())
  assert len(said) == 1
  assert got == offline_lib.generate(plain, small.prompts(), mixed())
  assert served.metrics.drafter_problem.startswith(problem)
  assert served._host._host.num_calls == 4
  before = served.metrics.num_drafted.sum()
  offline_lib.generate(served, small.prompts(), GREEDY)
  assert served.metrics.num_drafted.sum() == before > 0
