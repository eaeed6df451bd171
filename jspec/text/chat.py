# SPDX-License-Identifier: MIT
"""Chat templates: messages to the text a model was tuned on.

Templates come with models, so they are untrusted code: they render in jinja2's
immutable sandbox, with the settings and helpers that Hugging Face gives them.
Server and training data share this file; `answer_masks` finds the answers in
what it renders, so a mask and a prompt never differ.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import os
import pathlib
import re
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
# Noncharacters: no text holds them, nothing strips them.
_CUT = '\ufdd0'
_OPEN, _CLOSE = '\ufdd1', '\ufdd2'


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """A jinja2 chat template with the tokens it may refer to."""

  source: str
  bos_token: str | None = None
  eos_token: str | None = None

  @functools.cached_property
  def _compiled(self) -> jinja2.Template:
    return self._compile('', '')

  @functools.cached_property
  def _marked(self) -> jinja2.Template:
    return self._compile(_OPEN, _CLOSE)

  @property
  def has_marks(self) -> bool:
    """Whether the template puts `{% generation %}` around answers."""
    return self._compiled.environment.has_marks

  def _compile(self, mark_open, mark_close):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=['jinja2.ext.loopcontrols', _GenerationMarks],
    )
    environment.extend(marks=(mark_open, mark_close), has_marks=False)
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
    given = self._given(messages, add_generation_prompt, variables)
    text = self._render({**given, 'tools': list(tools) if tools else None})
    if tools and text == self._render({**given, 'tools': None}):
      raise errors.UserError(
        "the model's chat template has no place for tools; use a model that was"
        ' taught to call them, or describe them in a message'
      )
    return text

  def marked(
    self,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
  ) -> list[tuple[int, int]]:
    """Returns where the marks of answers lie in a conversation's text.

    Args:
      messages: as for `render`; no generation prompt follows.
      tools: of `render`.
      variables: of `render`.

    Returns:
      First and last index, the latter exclusive, of each piece between
      `{% generation %}` and `{% endgeneration %}`, in order.

    Raises:
      errors.UserError: of `render`; marks within marks or without an end, or
        marks that change the text.
    """
    given = self._given(messages, False, variables)
    given['tools'] = list(tools) if tools else None
    text = self._render(given, self._marked)
    spans, plain, begin = [], '', None
    for piece in re.split(f'([{_OPEN}{_CLOSE}])', text):
      if piece not in (_OPEN, _CLOSE):
        plain += piece
      elif (piece == _OPEN) == (begin is None):
        if begin is not None:
          spans.append((begin, len(plain)))
        begin = len(plain) if piece == _OPEN else None
      else:
        begin = -1
        break
    if begin is not None or plain != self._render(given):
      raise errors.UserError(
        'the chat template has {% generation %} within another one, within a'
        ' value that it changes afterwards, or without its end; put the marks'
        ' directly around what the assistant writes'
      )
    return spans

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

  def _given(self, messages, add_generation_prompt, variables):
    """What a template may look at; `tools` comes later."""
    variables = variables or {}
    taken = [name for name in variables if name in _OURS]
    if taken:
      raise errors.UserError(
        f'the template variable {taken[0]} has its own place in the request;'
        ' give it there'
      )
    return {
      **variables,
      'messages': self._messages(messages),
      'add_generation_prompt': add_generation_prompt,
      'bos_token': self.bos_token or '',
      'eos_token': self.eos_token or '',
    }

  def _render(self, given, compiled=None):
    try:
      return (compiled or self._compiled).render(given)
    except _FAILURES as error:
      raise errors.UserError(
        f'the chat template refused the messages: {error}'
      ) from error


class _GenerationMarks(jinja2.ext.Extension):
  """Reads `{% generation %}`, which some templates put around answers.

  What lies between the marks stays; the environment's `marks` are written
  around it.
  """

  tags = frozenset({'generation'})

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    """Returns what the marks enclose, and the marks."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    self.environment.has_marks = True
    before, after = (
      jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)], lineno=line)
      for mark in self.environment.marks
    )
    return [before, *body, after]


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


def _tojson(value: Any, **options: Any) -> str:
  # jinja2's own filter escapes HTML, which changes the prompt.
  return json.dumps(value, ensure_ascii=False, **options)


def _raise_exception(message: str) -> None:
  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)
