# SPDX-License-Identifier: MIT
r"""`Bandit`: tries the drafters and goes by the tokens a second they reach.

For each domain of prompts and each drafter the mean logarithm of tokens a
second, where old requests count less and less; the drafter with the highest

  mean + width * spread * sqrt(ln(n of all) / n of it)

drafts next (discounted UCB, Garivier and Moulines 2008). Logarithms make the
load of the machine, which slows all drafters alike, a term that all share.
What several requests at a time reach depends on one another, so tries are
spread out: requests that have not come back count as made.
"""

import dataclasses
import math
from collections.abc import Sequence

from jspec import errors
from jspec.routing import base, classify

LEAST_TOKENS = 8  # of an answer that says something of speed


@dataclasses.dataclass
class _Arm:
  """Discounted sums of one drafter in one domain."""

  weight: float = 0.0
  total: float = 0.0
  squares: float = 0.0
  num_away: int = 0

  @property
  def mean(self):
    return self.total / self.weight


class Bandit:
  """Learns which drafter is fastest, domain by domain."""

  def __init__(
    self,
    drafters: Sequence[str],
    *,
    half_life: int | float = 256.0,
    width: int | float = 1.0,
  ):
    """Knows nothing yet.

    Args:
      drafters: names to choose from.
      half_life: requests of a domain after which one counts half.
      width: of the confidence bound; 0 never tries again what looked worse.

    Raises:
      UserError: nobody to choose from, or a half-life that is no number of
        requests.
    """
    if not drafters or len(set(drafters)) != len(drafters):
      raise errors.UserError(
        f'routing by speed between {list(drafters)}: name one drafter or more,'
        ' each once'
      )
    if not half_life > 0:
      raise errors.UserError(
        f'routing by speed with half_life={half_life}: give a number of'
        ' requests above 0'
      )
    self._keep = 0.5 ** (1 / half_life)
    self._width = width
    self._arms = {
      domain: {drafter: _Arm() for drafter in drafters}
      for domain in classify.DOMAINS
    }

  def choose(self, request: base.Request) -> base.Choice:
    domain = classify.domain(request.text)
    arms = self._arms[domain]
    # What was never tried comes first, what is being tried last among it.
    new = [name for name in arms if not arms[name].weight]
    if new:
      drafter = min(new, key=lambda name: arms[name].num_away)
      why = f'not tried on {domain} yet'
    else:
      drafter = max(arms, key=lambda name: self._bound(arms, name))
      fastest = max(arms, key=lambda name: arms[name].mean)
      why = (
        f'fastest on {domain}'
        if drafter == fastest
        else (f'tried again on {domain}')
      )
    arms[drafter].num_away += 1
    return base.Choice(drafter, why, domain)

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    """Requests that others routed teach as well, if they name their domain."""
    arms = self._arms.get(choice.group, {})
    if choice.drafter not in arms:
      return
    arm = arms[choice.drafter]
    arm.num_away = max(arm.num_away - 1, 0)
    if result.num_tokens < LEAST_TOKENS or not result.seconds > 0:
      return
    for other in arms.values():
      other.weight *= self._keep
      other.total *= self._keep
      other.squares *= self._keep
    # The first token comes before the clock starts.
    value = math.log((result.num_tokens - 1) / result.seconds)
    arm.weight += 1
    arm.total += value
    arm.squares += value * value

  def tokens_per_second(self) -> dict[str, dict[str, float]]:
    """By domain and drafter, where there is a request to go by."""
    return {
      domain: {
        name: math.exp(arm.mean) for name, arm in arms.items() if arm.weight
      }
      for domain, arms in self._arms.items()
    }

  def _bound(self, arms, name):
    weight = sum(arm.weight for arm in arms.values())
    total = sum(arm.total for arm in arms.values())
    squares = sum(arm.squares for arm in arms.values())
    spread = math.sqrt(max(squares / weight - (total / weight) ** 2, 0.0))
    arm = arms[name]
    tries = arm.weight + arm.num_away
    bonus = math.sqrt(math.log(1 + weight) / tries)
    return arm.mean + self._width * spread * bonus
