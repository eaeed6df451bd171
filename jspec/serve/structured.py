# SPDX-License-Identifier: MIT
r"""Structured output on the host: what an answer has to look like, compiled.

  Constraint  --Compiler-->  Matcher  --masks-->  decode.grammar
  a value                    of a request         on the device

The grammar engine is llguidance (MIT), the extra `structured`, imported when
the first `Compiler` is made. What it cannot enforce whole is refused: a schema
keyword that would be ignored is an answer that does not validate. Words that
JSON Schema itself does not know are annotations there, and so they are here.

Kinds:

  json_schema   an object that is a JSON schema. Properties come in the order
                in which the schema lists them.
  json_object   any JSON object
  regex         the whole answer matches, in the dialect of Rust's `regex`
  lark          a grammar in llguidance's dialect of Lark

JSON may hold white space between its tokens, at most 32 characters at a place:
without a bound a model that has lost its way emits blanks for ever.
Letters beyond ASCII stand for themselves in it, not as \u escapes.
"""

import collections
import dataclasses
import json
import threading
import types
from typing import Any

from jspec import errors
from jspec.decode import grammar
from jspec.serve import structured_matcher
from jspec.text import tokenizer as tokenizer_lib

KINDS = ('json_schema', 'json_object', 'regex', 'lark')
EXTRA = 'structured'

_ANY_OBJECT = '{"type": "object"}'
_JSON_OPTIONS = {
  'lenient': False,  # An unknown keyword is an error.
  'coerce_one_of': False,  # Neither is `oneOf` taken for `anyOf`.
  'whitespace_pattern': r'[ \t\n\r]{1,32}',
}
_OPTIONS_KEY = 'x-guidance'  # By which a schema could undo the above.
_CACHE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Constraint:
  """What the text of an answer must be.

  Construction refuses what no library is needed to see; `Compiler.matcher`
  refuses the rest, so call it before the request is let in.

  Attributes:
    kind: one of `KINDS`.
    text: the schema, regex or grammar; empty for `json_object`.

  Raises:
    UserError: an unknown kind, a text that is none, a schema that is no JSON
      object.
  """

  kind: str
  text: str = ''

  def __post_init__(self):
    if self.kind not in KINDS:
      raise errors.UserError(
        f'structured output of kind {self.kind!r} is not supported; give one of'
        f' {", ".join(KINDS)}'
      )
    if not isinstance(self.text, str):
      raise errors.UserError(
        f'the {self.kind} is a {type(self.text).__name__}; give it as text'
      )
    if bool(self.text) == (self.kind == 'json_object'):
      mend = 'leave it out' if self.text else f'give the {self.kind} as text'
      found = 'a text' if self.text else 'no text'
      raise errors.UserError(
        f'structured output of kind {self.kind} has {found}; {mend}'
      )
    if self.kind == 'json_schema':
      _schema(self.text)


class Compiler:
  """Makes matchers for the vocabulary of one tokenizer.

  Building it takes 0.3 s for 49,152 tokens; do it before traffic. A constraint
  is compiled once and kept, the last 64 of them; threads may share a compiler.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer, vocab_size: int):
    """Reads the vocabulary.

    Args:
      tokenizer: of the target.
      vocab_size: rows of the target's head, padding included; sets the width
        of the masks.

    Raises:
      UserError: llguidance is not installed, or cannot use the tokenizer.
    """
    self._library = library()
    tokenizer_lib.check_fits(tokenizer, vocab_size, 'structured output')
    if not tokenizer.eos_ids:
      raise errors.UserError(
        'structured output needs a token that ends the answer and the tokenizer'
        ' names none; add eos_token to tokenizer_config.json'
      )
    try:
      self._vocabulary = self._library.LLTokenizer(
        tokenizer.backend.to_str(), eos_token=list(tokenizer.eos_ids)
      )
    except (ValueError, RuntimeError) as error:
      raise errors.UserError(
        f'structured output cannot use this tokenizer ({_reason(str(error))});'
        ' use a model with byte-level or byte-fallback BPE'
      ) from error
    self._num_ids = self._vocabulary.vocab_size
    self._num_words = grammar.num_words(vocab_size)
    self._compiled = collections.OrderedDict()
    self._lock = threading.Lock()

  def matcher(
    self, constraint: Constraint, emitted: tuple[int, ...] = ()
  ) -> structured_matcher.Matcher:
    """Returns the matcher of a request.

    Args:
      constraint: what its answer must be.
      emitted: tokens of the answer so far, after a preemption.

    Raises:
      UserError: the constraint cannot be enforced, or nothing satisfies it.
      ValueError: `emitted` does not satisfy it.
    """
    with self._lock:
      start = self._compiled.pop(constraint, None)
    if start is None:
      start = self._compile(constraint)
    with self._lock:
      self._compiled[constraint] = start
      while len(self._compiled) > _CACHE_SIZE:
        self._compiled.popitem(last=False)
    made = structured_matcher.Matcher(start, self._num_ids, self._num_words)
    made.commit(emitted)
    return made

  def _compile(self, constraint):
    what = constraint.kind.replace('_', ' ')
    try:
      start = self._library.LLMatcher(
        self._vocabulary,
        _grammar(self._library.LLMatcher, constraint),
        log_level=0,
        limits=self._library.LLParserLimits(verbose_errors=False),
      )
    except ValueError as error:  # Text that is no Unicode, for one.
      raise errors.UserError(
        f'the {what} cannot be read ({_reason(str(error))}); correct it'
      ) from error
    if start.is_error():
      raise errors.UserError(
        f'the {what} cannot be enforced: {_reason(start.get_error())}; write it'
        ' another way or leave that out'
      )
    # Asked of a copy: a grammar that is found to be empty stays broken.
    first = start.deep_copy()
    first.compute_bitmask()
    if first.is_error():
      raise errors.UserError(
        f'the {what} allows no answer at all'
        f' ({structured_matcher.reason(first)}); correct it'
      )
    return start


def library() -> types.ModuleType:
  """Imports llguidance.

  Raises:
    UserError: it is not installed.
  """
  try:
    import llguidance  # An extra: most servers never need it.
  except ImportError as error:
    raise errors.UserError(
      f'structured output needs llguidance ({error}); install it with'
      f" `pip install 'jspec[{EXTRA}]'`"
    ) from error
  return llguidance


def _grammar(compiler, constraint):
  """The constraint in the library's own form."""
  if constraint.kind == 'regex':
    return compiler.grammar_from_regex(constraint.text)
  if constraint.kind == 'lark':
    return compiler.grammar_from_lark(constraint.text)
  schema = _schema(constraint.text or _ANY_OBJECT)
  # Written anew: the library pastes the text into a larger JSON document.
  return compiler.grammar_from_json_schema(
    json.dumps(schema), overrides=_JSON_OPTIONS
  )


def _schema(text: str) -> dict[str, Any]:
  try:
    schema = json.loads(text, parse_constant=_no_json)
  except (ValueError, RecursionError) as error:
    raise errors.UserError(
      f'the JSON schema is not valid JSON ({_reason(str(error))}); correct it'
    ) from error
  if not isinstance(schema, dict):
    raise errors.UserError(
      f'the JSON schema is a {type(schema).__name__}; give an object, such as'
      f' {_ANY_OBJECT}'
    )
  if _OPTIONS_KEY in schema:
    raise errors.UserError(
      f'the JSON schema has {_OPTIONS_KEY!r}, options of the grammar engine'
      ' that a request may not set; leave it out'
    )
  return schema


def _no_json(constant):
  raise ValueError(f'{constant} is no JSON')


def _reason(message: str) -> str:
  """One line of a message that draws pictures with several."""
  lines = [line.strip() for line in message.splitlines() if line.strip()]
  errors_only = [line for line in lines if line.startswith('error: ')]
  return (errors_only or lines or ['no reason given'])[0][:200]
