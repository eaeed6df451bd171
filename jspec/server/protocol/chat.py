# SPDX-License-Identifier: MIT
"""The body of /v1/chat/completions."""

from typing import Annotated, Any, Literal

import pydantic

from jspec.server.protocol import common

FunctionName = Annotated[str, pydantic.Field(pattern=r'^[a-zA-Z0-9_-]{1,64}$')]


class TextPart(common.Body):
  """A part of a message; only text is understood."""

  type: Literal['text']
  text: str


class CalledFunction(common.Body):
  """A function and its arguments, JSON in a string."""

  name: FunctionName
  arguments: str


class ToolCall(common.Body):
  """A call that the assistant made earlier."""

  id: common.Name
  type: Literal['function'] = 'function'
  function: CalledFunction


class Message(common.Body):
  """One turn; `audio` and other media are not understood."""

  role: Literal['system', 'developer', 'user', 'assistant', 'tool']
  content: str | list[TextPart] | None = None
  name: common.Name | None = None
  refusal: None = None
  reasoning_content: str | None = None
  tool_calls: list[ToolCall] | None = None
  tool_call_id: common.Name | None = None

  @pydantic.model_validator(mode='after')
  def _fields_fit_the_role(self) -> Any:
    is_assistant = self.role == 'assistant'
    for field in ('tool_calls', 'reasoning_content'):
      if getattr(self, field) is not None and not is_assistant:
        raise common.error(field, 'belongs to messages of the assistant')
    if (self.tool_call_id is not None) != (self.role == 'tool'):
      raise common.error('tool_call_id', 'belongs to every message of a tool')
    if self.content is None and not (is_assistant and self.tool_calls):
      raise common.error('content', 'is missing')
    return self


class Function(common.Body):
  """A function that the model may call."""

  name: FunctionName
  description: str | None = None
  parameters: dict[str, Any] | None = None
  strict: bool | None = None


class Tool(common.Body):
  """Tools are functions."""

  type: Literal['function']
  function: Function


class NamedFunction(common.Body):
  """The name of a function."""

  name: FunctionName


class NamedTool(common.Body):
  """The tool that must be called."""

  type: Literal['function']
  function: NamedFunction


class TextFormat(common.Body):
  """Any text."""

  type: Literal['text']


class JsonObjectFormat(common.Body):
  """Any JSON object."""

  type: Literal['json_object']


class JsonSchema(common.Body):
  """A schema; it is always enforced, `strict` or not."""

  name: FunctionName
  description: str | None = None
  schema_: dict[str, Any] | None = pydantic.Field(default=None, alias='schema')
  strict: bool | None = None


class JsonSchemaFormat(common.Body):
  """JSON by a schema."""

  type: Literal['json_schema']
  json_schema: JsonSchema


ResponseFormat = Annotated[
  TextFormat | JsonObjectFormat | JsonSchemaFormat,
  pydantic.Field(discriminator='type'),
]


class ChatRequest(common.Generated):
  """A conversation to go on with."""

  messages: Annotated[list[Message], pydantic.Field(min_length=1)]
  logprobs: bool | None = None
  top_logprobs: Annotated[int, pydantic.Field(ge=0, le=20)] | None = None
  max_completion_tokens: common.Count = None
  response_format: ResponseFormat | None = None
  tools: Annotated[list[Tool], pydantic.Field(max_length=128)] | None = None
  tool_choice: Literal['none', 'auto', 'required'] | NamedTool | None = None
  parallel_tool_calls: bool | None = None
  chat_template_kwargs: dict[str, Any] | None = None
  # These may only ask for nothing.
  audio: None = None
  function_call: None = None
  functions: None = None
  metadata: dict[str, str] | None = None
  modalities: list[Literal['text']] | None = None
  moderation: None = None
  prediction: None = None
  prompt_cache_key: common.Label = None
  prompt_cache_options: None = None
  prompt_cache_retention: Literal['in_memory'] | None = None
  reasoning_effort: None = None
  safety_identifier: common.Label = None
  service_tier: common.Tier = None
  store: common.Off = None
  verbosity: Literal['medium'] | None = None
  web_search_options: None = None

  @pydantic.model_validator(mode='after')
  def _fields_fit_together(self) -> Any:
    if self.top_logprobs is not None and not self.logprobs:
      raise common.error('top_logprobs', 'is allowed with logprobs only')
    if self.max_tokens == 0:
      raise common.error('max_tokens', 'must be at least 1')
    both = self.max_tokens, self.max_completion_tokens
    if None not in both and both[0] != both[1]:
      raise common.error(
        'max_tokens', 'says something else than max_completion_tokens'
      )
    choice = self.tool_choice
    if choice not in (None, 'none', 'auto') and not self.tools:
      raise common.error('tool_choice', 'is allowed with tools only')
    names = [tool.function.name for tool in self.tools or ()]
    if len(set(names)) < len(names):
      raise common.error('tools', 'must have names of their own')
    if isinstance(choice, NamedTool) and choice.function.name not in names:
      raise common.error('tool_choice', 'names a function that tools lack')
    return self
