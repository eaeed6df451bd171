# SPDX-License-Identifier: MIT
"""A real checkpoint writes the story its authors published."""

from tests import stories260k


def test_greedy_text_is_the_published_story():
  model = stories260k.load()
  ids = stories260k.greedy(model, 60)
  assert stories260k.decode(ids).startswith(stories260k.START)
