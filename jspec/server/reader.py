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
    self._is_parallel = is_parallel
    self._num_calls = 0

  def push(self, text: str, *, is_final: bool) -> answers.Answer:
    """Takes more text, the last with `is_final`; returns what is certain."""
    found = self._deltas.push(text)
    if is_final:
      found += self._deltas.finish()
    kept = []
    for call in found.tool_calls:
      self._num_calls += bool(call.name)
      if self._is_parallel or self._num_calls <= 1:
        kept.append(call)
    return dataclasses.replace(found, tool_calls=tuple(kept))
