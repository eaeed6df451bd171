# SPDX-License-Identifier: MIT
"""From a conversation and its tools to a prompt, a grammar, and a format.

Chat and /v1/responses both come here. Tools that the model may call are put
into the prompt by its chat template; a tool that it must call also becomes the
grammar of the answer, in the format in which the model writes calls anyway.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jspec.serve import structured
from jspec.server import asking, routing
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.text import answers, tool_choice
from jspec.text.formats import detection


@dataclasses.dataclass(frozen=True)
class Turn:
  """What the assistant's turn goes on from.

  Attributes:
    prompt: token ids.
    room: tokens it may have.
    constraint: its grammar.
    form: what it may hold.
    last_text: what the user said last, to choose a drafter by.
  """

  prompt: list[int]
  room: int
  constraint: structured.Constraint | None
  form: answers.Format
  last_text: str


@dataclasses.dataclass(frozen=True)
class Tools:
  """Tools of a request.

  Attributes:
    told: as templates and OpenAI's API have them.
    choice: 'none', 'auto', 'required', or the name of one.
    is_parallel: whether several calls may be made.
  """

  told: Sequence[Mapping[str, Any]] = ()
  choice: str = 'auto'
  is_parallel: bool = True


async def of(
  served: served_lib.Served,
  messages: Sequence[Mapping[str, Any]],
  *,
  tools: Tools = Tools(),
  response_format: Any = None,
  variables: Mapping[str, Any] | None = None,
  param: str = 'messages',
) -> Turn:
  """Prepares a turn.

  Args:
    served: who takes it.
    messages: as the chat template takes them.
    tools: that may be called.
    response_format: of `protocol.ResponseFormat`.
    variables: more that the template may look at.
    param: the field of the messages, for errors.

  Raises:
    ApiError, UserError: the target has no template, or it refuses the messages
      or the tools; they are too long; a grammar that cannot be enforced.
  """
  template = _template(served, param)
  told = [] if tools.choice == 'none' else list(tools.told)
  constraint, named = _constraint(response_format), 'response_format'
  if constraint is not None and told:
    raise api_errors.ApiError(
      400,
      'response_format and tools exclude each other; leave one out or set'
      ' tool_choice to none',
      param=named,
    )
  messages = [_known(message) for message in messages]
  options = {'tools': told or None, 'variables': variables}

  def written():
    text = template.render(messages, add_generation_prompt=True, **options)
    if constraint is not None:
      found = detection.tool_format(template.source)
      return text + (found.front if found else ''), answers.Format()
    return text, _form(template, messages, options)

  text, form = await asking.beside(written, _size(messages))
  if told and tools.choice != 'auto':
    forced = tool_choice.forced(
      tools.choice,
      form,
      served.target.tokenizer,
      is_parallel=tools.is_parallel,
    )
    constraint = structured.Constraint(forced.kind, forced.text)
    form, named = forced.form, 'tools'
  elif told and form.tools is None:
    raise api_errors.ApiError(
      400,
      'the chat template does not say how this model calls tools; set'
      ' tool_choice to required or to the name of a tool',
      param='tools',
    )
  await asking.check_constraint(served, constraint, named)
  prompt = await asking.encode(served, text, add_special=False)
  return Turn(
    prompt,
    asking.room(served, prompt, param),
    constraint,
    form,
    routing.last_text(messages),
  )


async def render(
  served: served_lib.Served,
  messages: Sequence[Mapping[str, Any]],
  *,
  add_generation_prompt: bool,
) -> str:
  """The conversation as the target's chat template writes it.

  Raises:
    ApiError, UserError: the target has no template, or it refuses the messages.
  """
  template = _template(served, 'messages')
  return await asking.beside(
    lambda: template.render(
      [_known(message) for message in messages],
      add_generation_prompt=add_generation_prompt,
    ),
    _size(messages),
  )


def _template(served, param):
  if served.target.template is None:
    raise api_errors.ApiError(
      400,
      f'{served.names[0]} has no chat template; use /v1/completions',
      param=param,
    )
  return served.target.template


def _form(template, messages, options):
  """What the answer may hold, as this model writes it."""
  tags, told = detection.tags(template.source), options['tools']
  found = detection.tool_format(template.source)
  return answers.Format(
    tags=tags,
    is_open=tags is not None
    and tags.is_open(template.opening(messages, **options)),
    tools=found if told or found and found.front else None,
    schemas=tool_choice.schemas(told) if told else {},
  )


def _constraint(wanted):
  if wanted is None or wanted.type == 'text':
    return None
  if wanted.type == 'json_object' or wanted.json_schema.schema_ is None:
    return structured.Constraint('json_object')
  return structured.Constraint(
    'json_schema', json.dumps(wanted.json_schema.schema_)
  )


def _known(message):
  """Templates know no developer; the system says the same."""
  is_developer = message['role'] == 'developer'
  return {**message, 'role': 'system'} if is_developer else message


def _size(messages):
  return sum(len(str(message.get('content', ''))) for message in messages)
