# SPDX-License-Identifier: MIT
"""`Answer`: one answer as its events come, in what clients are told.

The text is what is shown (`text.delivery`): stop strings end it where they
begin, and tokens count up to the one in which a stop string ended. An answer
that is ended so is still alive in the engine; whoever reads must drop it.
"""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from jspec.serve import asks
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.server import streams
from jspec.text import delivery, incremental
from jspec.text import stops as stops_lib

# A character that the prompt began, and blanks between tokens, are found there.
_PROMPT_TAIL = 16


class Token(NamedTuple):
  """A token whose text is settled.

  Attributes:
    text: that it shows; '' for a token that only begins a character.
    id: of it.
    origin: how it came (`asks.Event.origins`).
    said: what the model said of it; None if that was not asked for.
  """

  text: str
  id: int
  origin: str
  said: asks.TokenLogprobs | None


@dataclasses.dataclass(frozen=True)
class Piece:
  """What one event told of one answer.

  Attributes:
    index: of the answer.
    text: that may be shown now.
    num_tokens: that count.
    settled: tokens whose text is known now; together they are the text, and
      may lag behind it. Empty if nobody asked.
    num_rounds, num_drafted: of the drafts behind it.
    prompt_logprobs: of prompt tokens, in order.
    finish_reason: 'stop' or 'length', with the last piece.
  """

  index: int
  text: str
  num_tokens: int = 0
  settled: tuple[Token, ...] = ()
  num_rounds: int = 0
  num_drafted: int = 0
  prompt_logprobs: tuple[asks.TokenLogprobs, ...] = ()
  finish_reason: str | None = None


class Answer:
  """One answer, from its first event to its last.

  Attributes:
    text: shown so far.
    settled: its tokens, if somebody asked.
    num_rounds, num_drafted, num_accepted: of the drafts behind them.
    num_cached: prompt tokens that were found in the prefix cache.
    finish_reason: 'stop' or 'length'; None while it goes on.
  """

  def __init__(
    self,
    served: served_lib.Served,
    index: int,
    *,
    prompt: Sequence[int] = (),
    stops: Sequence[str] = (),
    include_stop: bool = False,
    keep: Sequence[str] = (),
    tells_tokens: bool = False,
    is_empty: bool = False,
  ):
    """Begins an answer.

    Args:
      served: whose.
      index: its place in the request.
      prompt: what it continues; none for a turn of a chat.
      stops: strings that end it.
      include_stop: the one that did is shown.
      keep: special tokens that are part of the text.
      tells_tokens: somebody wants to know of each token.
      is_empty: no token is wanted; the engine's first ends it.
    """
    self.text = ''
    self.settled = []
    self.num_rounds = self.num_drafted = self.num_accepted = 0
    self.num_cached = 0
    self.finish_reason = None
    self._index, self._is_empty = index, is_empty
    self._tells_tokens = tells_tokens
    self._delivery = delivery.Delivery(
      incremental.Detokenizer(
        served.target.tokenizer, list(prompt)[-_PROMPT_TAIL:], keep=keep
      ),
      stops_lib.Stops(stops, include=include_stop),
    )
    self._waiting = []  # Tokens whose text is not settled.

  @property
  def num_tokens(self) -> int:
    """Tokens that count."""
    return self._delivery.num_tokens

  def take(self, event: asks.Event) -> Piece:
    """Takes in what the engine said.

    Raises:
      ApiError: the answer failed.
    """
    if event.finish_reason == 'failed':
      raise api_errors.ApiError(500, event.problem, code='generation_failed')
    self.num_cached = max(self.num_cached, event.num_cached)
    if self._is_empty and event.tokens:
      event = asks.Event(
        request_id=event.request_id,
        prompt_logprobs=event.prompt_logprobs,
        finish_reason='length',
      )
    before = self.num_tokens
    found = self._delivery.push(event.tokens)
    num_tokens = self.num_tokens - before
    origins = event.origins[:num_tokens]
    self.num_rounds += event.num_rounds
    self.num_drafted += event.num_drafted
    self.num_accepted += origins.count(asks.DRAFT)
    text, pieces = found.text, found.pieces
    self.finish_reason = event.finish_reason
    if found.stop is not None:
      self.finish_reason = 'stop'
    elif event.finish_reason is not None:
      last = self._delivery.finish()
      text, pieces = text + last.text, pieces + last.pieces
      if last.stop is not None:
        self.finish_reason = 'stop'
    self.text += text
    return Piece(
      index=self._index,
      text=text,
      num_tokens=num_tokens,
      settled=self._settle(event, num_tokens, pieces),
      num_rounds=event.num_rounds,
      num_drafted=event.num_drafted,
      prompt_logprobs=event.prompt_logprobs or (),
      finish_reason=self.finish_reason,
    )

  def _settle(self, event, num_tokens, pieces):
    """Gives tokens their pieces."""
    if not self._tells_tokens:
      return ()
    said = event.logprobs or (None,) * num_tokens
    self._waiting += list(zip(event.tokens, event.origins, said, strict=False))[
      :num_tokens
    ]
    settled = tuple(
      Token(text, *token)
      # The text of a prompt's last bytes may have no token behind it.
      for text, token in zip(pieces, self._waiting, strict=False)
    )
    del self._waiting[: len(settled)]
    self.settled += settled
    return settled


async def read(
  stream: streams.Stream, answers: Sequence[Answer]
) -> AsyncIterator[list[Piece]]:
  """Reads a stream to its end, all that came at a time."""
  while batch := await stream.read():
    pieces = []
    for index, event in batch:
      answer = answers[index]
      if answer.finish_reason is None:
        pieces.append(answer.take(event))
        if answer.finish_reason is not None:
          stream.drop(index, answer.finish_reason)
    yield pieces
