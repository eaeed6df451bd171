# SPDX-License-Identifier: MIT
"""Answers in every format: whole ones, torn ones, and what they mean."""

import json

from jspec.text.formats import (
  calls,
  deepseek,
  detection,
  harmony,
  hermes,
  llama_json,
  mistral,
  pythonic,
  qwen_coder,
)

SCHEMAS = {'f': {'properties': {'n': {'type': 'integer'}}}}
FORMATS = {found.name: found for found in detection.TOOL_FORMATS}
# Arguments that hold what could be taken for an end; for Coder, only texts.
ARGUMENTS = (
  {},
  {'a': 'x'},
  {'n': 12, 'b': 'p "q" \\ {[ \u6771\n\U0001f642'},
  {'a': 'see </tool_call> or [TOOL_CALLS]; <|python_tag|>', 'b': '</think>'},
)


def _hermes(name, arguments):
  return f'<tool_call>\n{_json(name, arguments)}\n</tool_call>'


def _mistral(name, arguments):
  return f'[TOOL_CALLS][{_json(name, arguments)}]'


def _mistral_new(name, arguments):
  return f'[TOOL_CALLS]{name}[CALL_ID]a1[ARGS]{_dumps(arguments)}'


def _llama(name, arguments):
  return _json(name, arguments, 'parameters')


def _llama_tag(name, arguments):
  return llama_json.TAG + _llama(name, arguments)


def _deepseek(name, arguments):
  return (
    f'{deepseek.BEGIN}{deepseek.CALL}function{deepseek.SEP}{name}\n```json\n'
    f'{_dumps(arguments)}\n```{deepseek.CALL_END}{deepseek.END}'
  )


def _deepseek_new(name, arguments):
  return (
    f'{deepseek.BEGIN}{deepseek.CALL}{name}{deepseek.SEP}{_dumps(arguments)}'
    f'{deepseek.CALL_END}{deepseek.END}'
  )


def _coder(name, arguments):
  values = ''.join(
    f'<parameter={key}>\n{value}\n</parameter>\n'
    for key, value in arguments.items()
  )
  return f'<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>'


def _harmony(name, arguments):
  # The next message is begun, so that another may follow.
  return (
    f'{harmony.CHANNEL}commentary to=functions.{name} {harmony.CONSTRAIN}json'
    f'{harmony.MESSAGE}{_dumps(arguments)}{harmony.CALL}{harmony.START}'
    'assistant'
  )


def _pythonic(name, arguments):
  written = ', '.join(f'{key}={value!r}' for key, value in arguments.items())
  return f'[{name}({written})]'


def _pythonic_tags(name, arguments):
  return pythonic.OPENS[0] + _pythonic(name, arguments) + pythonic.CLOSE


def _json(name, arguments, key='arguments'):
  return f'{{"name": "{name}", "{key}": {_dumps(arguments)}}}'


def _dumps(value):
  return json.dumps(value, ensure_ascii=False)


WRITERS = {
  'hermes': (hermes.FORMAT, _hermes),
  'llama_json': (llama_json.FORMAT, _llama),
  'llama_json_tag': (llama_json.FORMAT, _llama_tag),
  'mistral': (mistral.FORMAT, _mistral),
  'mistral_new': (mistral.FORMAT, _mistral_new),
  'deepseek': (deepseek.FORMAT, _deepseek),
  'deepseek_new': (deepseek.FORMAT, _deepseek_new),
  'qwen_coder': (qwen_coder.FORMAT, _coder),
  'harmony': (harmony.FORMAT, _harmony),
  'pythonic': (pythonic.FORMAT, _pythonic),
  'pythonic_tags': (pythonic.FORMAT, _pythonic_tags),
}


# Whose arguments are not spelled as JSON.
SPELLED = ('qwen_coder', 'pythonic', 'pythonic_tags')
# Whose calls are all of an answer, or messages of it.
UNMARKED = ('llama_json', 'pythonic', 'pythonic_tags', 'harmony')


def call(name, arguments):
  return calls.ToolCall(name=name, arguments=_dumps(arguments))


def drawn(rng, write, marks):
  """A text of whole calls, torn calls, marks, parts of them, and words."""
  parts = []
  for _ in range(rng.randrange(1, 6)):
    kind = rng.randrange(7)
    whole = write(rng.choice('fg'), rng.choice(ARGUMENTS))
    mark = rng.choice([*marks, '<think>', '</think>'])
    if kind < 2:
      parts.append(whole)
    elif kind == 2:  # One character is missing.
      at = rng.randrange(len(whole))
      parts.append(whole[:at] + whole[at + 1 :])
    elif kind == 3:
      parts.append(whole[: rng.randrange(len(whole))])
    elif kind == 4:
      parts.append(mark[: rng.randrange(1, len(mark) + 1)])
    else:
      parts.append(rng.choice(['\n', ' ', 'word', '{', '"', '[1, 2]', ';']))
  return ''.join(parts)
