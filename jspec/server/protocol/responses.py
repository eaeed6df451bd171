# SPDX-License-Identifier: MIT
"""The body of /v1/responses; nothing is stored, so nothing is referred to."""

from typing import Annotated, Any, Literal

import pydantic

from jspec.server.protocol import chat, common

Status = Literal['in_progress', 'completed', 'incomplete'] | None


class InputText(common.Body):
  """A part of what was said to the model."""

  type: Literal['input_text']
  text: str


class OutputText(common.Body):
  """A part of what the model said earlier."""

  type: Literal['output_text']
  text: str
  annotations: list[Any] | None = None
  logprobs: list[Any] | None = None


class Message(common.Body):
  """A turn."""

  type: Literal['message'] = 'message'
  role: Literal['user', 'assistant', 'system', 'developer']
  content: str | list[InputText | OutputText]
  id: common.Name | None = None
  status: Status = None
  phase: Literal['commentary', 'final_answer'] | None = None


class FunctionCall(common.Body):
  """A call that the model made earlier."""

  type: Literal['function_call']
  call_id: common.Name
  name: chat.FunctionName
  arguments: str
  id: common.Name | None = None
  status: Status = None


class FunctionCallOutput(common.Body):
  """What a call gave."""

  type: Literal['function_call_output']
  call_id: common.Name
  output: str | list[InputText]
  id: common.Name | None = None
  status: Status = None


class ReasoningText(common.Body):
  """A part of what the model thought earlier."""

  type: Literal['reasoning_text']
  text: str


class Reasoning(common.Body):
  """What the model thought earlier, for templates that want it."""

  type: Literal['reasoning']
  id: common.Name | None = None
  summary: list[Any] = []
  content: list[ReasoningText] | None = None
  encrypted_content: None = None
  status: Status = None


Item = Message | FunctionCall | FunctionCallOutput | Reasoning


class JsonSchemaFormat(common.Body):
  """JSON by a schema, which is always enforced."""

  type: Literal['json_schema']
  name: chat.FunctionName
  schema_: dict[str, Any] = pydantic.Field(alias='schema')
  description: str | None = None
  strict: bool | None = None


class Text(common.Body):
  """What the answer looks like."""

  format: (
    Annotated[
      chat.TextFormat | chat.JsonObjectFormat | JsonSchemaFormat,
      pydantic.Field(discriminator='type'),
    ]
    | None
  ) = None
  verbosity: Literal['medium'] | None = None


class Tool(common.Body):
  """A function that the model may call."""

  type: Literal['function']
  name: chat.FunctionName
  description: str | None = None
  parameters: dict[str, Any] | None = None
  strict: bool | None = None


class NamedTool(common.Body):
  """The tool that must be called."""

  type: Literal['function']
  name: chat.FunctionName


class StreamOptions(common.Body):
  """Nothing can be chosen."""

  include_obfuscation: common.Off = None


class ResponsesRequest(common.Sampled):
  """What was said so far, as items."""

  input: str | Annotated[list[Item], pydantic.Field(min_length=1)]
  instructions: str | None = None
  max_output_tokens: common.Count = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  text: Text | None = None
  tools: Annotated[list[Tool], pydantic.Field(max_length=128)] | None = None
  tool_choice: Literal['none', 'auto', 'required'] | NamedTool | None = None
  parallel_tool_calls: bool | None = None
  include: list[Literal['message.output_text.logprobs']] | None = None
  top_logprobs: Annotated[int, pydantic.Field(ge=0, le=20)] | None = None
  metadata: dict[str, str] | None = None
  # These may only ask for nothing.
  access_programs: None = None
  background: common.Off = None
  background_options: None = None
  context_management: None = None
  conversation: None = None
  image: None = None
  max_tool_calls: None = None
  moderation: None = None
  previous_response_id: None = None
  prompt: None = None
  prompt_cache_key: common.Label = None
  prompt_cache_options: None = None
  prompt_cache_retention: Literal['in_memory'] | None = None
  reasoning: None = None
  safety_identifier: common.Label = None
  service_tier: common.Tier = None
  store: common.Off = None
  truncation: Literal['disabled'] | None = None

  @pydantic.model_validator(mode='after')
  def _fields_fit_together(self) -> Any:
    if self.top_logprobs and not self.include:
      raise common.error(
        'top_logprobs', 'needs include: ["message.output_text.logprobs"]'
      )
    if self.stream_options is not None and not self.stream:
      raise common.error('stream_options', 'is allowed with stream only')
    choice = self.tool_choice
    if choice not in (None, 'none', 'auto') and not self.tools:
      raise common.error('tool_choice', 'is allowed with tools only')
    names = [tool.name for tool in self.tools or ()]
    if len(set(names)) < len(names):
      raise common.error('tools', 'must have names of their own')
    if isinstance(choice, NamedTool) and choice.name not in names:
      raise common.error('tool_choice', 'names a function that tools lack')
    return self
