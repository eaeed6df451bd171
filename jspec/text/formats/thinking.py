# SPDX-License-Identifier: MIT
"""`Tags`: a thought in front of the answer.

  <think>
  Paris is in France.
  </think>

  In France.

Only at the start of an answer; later the same tags are text like any other. A
template may write the opening tag itself, so that the answer begins within the
thought. White space next to the tags is no part of thought or answer.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tags:
  """What a thought stands between."""

  open: str
  close: str

  @property
  def marks(self) -> tuple[str, str]:
    """Spellings that may be special tokens and must then be kept in text."""
    return self.open, self.close

  def is_open(self, written: str) -> bool:
    """Whether an answer would begin within a thought.

    Args:
      written: what the template writes of the assistant's turn, its opening
        (and what a turn that is continued has already). Not the whole prompt: a
        user who mentions a tag opens nothing.
    """
    return written.rfind(self.open) > written.rfind(self.close)


THINK = Tags('<think>', '</think>')
MISTRAL = Tags('[THINK]', '[/THINK]')
