# SPDX-License-Identifier: MIT
"""How each token of a choice came, for who asks (`speculative.details`).

  {"token_ids": [260, 3093, 314], "origins": ["draft", "draft", "bonus"],
   "texts": [" the", " sky", " is"], "rounds": 1, "drafted": 3,
   "drafter": "ngram", "why": "the prompt looks like code"}

Three drafts were verified in one round, two were accepted and the target added
a third token. A round ends with the bonus, or with a plain token if nothing was
drafted in it. In a stream a token is told when its text is settled, which may
be later than its round.
"""

from typing import Any

from jspec.routing import base
from jspec.server import answering
from jspec.server.protocol import common


def wanted(body: common.Sampled) -> bool:
  """Whether a request asks for them."""
  return body.speculative is not None and body.speculative.details


def of(
  body: common.Sampled,
  told: answering.Answer | answering.Piece,
  route: base.Choice | None,
) -> dict[str, Any]:
  """The field of a choice, or nothing.

  Args:
    body: of the request.
    told: the choice, or what a chunk tells of it.
    route: who drafts, and why.
  """
  if not wanted(body):
    return {}
  return {
    'speculative': {
      'token_ids': [token.id for token in told.settled],
      'texts': [token.text for token in told.settled],
      'origins': [token.origin for token in told.settled],
      'rounds': told.num_rounds,
      'drafted': told.num_drafted,
      **({'drafter': route.drafter, 'why': route.why} if route else {}),
    }
  }
