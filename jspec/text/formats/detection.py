# SPDX-License-Identifier: MIT
"""Which format a model writes: read off its chat template.

A template shows earlier calls and thoughts in the form in which the model was
taught to write them.
"""

from jspec import errors
from jspec.text.formats import (
  calls,
  deepseek,
  harmony,
  hermes,
  llama_json,
  mistral,
  pythonic,
  qwen_coder,
  thinking,
)

# What only such templates hold; the first that is found decides, as Coder's
# templates hold Hermes' tags too. None: a format that is not supported.
_SIGNS = (
  ('<arg_key>', None),
  ('<function=', qwen_coder.FORMAT),
  (hermes.OPEN, hermes.FORMAT),
  (mistral.MARK, mistral.FORMAT),
  (deepseek.CALL, deepseek.FORMAT),
  (harmony.SIGN, harmony.FORMAT),
  # Before Llama's, whose environment such templates have too.
  (pythonic.SIGN, pythonic.FORMAT),
  (llama_json.TAG, llama_json.FORMAT),
  ('Environment: ipython', llama_json.FORMAT),
)
TOOL_FORMATS = (
  deepseek.FORMAT,
  harmony.FORMAT,
  hermes.FORMAT,
  llama_json.FORMAT,
  mistral.FORMAT,
  pythonic.FORMAT,
  qwen_coder.FORMAT,
)


def tool_format(source: str) -> calls.ToolFormat | None:
  """Returns the format of a template's calls; None: none that is known."""
  for sign, found in _SIGNS:
    if sign in source:
      return found
  return None


def end_marks(source: str) -> tuple[str, ...]:
  """Returns the spellings with which a template's format ends an answer.

  Files may name only the token at the end of a text, and not the one behind a
  call.
  """
  found = tool_format(source)
  return found.ends if found else ()


def named(name: str) -> calls.ToolFormat:
  """Returns a format by name.

  Raises:
    UserError: there is none of that name.
  """
  for found in TOOL_FORMATS:
    if found.name == name:
      return found
  names = ', '.join(found.name for found in TOOL_FORMATS)
  raise errors.UserError(
    f'tool format {name!r} is not known; give one of {names}'
  )


def tags(source: str) -> thinking.Tags | None:
  """Returns what thoughts stand between; None: the model is not taught any."""
  for found in (thinking.THINK, thinking.MISTRAL):
    if found.close in source:
      return found
  return None
