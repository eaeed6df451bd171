# SPDX-License-Identifier: MIT
"""POST /tokenize and /detokenize: what the target sees, and says."""

import asyncio
from typing import Any

from starlette.requests import Request

from jspec.server import asking, bodies, turns
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.server.protocol import tokens as protocol


async def tokenize(
  request: Request, served: served_lib.Served
) -> dict[str, Any]:
  """The ids of a text or of a conversation."""
  body = await bodies.read(request, protocol.TokenizeRequest, served.limits)
  served.check_model(body.model)
  if body.prompt is not None:
    ids = await asking.encode(
      served, body.prompt, add_special=body.add_special_tokens
    )
  else:
    ids = await asking.encode(
      served,
      await turns.render(
        served,
        [message.model_dump(exclude_none=True) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt,
      ),
      add_special=False,
    )
  found = {
    'tokens': ids,
    'count': len(ids),
    'max_model_len': served.context_len,
  }
  if body.return_token_strs:
    spelled = served.target.tokenizer.pieces.token_text
    found['token_strs'] = [spelled(token) for token in ids]
  return found


async def detokenize(
  request: Request, served: served_lib.Served
) -> dict[str, Any]:
  """The text of ids."""
  body = await bodies.read(request, protocol.DetokenizeRequest, served.limits)
  served.check_model(body.model)
  if body.tokens and max(body.tokens) >= served.vocab_size:
    raise api_errors.ApiError(
      400,
      f'tokens holds {max(body.tokens)} and the vocabulary has'
      f' {served.vocab_size}',
      param='tokens',
    )
  text = await asyncio.to_thread(
    served.target.tokenizer.decode, body.tokens, skip_special=False
  )
  return {'prompt': text}
