# SPDX-License-Identifier: MIT
"""Chat templates: messages to the text a model was tuned on, and answer masks.

Templates come with models, so they are untrusted code: they render in jinja2's
immutable sandbox, with the settings and helpers that Hugging Face gives them.
Server and training data share this file, so a mask and a prompt never differ.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from jspec import errors
from jspec.text import messages as messages_lib
from jspec.text import tokenizer as tokenizer_lib
from jspec.text.formats import harmony, harmony_messages

Message = messages_lib.Message

# What a template may do wrong, written by strangers as it is.
_FAILURES = (
  jinja2.TemplateError,
  TypeError,
  AttributeError,
  ValueError,
  LookupError,
  ArithmeticError,
  RecursionError,
)
_OURS = ('messages', 'tools', 'add_generation_prompt', 'bos_token', 'eos_token')
_CUT = '\ufdd0'  # A noncharacter: no text holds it, nothing strips it.


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """A jinja2 chat template with the tokens it may refer to."""

  source: str
  bos_token: str | None = None
  eos_token: str | None = None

  @functools.cached_property
  def _compiled(self) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=['jinja2.ext.loopcontrols', _GenerationMarks],
    )
    environment.filters['tojson'] = _tojson
    environment.globals['raise_exception'] = _raise_exception
    environment.globals['strftime_now'] = _strftime_now
    try:
      return environment.from_string(self.source)
    except jinja2.TemplateSyntaxError as error:
      raise errors.UserError(
        f'the chat template does not parse (line {error.lineno}:'
        f' {error.message}); correct it in the checkpoint'
      ) from error

  def render(
    self,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
  ) -> str:
    """Returns the text of a conversation.

    Args:
      messages: objects as `messages.check` wants them.
      add_generation_prompt: end with the opening of the assistant's turn.
      tools: what the model may call, as in OpenAI's API.
      variables: more of what a template may look at, `enable_thinking` say.

    Raises:
      errors.UserError: malformed messages, the template refuses them or has no
        place for tools, or variables that are not the caller's to set.
    """
    variables = variables or {}
    taken = [name for name in variables if name in _OURS]
    if taken:
      raise errors.UserError(
        f'the template variable {taken[0]} has its own place in the request;'
        ' give it there'
      )
    given = {
      **variables,
      'messages': self._messages(messages),
      'add_generation_prompt': add_generation_prompt,
      'bos_token': self.bos_token or '',
      'eos_token': self.eos_token or '',
    }
    text = self._render({**given, 'tools': list(tools) if tools else None})
    if tools and text == self._render({**given, 'tools': None}):
      raise errors.UserError(
        "the model's chat template has no place for tools; use a model that was"
        ' taught to call them, or describe them in a message'
      )
    return text

  def continued(self, messages: Sequence[Message], **options: Any) -> str:
    """Returns the text of a conversation that ends within its last message.

    The answer then continues that message: no end of its turn is rendered.

    Args:
      messages: as for `render`; the last one is the assistant's, with content.
      **options: `tools` and `variables` of `render`.

    Raises:
      errors.UserError: of `render`; the last message cannot be continued.
    """
    *before, last = messages_lib.for_template(messages)
    if last['role'] != 'assistant' or not last['content']:
      raise errors.UserError(
        'the last message is not a text of the assistant, so there is nothing'
        ' to continue; add one'
      )
    marked = {**last, 'content': last['content'] + _CUT}
    text = self.render(
      [*before, marked], add_generation_prompt=False, **options
    )
    if text.count(_CUT) != 1:
      raise errors.UserError(
        'the chat template does not render the last message as it is, so it'
        ' cannot be continued; leave continue_final_message out'
      )
    return text[: text.index(_CUT)]

  def opening(self, messages: Sequence[Message], **options: Any) -> str:
    """Returns what the template writes of the turn that the model continues.

    It may open a thought (`formats.thinking.Tags.is_open`), or close one.

    Args:
      messages: as for `render`.
      **options: `tools` and `variables` of `render`.
    """
    with_it, without = (
      self.render(messages, add_generation_prompt=adds, **options)
      for adds in (True, False)
    )
    return with_it[len(os.path.commonprefix([with_it, without])) :]

  def _messages(self, messages):
    """Messages as this template takes them."""
    found = messages_lib.for_template(messages)
    is_harmony = harmony.SIGN in self.source
    return harmony_messages.for_template(found) if is_harmony else found

  def _render(self, given):
    try:
      return self._compiled.render(given)
    except _FAILURES as error:
      raise errors.UserError(
        f'the chat template refused the messages: {error}'
      ) from error


class _GenerationMarks(jinja2.ext.Extension):
  """Reads over `{% generation %}`, which some templates put around answers.

  What lies between the marks stays. They are not needed to find an answer, and
  with marks in the wrong place a mask would be wrong in silence.
  """

  tags = frozenset({'generation'})

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    """Returns what the marks enclose."""
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


def from_hf_folder(path: str | pathlib.Path) -> ChatTemplate | None:
  """Returns the template of a checkpoint folder, or None if it has none."""
  folder = pathlib.Path(path)
  settings = tokenizer_lib.read_json(folder / 'tokenizer_config.json')
  bos = tokenizer_lib.spelling(settings.get('bos_token'))
  eos = tokenizer_lib.spelling(settings.get('eos_token'))
  file = folder / 'chat_template.jinja'
  if file.is_file():
    return ChatTemplate(file.read_text(encoding='utf-8'), bos, eos)
  source = settings.get('chat_template')
  if isinstance(source, list):
    # Several named templates: only the one called `default` is plain chat.
    named = {entry.get('name'): entry.get('template') for entry in source}
    source = named.get('default')
  return None if source is None else ChatTemplate(source, bos, eos)


def from_gguf(
  metadata: Mapping[str, Any], tokenizer: tokenizer_lib.Tokenizer
) -> ChatTemplate | None:
  """Returns the template in a GGUF file's metadata, or None."""
  source = metadata.get('tokenizer.chat_template')
  if source is None:
    return None
  eos_id = metadata.get('tokenizer.ggml.eos_token_id')
  return ChatTemplate(
    source, tokenizer.token(tokenizer.bos_id), tokenizer.token(eos_id)
  )


def fingerprint(template: ChatTemplate | None) -> str:
  """Short hash of a template's source, '' for none.

  Stores of taps and drafters carry the one they were made with: the same
  conversation under another template is another text.
  """
  if template is None:
    return ''
  return hashlib.sha256(template.source.encode()).hexdigest()[:16]


def answer_mask(
  tokenizer: tokenizer_lib.Tokenizer,
  template: ChatTemplate,
  messages: Sequence[Message],
) -> tuple[list[int], list[bool]]:
  r"""Returns the ids of a conversation and which of them the model wrote.

  An answer reaches from behind the generation prompt to the last end token of
  its turn, included, because the model must learn to write it:

    <|im_start|>assistant \n  It rains . <|im_end|> \n
    False        False   False True True True True    False

  Found by prefix difference: the rendering up to an answer must be a prefix of
  the rendering with it, in text and in ids. A template that rewrites history
  (drops old thinking, say) breaks that.

  Raises:
    errors.UserError: no answer in the messages, or the prefix rule fails.
  """
  messages_lib.check(messages)
  ids = tokenizer.encode(template.render(messages, add_generation_prompt=False))
  mask = [False] * len(ids)
  turns = [i for i, m in enumerate(messages) if m['role'] == 'assistant']
  if not turns:
    raise errors.UserError(
      'the messages hold no assistant turn, so no token would be trained on; '
      'add an answer'
    )
  for turn in turns:
    before = template.render(messages[:turn], add_generation_prompt=True)
    after = template.render(messages[: turn + 1], add_generation_prompt=False)
    start = _prefix_len(tokenizer, before, ids, turn)
    stop = _prefix_len(tokenizer, after, ids, turn)
    if stop <= start:
      raise errors.UserError(
        f'message {turn}: the answer renders to no token; drop the message'
      )
    # Behind the end of the turn a template often writes a separator that the
    # model never has to predict.
    ends = [i for i in range(start, stop) if ids[i] in tokenizer.eos_ids]
    stop = ends[-1] + 1 if ends else stop
    mask[start:stop] = [True] * (stop - start)
  return ids, mask


def _prefix_len(
  tokenizer: tokenizer_lib.Tokenizer, text: str, ids: list[int], turn: int
) -> int:
  """Number of ids of a rendering that must be a prefix of the whole."""
  prefix = tokenizer.encode(text)
  if ids[: len(prefix)] != prefix:
    raise errors.UserError(
      f'message {turn}: the chat template does not render it as a prefix of the'
      ' whole conversation, so its answer tokens are ambiguous; split the'
      ' conversation so that this answer is the last message'
    )
  return len(prefix)


def _tojson(value: Any, **options: Any) -> str:
  # jinja2's own filter escapes HTML, which changes the prompt.
  return json.dumps(value, ensure_ascii=False, **options)


def _raise_exception(message: str) -> None:
  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)
