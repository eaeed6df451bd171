# SPDX-License-Identifier: MIT
r"""`Stops`: ends a text at the first stop string, while the text comes.

  stops    ['\nUser', '##']
  pushes   'Hi\nU'    'ps, #'   '1 ##2'
  shown    'Hi'       '\nUps, ' '#1 '    and '##' was found

Shown is all but what may begin a stop string. The one that ends first counts;
of several that end at the same character, the longest. So the result does not
depend on how the text was cut into pushes.
"""

from collections.abc import Sequence

from jspec import errors


class Stops:
  """Watches one text for stop strings."""

  def __init__(self, strings: Sequence[str] = (), *, include: bool = False):
    """Begins a text.

    Args:
      strings: the stop strings; none: all text is shown at once.
      include: show the stop string that was found.

    Raises:
      UserError: one of them is empty: every text would end before it begins.
    """
    if isinstance(strings, str):
      strings = (strings,)
    if '' in strings:
      raise errors.UserError(
        "stop string '' would end every answer at once; leave it out"
      )
    self._strings = tuple(strings)
    self._include = include
    self._held = ''
    self.found = None

  def push(self, text: str) -> tuple[str, str | None]:
    """Takes more text.

    Returns:
      What may be shown now, and the stop string if one was found. After that
      nothing is shown any more.
    """
    if self.found is not None:
      return '', self.found
    if not self._strings:
      return text, None
    text = self._held + text
    ends = [
      (start + len(string), -len(string), string)
      for string in self._strings
      if (start := text.find(string)) >= 0
    ]
    if ends:
      end, minus_len, self.found = min(ends)
      self._held = ''
      return text[: end if self._include else end + minus_len], self.found
    start = begin(text, self._strings)
    self._held = text[start:]
    return text[:start], None

  def finish(self) -> str:
    """Returns what was held back and, as nothing follows, is no stop string."""
    held, self._held = self._held, ''
    return held


def begin(text: str, strings: Sequence[str]) -> int:
  """Returns where the end of a text may begin one of the strings."""
  longest = max(map(len, strings), default=0)
  for start in range(max(0, len(text) - longest + 1), len(text)):
    if any(string.startswith(text[start:]) for string in strings):
      return start
  return len(text)
