# SPDX-License-Identifier: MIT
"""What the bodies of all endpoints share.

Every field of OpenAI's is here with the values that are honoured; any other
value, and any other field, is an error that names it. A field that may only ask
for nothing has a type of its own below.
"""

from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

FIELD_ERROR = 'field'
MAX_ANSWERS = 128
MAX_STOPS = 16
MAX_STOP_LEN = 512

# Fields that only ask for nothing.

Off = Literal[False] | None
# Said for the operator's own books: taken and not looked at.
Label = Annotated[str, pydantic.Field(max_length=512)] | None
Tier = Literal['auto', 'default'] | None

Penalty = Annotated[float, pydantic.Field(ge=-2, le=2)] | None
Count = Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None
Share = Annotated[float, pydantic.Field(ge=0, le=1)] | None
StopString = Annotated[
  str, pydantic.Field(min_length=1, max_length=MAX_STOP_LEN)
]
Stop = (
  StopString
  | Annotated[list[StopString], pydantic.Field(max_length=MAX_STOPS)]
  | None
)
TokenId = Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)]
Name = Annotated[str, pydantic.Field(min_length=1, max_length=512)]


class Body(pydantic.BaseModel):
  """A body or a part of one; types are exact and numbers finite."""

  model_config = pydantic.ConfigDict(
    extra='forbid', strict=True, allow_inf_nan=False, frozen=True
  )


class StreamOptions(Body):
  """What a stream carries besides the answer."""

  include_usage: bool | None = None
  include_obfuscation: Off = None


class Speculative(Body):
  """Our own block: how this request is drafted for, and what is told of it.

  Attributes:
    method: name of a loaded drafter, or `none`.
    max_draft_tokens: most drafts of a round; 0 is `none`.
    depth_policy: who says how many drafts of a round are verified.
    details: counts in `usage.completion_tokens_details`, and in the choices
      each token with how it came: plain, draft or bonus.
  """

  method: Name | None = None
  max_draft_tokens: (
    Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None
  ) = None
  depth_policy: Name | None = None
  details: bool = False


class Sampled(Body):
  """How tokens are drawn, the same in every endpoint that draws some.

  The fields from `speculative` on are not OpenAI's; other servers have most of
  them, under these names.
  """

  model: Name | None = None
  temperature: Annotated[float, pydantic.Field(ge=0, le=2)] | None = None
  top_p: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
  user: Label = None
  speculative: Speculative | None = None
  top_k: Annotated[int, pydantic.Field(ge=-1, le=2**31 - 1)] | None = None
  min_p: Share = None
  repetition_penalty: (
    Annotated[float, pydantic.Field(ge=0.01, le=100)] | None
  ) = None


class Generated(Sampled):
  """What chat and plain completions share."""

  frequency_penalty: Penalty = None
  presence_penalty: Penalty = None
  logit_bias: (
    Annotated[
      dict[
        Annotated[str, pydantic.Field(pattern=r'^[0-9]{1,10}$')],
        Annotated[float, pydantic.Field(ge=-100, le=100)],
      ],
      pydantic.Field(max_length=300),
    ]
    | None
  ) = None
  max_tokens: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None = None
  n: Annotated[int, pydantic.Field(ge=1, le=MAX_ANSWERS)] | None = None
  seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)] | None = None
  stop: Stop = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  min_tokens: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None = None
  stop_token_ids: (
    Annotated[list[TokenId], pydantic.Field(max_length=MAX_STOPS)] | None
  ) = None
  ignore_eos: bool = False
  include_stop_str_in_output: bool = False

  @pydantic.model_validator(mode='after')
  def _stream_options_need_a_stream(self) -> Any:
    if self.stream_options is not None and not self.stream:
      raise error('stream_options', 'is allowed with stream only')
    return self


def error(field: str, message: str) -> pydantic_core.PydanticCustomError:
  """An error of a whole body that is about one field."""
  return pydantic_core.PydanticCustomError(
    FIELD_ERROR, '{message}', {'field': field, 'message': message}
  )
