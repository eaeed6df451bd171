# SPDX-License-Identifier: MIT
r"""Tools of a request, and grammars that make an answer call them.

'required', or the name of a function, is a promise: the answer is a call. It is
kept by structured output, in the format that the model writes anyway:

  start: call ("\n" call)*
  call: "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"
  args: %json {the schema of f}

so that what comes is parsed like any other answer.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jspec import errors
from jspec.text import answers, keyword_arguments
from jspec.text import tokenizer as tokenizer_lib
from jspec.text.formats import calls, llama_json

Tool = Mapping[str, Any]

_NAME = re.compile(r'[a-zA-Z0-9_-]{1,64}')
_ANY_OBJECT = {'type': 'object'}
_OPTIONS_KEY = 'x-guidance'
# One way to set blanks: the one of `json.dumps`, by which templates show calls.
_OPTIONS = {
  'whitespace_flexible': False,
  'item_separator': ', ',
  'key_separator': ': ',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forced:
  """A constraint, and how to read what it lets through.

  Attributes:
    kind: of `serve.structured.Constraint`.
    text: likewise.
    form: the format of the answer.
  """

  kind: str
  text: str
  form: answers.Format


def schemas(tools: Sequence[Tool]) -> dict[str, dict[str, Any]]:
  """Returns the schemas of the arguments, by the name of the function.

  Args:
    tools: as in OpenAI's API, {type: 'function', function: {name, ...}}.

  Raises:
    UserError: an entry is none of that, or two have one name.
  """
  found = {}
  for i, tool in enumerate(tools):
    if tool.get('type') != 'function':
      raise errors.UserError(
        f"tool {i} is not of type 'function'; no other is supported"
      )
    function = tool.get('function')
    if not isinstance(function, Mapping):
      raise errors.UserError(f'tool {i} has no function; give {{name, ...}}')
    name, schema = function.get('name'), function.get('parameters')
    if not isinstance(name, str) or not _NAME.fullmatch(name):
      raise errors.UserError(
        f'tool {i}: the name {name!r} is not made of 1 to 64 letters, digits,'
        ' _ and -; rename the function'
      )
    if name in found:
      raise errors.UserError(f'tool {i}: {name} is given twice; rename one')
    if schema is not None and not isinstance(schema, Mapping):
      raise errors.UserError(
        f'tool {i}: the parameters are no JSON schema; give an object'
      )
    # No parameters are an empty list of them.
    found[name] = dict(schema) if schema else {**_ANY_OBJECT, 'properties': {}}
  return found


def forced(
  choice: str,
  form: answers.Format,
  tokenizer: tokenizer_lib.Tokenizer,
  *,
  is_parallel: bool = True,
) -> Forced:
  """Returns what makes an answer call a function.

  A format that no grammar describes here (Qwen3-Coder's) gives way to Llama's.
  A thought that the prompt has opened may be finished first, and one in a
  message of its own may come first; else there is none.

  Args:
    choice: 'required': any function of `form.schemas`; else the name of one.
    form: of the model's answers; `tools` may be None if it has no format.
    tokenizer: tells which marks are special tokens.
    is_parallel: whether several calls may be made. A named function is called
      once.

  Raises:
    UserError: there is no such function, or a schema cannot be used here.
  """
  names = list(form.schemas) if choice == 'required' else [choice]
  if not names or not set(names) <= set(form.schemas):
    known = ', '.join(form.schemas) or 'none'
    raise errors.UserError(
      f'tool_choice {choice!r}: there is no such function among the tools'
      f' ({known}); correct the name'
    )
  tools = form.tools
  if tools is None or tools.layout is None:
    tools = llama_json.FORMAT
  layout = tools.layout
  special = {token: i for i, token in tokenizer.pieces.special.items()}
  is_many = is_parallel and choice == 'required' and layout.between is not None
  more = f' ({_literals([layout.between], special)} call)*' if is_many else ''
  lines = [
    _literals(layout.before, special),
    f'call{more}',
    _literals(layout.after, special),
  ]
  thought = []
  if form.is_open and form.tags:
    lines.insert(0, 'thought')
    thought = _thought(form.tags.close, special)
  elif layout.thought and _are_marks(layout.thought, tools, tokenizer):
    lines.insert(0, 'thought?')
    front, back = (_literals(parts, special) for parts in layout.thought)
    thought = [f'thought: {front} /(?s:.*)/ {back}']
  lines = [f'start: {" ".join(line for line in lines if line)}', *thought]
  lines.append(f'call: {" | ".join(f"call_{i}" for i in range(len(names)))}')
  for i, name in enumerate(names):
    at = layout.call.index(calls.ARGUMENTS)
    front, back = layout.call[:at], layout.call[at + 1 :]
    front = [name if part == calls.NAME else part for part in front]
    lines.append(
      f'call_{i}: {_literals(front, special)} args_{i}'
      f' {_literals(back, special)}'
    )
    if layout.has_keywords:
      lines += keyword_arguments.rules(
        f'args_{i}', _checked(form.schemas[name], name), name, _OPTIONS
      )
    else:
      lines.append(f'args_{i}: %json {_schema(form.schemas[name], name)}')
  return Forced(
    kind='lark',
    text='\n'.join(lines) + '\n',
    form=dataclasses.replace(form, tools=tools),
  )


def _are_marks(
  thought: tuple[tuple[str, ...], tuple[str, ...]],
  tools: calls.ToolFormat,
  tokenizer: tokenizer_lib.Tokenizer,
) -> bool:
  """Whether what stands around a thought cannot be text of it, nor its end."""
  special = {text: i for i, text in tokenizer.pieces.special.items()}
  marks = {part for parts in thought for part in parts if part in tools.marks}
  return marks <= set(special) and not any(
    special[mark] in tokenizer.eos_ids for mark in marks
  )


def _thought(close: str, special: Mapping[str, int]) -> list[str]:
  """A rule for any text up to the closing tag."""
  if close in special:
    return [f'thought: /(?s:.*)/ <[{special[close]}]>']
  return [f'thought[suffix={json.dumps(close)}]: /(?s:.*)/']


def _literals(parts: Sequence[str], special: Mapping[str, int]) -> str:
  """Parts of a layout as the grammar has them, neighbours joined."""
  found, text = [], ''
  for part in [*parts, None]:
    if part is None or part in special:
      found += [json.dumps(text, ensure_ascii=False)] if text else []
      text = ''
      found += [f'<[{special[part]}]>'] if part is not None else []
    else:
      text += part
  return ' '.join(found)


def _checked(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  """A schema that may be used here."""
  if _OPTIONS_KEY in schema:
    raise errors.UserError(
      f'the parameters of {name} have {_OPTIONS_KEY!r}, options of the grammar'
      ' engine that a request may not set; leave it out'
    )
  if schema.get('type', 'object') != 'object':
    raise errors.UserError(
      f"the parameters of {name} are not of type 'object'; arguments always are"
    )
  return schema


def _schema(schema: Mapping[str, Any], name: str) -> str:
  """A schema with our options."""
  return json.dumps(
    {**_checked(schema, name), 'type': 'object', _OPTIONS_KEY: _OPTIONS},
    ensure_ascii=False,
  )
