# SPDX-License-Identifier: MIT
"""What results say about their prompts."""

from jspec.data import sources
from jspec.evals import prompts


def test_digest_tells_prompts_and_order_apart():
  a, b = sources.Prompt('a', ('x', 'y')), sources.Prompt('b', ('z',))
  other = sources.Prompt('a', ('x', 'z'))
  lists = ([a, b], [b, a], [a], [other, b])
  assert len({prompts.digest(x) for x in lists}) == 4
  assert prompts.digest([a, b]) == prompts.digest(
    [sources.Prompt('a', ('x', 'y'), 'math'), b]
  )
  assert prompts.domain_of(a) == ''
  assert prompts.domain_of(sources.Prompt('a', ('x',), 'math')) == 'math'
