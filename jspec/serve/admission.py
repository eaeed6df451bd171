# SPDX-License-Identifier: MIT
"""What can be refused before a request waits.

A request that passes fits the pool alone, so it will be served. Its answer may
be cut to what the context holds behind the prompt; the public limit is met
exactly, since what drafts need is never part of it.
"""

from jspec import errors
from jspec.serve import config as config_lib
from jspec.serve import requests


def max_tokens(
  request: requests.Request, config: config_lib.SchedulerConfig
) -> int:
  """Tokens that the request may emit.

  Raises:
    UserError: the prompt is empty or leaves no room for an answer, in the
      context or in the pool; or no answer is wanted.
  """
  name, num_tokens = f'request {request.id!r}', len(request.prompt)
  _check(num_tokens > 0, f'{name}: the prompt is empty; give it a token')
  _check(
    request.max_tokens >= 1,
    f'{name}: max_tokens={request.max_tokens}; give at least 1',
  )
  _check(
    num_tokens < config.max_len,
    f'{name}: the prompt has {num_tokens} tokens, and the context of'
    f' {config.max_len} must hold it and one token of the answer; shorten it',
  )
  _check(
    num_tokens < config.limit,
    f'{name}: the prompt has {num_tokens} tokens, and the pool of'
    f' {config.num_pages} pages of {config.page_size} must hold it and one'
    ' token of the answer; shorten it or raise num_pages',
  )
  return min(request.max_tokens, config.limit - num_tokens)


def _check(is_good, message):
  if not is_good:
    raise errors.UserError(message)
