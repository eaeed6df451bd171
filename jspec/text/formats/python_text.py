# SPDX-License-Identifier: MIT
r"""A literal of Python as JSON.

  'it\'s'         "it's"          (1, 2.50)   [1, 2.5]
  {'a': None}     {"a": null}     [true]      [true]

What is JSON already stays as it is written; `true`, `false` and `null` are
taken anywhere. Nothing is evaluated. What has no JSON is refused: bytes, sets,
complex numbers, keys that are no texts.
"""

import ast
import json
import re

from jspec.text.formats import calls, json_text

# Less than where Python's own parser stops.
_MAX_DEPTH = 50
_CLOSERS = {'(': ')', '[': ']', '{': '}'}
_QUOTES = '"\''
_STRING = {
  quote: re.compile(rf'{quote}(?:[^{quote}\\\n]|\\.)*+', re.DOTALL)
  for quote in _QUOTES
}
_LONG_STRING = {
  quote: re.compile(rf'{quote * 3}(?:(?!{quote * 3})[^\\]|\\.)*+', re.DOTALL)
  for quote in _QUOTES
}
# Between strings and brackets nothing else is in a literal.
_PLAIN = re.compile(r'[\w.+:\s-]*+')
_WORD = re.compile(r'\w\Z')
_ESCAPE = re.compile(r'\\(.)', re.DOTALL)
_ESCAPES = '\n\\\'"abfnrtvxuU01234567'
_NAMES = {'true': True, 'false': False, 'null': None}


def end(text: str, at: int) -> int | calls.More | None:
  """Returns where a value ends: at a comma or a closing parenthesis."""
  start, closers = at, ''
  while True:
    at = _PLAIN.match(text, at).end()
    if at == len(text):
      return calls.More()
    char = text[at]
    if char in _QUOTES:
      if at > start and _WORD.search(text[at - 1]):
        return None  # Bytes, or another prefix.
      at = _string_end(text, at)
      if not isinstance(at, int):
        return at
      continue
    if char in _CLOSERS:
      if len(closers) == _MAX_DEPTH:
        return None
      closers += _CLOSERS[char]
    elif char == ',':
      if not closers:
        return at
    elif char == closers[-1:]:
      closers = closers[:-1]
    else:
      return at if char == ')' and not closers else None
    at += 1


def _string_end(text, at):
  quote = text[at]
  is_long = text.startswith(quote * 3, at)
  if not is_long and text.startswith(quote * 2, at):
    return at + 2 if at + 2 < len(text) else calls.More()
  pattern = (_LONG_STRING if is_long else _STRING)[quote]
  last = pattern.match(text, at).end()
  if text[last:] == '\\':
    return calls.More()
  return calls.literal(text, last, quote * 3 if is_long else quote)


def to_json(text: str) -> str | None:
  """Returns the JSON of a whole literal; None: it is none, or has none."""
  text = text.strip()
  listed = f'[{text}]'
  value = json_text.scan(listed, 0)
  if isinstance(value, json_text.Value) and value.end == len(listed):
    return text if len(value.members) == 1 else None
  # Escapes that Python does not know stand for themselves.
  spelled = _ESCAPE.sub(
    lambda found: found[0] if found[1] in _ESCAPES else '\\' + found[0], text
  )
  try:
    tree = ast.parse(f'({spelled}\n)', mode='eval')
    found = json.dumps(_value(tree.body), ensure_ascii=False, allow_nan=False)
    found.encode()  # A lone surrogate could not be sent.
  except (SyntaxError, ValueError, MemoryError, RecursionError):
    return None
  return found


def _value(node):
  """The value of a node; ValueError: it is no literal."""
  match node:
    case ast.Constant(value=bool() | int() | float() | str() | None):
      return node.value
    case ast.Name(id=name) if name in _NAMES:
      return _NAMES[name]
    case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
      if type(value) in (int, float):
        return -value
    case ast.List(elts=items) | ast.Tuple(elts=items):
      return [_value(item) for item in items]
    case ast.Dict(keys=keys, values=values):
      names = [_value(key) for key in keys if key is not None]
      if len(names) == len(keys) and all(type(n) is str for n in names):
        return dict(zip(names, map(_value, values), strict=True))
  raise ValueError('no literal')
