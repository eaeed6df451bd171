# SPDX-License-Identifier: MIT
"""`Reader`: a turn as it comes: thought, content, and the calls that count."""

import dataclasses

from jspec.text import answers


class Reader:
  """Reads one turn by its format (`text.answers`)."""

  def __init__(self, form: answers.Format, *, is_parallel: bool):
    """Begins a turn.

    Args:
      form: what it may hold.
      is_parallel: whether more than its first call counts.
    """
    self._deltas = answers.Deltas(form)
    self._most = None if is_parallel else 1

  def push(self, text: str, *, is_final: bool) -> answers.Answer:
    """Takes more text, the last with `is_final`; returns what is certain."""
    found = self._deltas.push(text)
    if is_final:
      found += self._deltas.finish()
    if self._most is None:
      return found
    calls = found.tool_calls[: self._most]
    self._most -= len(calls)
    return dataclasses.replace(found, tool_calls=calls)
