# SPDX-License-Identifier: MIT
"""Every answer goes to the drafter that suits it, and tells how it went.

  choose -> the engine -> events -> Progress -> observe, at whatever end

Also where nothing comes of it: the client left, the queue was full, the engine
refused or broke.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jspec.routing import base
from jspec.serve import asks
from jspec.server import served as served_lib
from jspec.server import streams
from jspec.server.protocol import common


def send(
  served: served_lib.Served,
  name: str,
  prompts: Sequence[Sequence[int]],
  wanted: Sequence[asks.Ask],
  *,
  model: str | None,
  speculative: common.Speculative | None,
  texts: Sequence[str],
) -> streams.Stream:
  """Sends a request to the engine, each answer to the drafter that suits it.

  Args:
    served: whose engine.
    name: of the request.
    prompts: for each answer.
    wanted: what is asked of each; who drafts is decided here.
    model: that the request names.
    speculative: what it says of drafts.
    texts: what each answer is judged by.

  Raises:
    Exception: as `Driver.open`.
  """
  router = served.routes.router
  named = None if speculative is None else speculative.method
  choices = [
    router.choose(base.Request(model or served.names[0], named, text))
    for text in texts
  ]
  routed = [
    dataclasses.replace(ask, drafter=served.drafter(choice.drafter))
    for ask, choice in zip(wanted, choices, strict=True)
  ]
  try:
    stream = served.driver.open(name, prompts, routed)
  except Exception:
    for choice in choices:
      router.observe(choice, base.Result(0, 0.0, 0))
    raise
  stream.routes = choices
  stream.on_end = lambda index: router.observe(
    choices[index], result(stream.progress[index])
  )
  return stream


def result(made: streams.Progress) -> base.Result:
  """What an answer reached.

  Its first tokens come all at once, and how long they took nobody saw; they are
  taken to have come as fast as the others.
  """
  num_seen = made.num_tokens - made.num_first
  seconds = 0.0
  if num_seen > 0:
    seconds = (made.last_s - made.first_s) * (made.num_tokens - 1) / num_seen
  return base.Result(made.num_tokens, seconds, made.num_rounds)


def last_text(messages: Sequence[Mapping[str, Any]]) -> str:
  """What the user said last, by which a conversation is judged."""
  for message in reversed(messages):
    if message.get('role') == 'user':
      content = message.get('content') or ''
      if isinstance(content, str):
        return content
      return ''.join(part.get('text', '') for part in content)
  return ''
