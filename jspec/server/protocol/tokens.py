# SPDX-License-Identifier: MIT
"""The bodies of /tokenize and /detokenize."""

from typing import Annotated, Any

import pydantic

from jspec.server.protocol import chat, common


class TokenizeRequest(common.Body):
  """A text, or a conversation as the chat template writes it.

  Attributes:
    model: as elsewhere.
    prompt: the text.
    messages: the conversation.
    add_special_tokens: put around a text what the tokenizer does; without the
      field as /v1/completions does, which is yes.
    add_generation_prompt: end a conversation with the assistant's opening.
    return_token_strs: also say what each token is.
  """

  model: common.Name | None = None
  prompt: str | None = None
  messages: (
    Annotated[list[chat.Message], pydantic.Field(min_length=1)] | None
  ) = None
  add_special_tokens: bool = True
  add_generation_prompt: bool = True
  return_token_strs: bool = False

  @pydantic.model_validator(mode='after')
  def _one_of_them(self) -> Any:
    if (self.prompt is None) == (self.messages is None):
      raise common.error('prompt', 'or messages: give one of them')
    return self


class DetokenizeRequest(common.Body):
  """Token ids; special tokens are spelled out."""

  model: common.Name | None = None
  tokens: list[common.TokenId]
