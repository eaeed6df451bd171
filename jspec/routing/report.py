# SPDX-License-Identifier: MIT
"""`Reported`: a router that counts what it chose, why, and how it went."""

import dataclasses

from jspec.routing import base


@dataclasses.dataclass
class Line:
  """Requests that were routed alike.

  Attributes:
    num_requests: routed so.
    num_tokens: that those which ended were answered.
    num_rounds: that these took.
    seconds: likewise.
  """

  num_requests: int = 0
  num_tokens: int = 0
  num_rounds: int = 0
  seconds: float = 0.0


class Reported:
  """Another router, with a count for each drafter and reason."""

  def __init__(self, router: base.Router, default: str | None = None):
    """Takes the router, and who drafts where it does not decide."""
    self._router, self._default = router, default
    self._lines = {}

  def choose(self, request: base.Request) -> base.Choice:
    choice = self._router.choose(request)
    if choice is None:
      choice = base.Choice(self._default, 'nobody decided')
    self._line(choice).num_requests += 1
    return choice

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    line = self._line(choice)
    line.num_tokens += result.num_tokens
    line.num_rounds += result.num_rounds
    line.seconds += result.seconds
    self._router.observe(choice, result)

  def rows(self) -> list[dict[str, str | int | float | None]]:
    """What was chosen and why, the most frequent first, for JSON."""
    order = sorted(self._lines.items(), key=lambda x: -x[1].num_requests)
    return [
      {
        'drafter': drafter,
        'why': why,
        **dataclasses.asdict(line),
        'tokens_per_second': _ratio(line.num_tokens, line.seconds),
        'tokens_per_round': _ratio(line.num_tokens, line.num_rounds),
      }
      for (drafter, why), line in order
    ]

  def _line(self, choice):
    return self._lines.setdefault((choice.drafter, choice.why), Line())


def _ratio(a, b):
  return a / b if b else None
