# SPDX-License-Identifier: MIT
"""The body of /v1/completions."""

from typing import Annotated, Any, Literal

import pydantic

from jspec.server.protocol import common

_Ids = Annotated[list[common.TokenId], pydantic.Field(min_length=1)]
Prompt = (
  str
  | _Ids
  | Annotated[
    list[str], pydantic.Field(min_length=1, max_length=common.MAX_ANSWERS)
  ]
  | Annotated[
    list[_Ids], pydantic.Field(min_length=1, max_length=common.MAX_ANSWERS)
  ]
)


class CompletionRequest(common.Generated):
  """A text, or several, to go on with; token ids are taken as well."""

  prompt: Prompt
  best_of: (
    Annotated[int, pydantic.Field(ge=1, le=common.MAX_ANSWERS)] | None
  ) = None
  echo: bool | None = None
  logprobs: Annotated[int, pydantic.Field(ge=0, le=20)] | None = None
  suffix: Literal[''] | None = None

  @pydantic.model_validator(mode='after')
  def _best_of_is_n(self) -> Any:
    if self.best_of is not None and self.best_of != (self.n or 1):
      raise common.error('best_of', 'is supported where it equals n only')
    if self.max_tokens == 0 and not self.echo:
      raise common.error('max_tokens', 'may be 0 with echo only')
    return self
