# SPDX-License-Identifier: MIT
r"""Which tokens of a conversation the model wrote.

  <|im_start|>assistant \n  It rains . <|im_end|> \n
  False        False   False True True True True    False

Of every turn of the assistant two texts are rendered:

  prompt   all before it, with the generation prompt: what the model is given
  turn     all before it and the answer

`prompt` must be the beginning of `turn`, in text and in ids. The answer is what
comes behind it (prefix difference) or, where the template has marks
(`{% generation %}`), what lies between them of that. It ends with the first end
token, included, because the model must learn to write it and a server stops
there; what follows is the template's.

`turn` need not be the beginning of a longer conversation: many templates take
old thoughts out, and then the longer text shows an answer as the model never
wrote it. Such an answer gets a document of its own, which ends with it:

  u1 <think>..</think>a1           u1 a1 u2 <think>..</think>a2
     ^^^^^^^^^^^^^^^^^^^                    ^^^^^^^^^^^^^^^^^^^

so every answer is trained on once, in the text in which it is written.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jspec import errors
from jspec.text import chat
from jspec.text import messages as messages_lib
from jspec.text import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class Masked:
  """A text with the answers in it.

  Attributes:
    ids: its tokens.
    mask: which of them the model wrote, as far as they are trained on here.
    turns: the indices of the messages that these are.
  """

  ids: list[int]
  mask: list[bool]
  turns: tuple[int, ...]


def documents(
  tokenizer: tokenizer_lib.Tokenizer,
  template: chat.ChatTemplate,
  messages: Sequence[chat.Message],
  *,
  tools: Sequence[Mapping[str, Any]] | None = None,
  variables: Mapping[str, Any] | None = None,
) -> list[Masked]:
  """Returns the texts in which all answers stand as the model wrote them.

  One text, where the template leaves earlier turns as they were. A turn of the
  assistant that nothing comes before is no answer. What follows the last answer
  is left out.

  Args:
    tokenizer: of the target.
    template: its chat template.
    messages: the conversation.
    tools: what the model may call.
    variables: of the template; those that requests will be served with.

  Raises:
    errors.UserError: no answer in the messages, or it cannot be told from what
      the template writes.
  """
  given = {'tools': tools, 'variables': variables}
  left = _turns(tokenizer, template, messages, given)
  found = []
  while left:
    ids = left[-1].ids
    shown = [turn for turn in left if ids[: turn.stop] == turn.ids[: turn.stop]]
    mask = [False] * len(ids)
    for turn in shown:
      for start, stop in turn.spans:
        mask[start:stop] = [True] * (stop - start)
    found.append(Masked(ids, mask, tuple(turn.index for turn in shown)))
    indices = found[-1].turns
    left = [turn for turn in left if turn.index not in indices]
  return found[::-1]


def answer_mask(
  tokenizer: tokenizer_lib.Tokenizer,
  template: chat.ChatTemplate,
  messages: Sequence[chat.Message],
  **options: Any,
) -> tuple[list[int], list[bool]]:
  """Returns the ids of a conversation and which of them the model wrote.

  Args:
    tokenizer: of the target.
    template: its chat template.
    messages: the conversation.
    **options: of `documents`.

  Raises:
    errors.UserError: of `documents`, or it takes several documents.
  """
  *earlier, last = documents(tokenizer, template, messages, **options)
  if earlier:
    raise errors.UserError(
      f'message {earlier[0].turns[0]}: the chat template rewrites it once the'
      ' conversation goes on, so its answer tokens are ambiguous; split the'
      ' conversation so that this answer is the last message'
    )
  return last.ids, last.mask


@dataclasses.dataclass(frozen=True)
class _Turn:
  """An answer, in the text that ends with it; `spans` are indices of tokens."""

  index: int
  ids: list[int]
  spans: list[tuple[int, int]]

  @property
  def stop(self):
    return self.spans[-1][1]


def _turns(tokenizer, template, messages, given):
  messages_lib.check(messages)
  indices = [
    i for i, m in enumerate(messages) if i and m['role'] == 'assistant'
  ]
  if not indices:
    raise errors.UserError(
      'the messages hold no assistant turn that answers anything, so no token'
      ' would be trained on; add an answer'
    )
  return [_turn(tokenizer, template, messages, i, given) for i in indices]


def _turn(tokenizer, template, messages, index, given):
  """Renders the conversation up to an answer and finds it there."""
  prompt = template.render(
    messages[:index], add_generation_prompt=True, **given
  )
  now = messages[: index + 1]
  text = template.render(now, add_generation_prompt=False, **given)
  if not text.startswith(prompt):
    raise errors.UserError(_other_prompt(index, prompt, text))
  ids = tokenizer.encode(text)

  def place(at):
    """The number of ids of the text's first characters."""
    begin = tokenizer.encode(text[:at])
    if ids[: len(begin)] != begin:
      raise errors.UserError(
        f'message {index}: a token reaches over the border of the answer at'
        f' {text[max(at - 12, 0) : at]!r}|{text[at : at + 12]!r}, so its tokens'
        ' are ambiguous; begin and end answers without blanks, or give `ids`'
      )
    return len(begin)

  place(
    len(prompt)
  )  # Refuses ids that go on from other ones than the prompt's.
  spans = [(len(prompt), len(text))]
  if template.has_marks:
    spans = _marked(template, now, index, len(prompt), given)
  spans = [(place(start), place(stop)) for start, stop in spans]
  spans = _up_to_end(spans, ids, tokenizer.eos_ids)
  if not spans:
    raise errors.UserError(
      f'message {index}: the answer renders to no token; drop the message'
    )
  content = messages_lib.for_template(now)[index]['content']
  if (content or '').strip():
    said = [i for start, stop in spans for i in ids[start:stop]]
    said = [i for i in said if i not in tokenizer.eos_ids]
    if not tokenizer.decode(said, skip_special=False).strip():
      raise errors.UserError(
        f'message {index}: the chat template shows nothing of its content; it'
        ' may want content of another form, which is not supported'
      )
  return _Turn(index, ids, spans)


def _marked(template, messages, index, prompt_len, given):
  """What the marks enclose behind the prompt, in characters.

  Marks may begin before, around the role or an opened thought: the model is
  given that, whatever they say.
  """
  spans = [
    (max(start, prompt_len), stop)
    for start, stop in template.marked(messages, **given)
    if stop > max(start, prompt_len)
  ]
  if not spans:
    raise errors.UserError(
      f'message {index}: the chat template marks nothing of the answer by'
      ' {% generation %}; put the marks around all that the assistant writes,'
      ' or take them out'
    )
  return spans


def _up_to_end(spans, ids, eos_ids):
  """Cuts the spans behind the first end token, or takes it in."""
  last = spans[-1][1]
  ends = [i for start, stop in spans for i in range(start, stop)]
  ends = [i for i in ends if ids[i] in eos_ids]
  if ends:
    last = ends[0] + 1
  elif last < len(ids) and ids[last] in eos_ids:
    spans = [*spans, (last, last + 1)]
    last += 1
  cut = [(start, min(stop, last)) for start, stop in spans]
  return [(start, stop) for start, stop in cut if stop > start]


def _other_prompt(index, prompt, text):
  """Where a rendered answer departs from the prompt that it answers."""
  at = next(
    (i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b),
    min(len(prompt), len(text)),
  )
  return (
    f'message {index}: the chat template ends the prompt with'
    f' {prompt[at : at + 40]!r} but shows {text[at : at + 40]!r} there once it'
    ' is answered, so the answer tokens are ambiguous; give the thought with'
    ' the message, set data.chat_template_kwargs (enable_thinking) as requests'
    ' will, or give `ids` and `prompt_len`'
  )
