# SPDX-License-Identifier: MIT
"""Acceptance profiles by name: what DFlash reaches on a few kinds of requests.

Tokens a round of Qwen3-8B with a block of 16, as an independent test of DFlash
(arXiv 2602.06036) reports them. How much requests and tokens differ is not
published; it is fitted once, to the seven numbers of D-cut's budget study
(`published.budget`), and used for every profile.
"""

from jspec import errors
from jspec.sim import acceptance

NUM_DRAFTS = 15  # that the numbers below were measured with
BETWEEN, WITHIN = 20.0, 0.5
TOKENS_PER_ROUND = {
  'MT-Bench': 4.26,
  'Alpaca': 3.04,
  'GSM8K': 6.48,
  'HumanEval': 6.52,
}
PROFILES = {
  'chat': ('MT-Bench', 'Alpaca'),
  'code': ('HumanEval',),
  'math': ('GSM8K',),
  'mixed': tuple(TOKENS_PER_ROUND),
}


def profile(spec: str, num_drafts: int) -> tuple[acceptance.Domain, ...]:
  """A profile by name, or of a number of tokens a round.

  Args:
    spec: `chat`, or `2.5` tokens a round when all drafts are verified.
    num_drafts: that a number is about; named profiles keep their easiness and
      commit fewer tokens where there are fewer drafts.

  Raises:
    UserError: neither; the message lists the names.
  """
  if spec in PROFILES:
    return tuple(
      of(TOKENS_PER_ROUND[domain], NUM_DRAFTS) for domain in PROFILES[spec]
    )
  try:
    number = float(spec)
  except ValueError:
    raise errors.UserError(
      f'no profile {spec!r}; there are {", ".join(PROFILES)}, or give the'
      ' tokens a round of a full draft, such as 2.5'
    ) from None
  return (of(number, num_drafts),)


def of(tokens_per_round: float, num_drafts: int) -> acceptance.Domain:
  """A domain with the spread of the budget study."""
  return acceptance.fit(
    tokens_per_round, num_drafts, between=BETWEEN, within=WITHIN
  )
