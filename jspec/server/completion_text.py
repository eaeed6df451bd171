# SPDX-License-Identifier: MIT
r"""The text of a plain completion, its prompt perhaps before it, and logprobs.

  tokens        '\n'   '4'   '2'  |  ' is'  ' six'
  text_offset    0      1     2   |   3      6
  token_logprobs null  -3.1  -0.7 |  -0.2   -1.9
                 the prompt       |  the answer

The token strings together are the text, so an offset is the length of what came
before. The first token of a prompt has no probability: nothing came before it.
"""

from collections.abc import Sequence
from typing import Any

from jspec.serve import asks
from jspec.server import answering, chat_logprobs
from jspec.server import served as served_lib
from jspec.text import incremental

_FIELDS = ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset')


class Text:
  """The text of one answer as it comes."""

  def __init__(
    self,
    served: served_lib.Served,
    prompt: Sequence[int],
    *,
    num_logprobs: int | None,
    is_echoed: bool,
  ):
    """Begins with the prompt, if it is to be told."""
    self._tokenizer = served.target.tokenizer
    self._stop_ids = served.target.stop_ids
    self._num_logprobs = num_logprobs
    self._prompt = list(prompt)
    self._pieces = _pieces(self._tokenizer, prompt) if is_echoed else None
    self._prompt_logprobs = [None]
    self._len = 0

  def take(self, piece: answering.Piece) -> tuple[str, dict[str, list] | None]:
    """Returns what to tell, and its log-probabilities if they are wanted."""
    self._prompt_logprobs += piece.prompt_logprobs
    text = piece.text
    entries = [
      (token.text, token.id, token.said)
      for token in piece.settled
      if token.text or token.id not in self._stop_ids
    ]
    has_begun = piece.num_tokens or piece.finish_reason is not None
    if self._pieces is not None and has_begun:
      text = ''.join(self._pieces) + text
      if self._num_logprobs is not None:
        entries[:0] = zip(
          self._pieces, self._prompt, self._prompt_logprobs, strict=True
        )
      self._pieces = None
    if self._num_logprobs is None or not entries:
      return text, None
    return text, self._told(entries)

  def _told(self, entries):
    told = {name: [] for name in _FIELDS}
    for shown, token, said in entries:
      told['tokens'].append(shown)
      told['token_logprobs'].append(None if said is None else number(said))
      told['top_logprobs'].append(self._top(shown, token, said))
      told['text_offset'].append(self._len)
      self._len += len(shown)
    return told

  def _top(self, shown, token, said):
    """The likeliest tokens, and the one that came."""
    if said is None or not self._num_logprobs:
      return None
    spelled = self._tokenizer.pieces.token_text
    top = {
      shown if other == token else spelled(other): max(
        value, chat_logprobs.LEAST
      )
      for other, value in said.top[: self._num_logprobs]
    }
    top.setdefault(shown, number(said))
    return top


def number(said: asks.TokenLogprobs) -> float:
  """A log-probability that JSON can hold."""
  return max(said.logprob, chat_logprobs.LEAST)


def joined(parts: Sequence[dict[str, list] | None]) -> dict[str, Any] | None:
  """The log-probabilities of a whole answer; None if there are none."""
  found = [part for part in parts if part is not None]
  if not found:
    return None
  return {name: sum((part[name] for part in found), []) for name in _FIELDS}


def _pieces(tokenizer, prompt):
  """What each token of the prompt shows; the mark before a text shows nothing.

  Other special tokens were written by the client, and are told as they are.
  """
  mark = tokenizer.encode('', add_special=True)[:1]
  has_mark = bool(mark) and list(prompt[:1]) == mark
  detokenizer = incremental.Detokenizer(tokenizer, skip_special=False)
  return [''] * has_mark + detokenizer.push_each(prompt[has_mark:])
