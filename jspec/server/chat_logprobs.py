# SPDX-License-Identifier: MIT
"""`logprobs` of a chat: every token with its bytes, and the likeliest others.

A token that only begins a character has no text of its own; its bytes do.
"""

from collections.abc import Sequence
from typing import Any

from jspec.server import answering
from jspec.text import tokenizer as tokenizer_lib

# JSON has no infinity; this is OpenAI's.
LEAST = -9999.0


def entries(
  tokenizer: tokenizer_lib.Tokenizer,
  tokens: Sequence[answering.Token],
  num_top: int,
  stop_ids: Sequence[int],
) -> list[dict[str, Any]]:
  """Tokens in OpenAI's shape; the one that ends the turn is no part of it."""
  return [
    {
      **_token(tokenizer, token.id, token.said.logprob),
      'top_logprobs': [
        _token(tokenizer, other, value)
        for other, value in token.said.top[:num_top]
      ],
    }
    for token in tokens
    if token.text or token.id not in stop_ids
  ]


def whole(
  found: Sequence[dict[str, Any]] | None,
) -> dict[str, Any] | None:
  """The field of a choice; None where it was not asked for."""
  return None if found is None else {'content': found, 'refusal': None}


def _token(tokenizer, token, logprob):
  pieces = tokenizer.pieces
  return {
    'token': pieces.token_text(token),
    'logprob': max(logprob, LEAST),
    'bytes': list(pieces.token_bytes(token)),
  }
