# SPDX-License-Identifier: MIT
"""Whatever a grammar for tools lets through is read as calls that fit."""

import dataclasses
import json

import numpy as np
import pytest

from jspec import errors
from jspec.serve import structured
from jspec.text import answers, incremental, tool_choice
from jspec.text.formats import detection, harmony, thinking
from tests.serve import constrained

WEATHER = {
  'type': 'object',
  'properties': {
    'a': {'enum': ['ab', '</tool_call>']},
    'b': {'type': 'boolean'},
  },
  'required': ['a'],
  'additionalProperties': False,
}


def tools(*names):
  return [
    {'type': 'function', 'function': {'name': name, 'parameters': WEATHER}}
    for name in names
  ]


def form(format_name, names=('f', 'get-it_2'), **changes):
  return answers.Format(
    tools=format_name and detection.named(format_name),
    schemas=tool_choice.schemas(tools(*names)),
    **changes,
  )


def spell(tok, matcher, rng):
  """An answer that the grammar allows, and its text with every mark."""
  tokens = constrained.walk(matcher, rng, most=600)
  text = incremental.Detokenizer(tok, skip_special=False)
  return tokens and text.push(tokens) + text.finish()


@pytest.fixture(scope='module')
def tok():
  # Mistral's and Llama's marks are special tokens, the others text.
  made = constrained.byte_tokenizer()
  made.backend.add_special_tokens(['[TOOL_CALLS]', '<|python_tag|>'])
  return made


@pytest.fixture(scope='module')
def compiler(tok):
  pytest.importorskip('llguidance')
  return structured.Compiler(tok, tok.vocab_size)


@pytest.mark.few(3)
@pytest.mark.parametrize(
  'name', [None, *(found.name for found in detection.TOOL_FORMATS)]
)
def test_forced_answer_is_a_call_that_fits_its_schema(tok, compiler, name):
  found = {}
  for choice, is_parallel in (('required', True), ('get-it_2', True)):
    forced = tool_choice.forced(
      choice, form(name), tok, is_parallel=is_parallel
    )
    constraint = structured.Constraint(forced.kind, forced.text)
    rng = np.random.default_rng(0)
    for _ in range(6):
      text = spell(tok, compiler.matcher(constraint), rng)
      if text is None:  # It wrote calls for ever.
        continue
      answer = answers.parse(text, forced.form)
      assert (answer.content, answer.reasoning) == ('', ''), text
      assert answer.tool_calls
      for call in answer.tool_calls:
        constrained.check(json.loads(call.arguments), WEATHER)
      found.setdefault(choice, []).extend(c.name for c in answer.tool_calls)
  assert set(found['required']) <= {'f', 'get-it_2'}
  assert set(found['get-it_2']) == {'get-it_2'}


def test_calls_are_one_where_they_may_not_be_several(tok, compiler):
  for is_parallel in (True, False):
    forced = tool_choice.forced(
      'required', form('hermes'), tok, is_parallel=is_parallel
    )
    one = '<tool_call>\n{"name": "f", "arguments": {"a": "ab"}}\n</tool_call>'
    constraint = structured.Constraint(forced.kind, forced.text)
    matcher = compiler.matcher(constraint)
    done = matcher.commit(tok.encode(one))
    assert done.is_finished is not is_parallel
    if is_parallel:
      matcher.commit(tok.encode('\n' + one))
      assert matcher.is_accepting


def test_thought_that_was_opened_may_end_first(tok, compiler):
  opened = form('hermes', tags=thinking.THINK, is_open=True)
  forced = tool_choice.forced('f', opened, tok)
  constraint = structured.Constraint(forced.kind, forced.text)
  text = 'So "f" <tool_call>.\n</think>'
  text += '<tool_call>\n{"name": "f", "arguments": {"a": "ab"}}\n</tool_call>'
  matcher = compiler.matcher(constraint)
  assert matcher.commit(tok.encode(text)).is_finished
  answer = answers.parse(text, forced.form)
  assert answer.reasoning == 'So "f" <tool_call>.'
  assert [call.name for call in answer.tool_calls] == ['f']


def test_thought_of_harmony_may_come_first():
  pytest.importorskip('llguidance')
  made = constrained.byte_tokenizer()
  made.backend.add_special_tokens(list(harmony.FORMAT.marks))
  # `<|end|>` ends a message only.
  made = dataclasses.replace(made, eos_ids=(made.token_id('<|return|>'),))
  forced = tool_choice.forced('required', form('harmony'), made)
  compiler = structured.Compiler(made, made.vocab_size)
  constraint = structured.Constraint(forced.kind, forced.text)
  call = (
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>'
    '{"a": "ab"}'
  )
  thought = '<|channel|>analysis<|message|>So "f".<|end|><|start|>assistant'
  for text in (call, thought + call):
    matcher = compiler.matcher(constraint)
    assert matcher.commit(made.encode(text)).num_tokens
    assert matcher.is_accepting
    answer = answers.parse(text, forced.form)
    assert [call.arguments for call in answer.tool_calls] == ['{"a": "ab"}']
    assert answer.reasoning == ('So "f".' if text != call else '')
  final = compiler.matcher(constraint)
  with pytest.raises(ValueError):
    final.commit(made.encode('<|channel|>final'))


@pytest.mark.parametrize(
  'text, is_one',
  [
    ('[f(a="ab")]', True),
    ('[f(a="ab", b=true)]', True),
    ('[f(a="ab"), get-it_2(a="ab")]', True),
    ('[f(b=true)]', False),
    ('[f(b=true, a="ab")]', False),
    ('[f()]', False),
    ('[f(a="x")]', False),
    ('[f(c=1)]', False),
  ],
)
def test_calls_of_python_are_written_in_order(tok, compiler, text, is_one):
  forced = tool_choice.forced('required', form('pythonic'), tok)
  matcher = compiler.matcher(structured.Constraint(forced.kind, forced.text))
  try:
    matcher.commit(tok.encode(text))
    assert matcher.is_accepting == is_one
  except ValueError:
    assert not is_one
  if is_one:
    assert all(answers.parse(text, forced.form).tool_calls)


@pytest.mark.parametrize(
  'schema, named',
  [
    ({'anyOf': [{'required': ['a']}]}, 'anyOf'),
    ({'properties': {'a b': {}}}, "'a b'"),
    ({'properties': {'a': {'x-guidance': {}}}}, 'x-guidance'),
    ({'properties': {'a': 3}}, 'no schema'),
  ],
)
def test_schema_that_keywords_cannot_follow_is_refused(tok, schema, named):
  what = dataclasses.replace(form('pythonic'), schemas={'f': schema})
  with pytest.raises(errors.UserError, match=named):
    tool_choice.forced('f', what, tok)


def test_marks_that_are_special_tokens_are_those_tokens(tok, compiler):
  forced = tool_choice.forced('f', form('mistral'), tok)
  matcher = compiler.matcher(structured.Constraint(forced.kind, forced.text))
  first = constrained.ids(matcher.mask_words())
  assert first == [tok.token_id('[TOOL_CALLS]')]


@pytest.mark.parametrize(
  'given, named',
  [
    ([{'type': 'retrieval'}], "not of type 'function'"),
    ([{'function': {'name': 'f'}}], "not of type 'function'"),
    ([{'type': 'function'}], 'has no function'),
    ([{'type': 'function', 'function': {'name': 'a b'}}], "'a b'"),
    ([{'type': 'function', 'function': {}}], 'None'),
    (tools('f', 'f'), 'twice'),
    (
      [{'type': 'function', 'function': {'name': 'f', 'parameters': [1]}}],
      'no JSON schema',
    ),
  ],
)
def test_tools_that_are_none_are_refused(given, named):
  with pytest.raises(errors.UserError, match=named):
    tool_choice.schemas(given)


def test_choice_that_cannot_be_kept_is_refused(tok):
  with pytest.raises(errors.UserError, match='no such function'):
    tool_choice.forced('g', form('hermes'), tok)
  with pytest.raises(errors.UserError, match='no such function'):
    tool_choice.forced('required', form('hermes', ()), tok)
  for schema, named in (
    ({'x-guidance': {}}, 'x-guidance'),
    ({'type': 'string'}, "type 'object'"),
  ):
    what = answers.Format(schemas={'f': schema})
    with pytest.raises(errors.UserError, match=named):
      tool_choice.forced('f', what, tok)


def test_function_without_parameters_takes_an_empty_object():
  given = [{'type': 'function', 'function': {'name': 'f'}}]
  schema = tool_choice.schemas(given)['f']
  assert schema == {'type': 'object', 'properties': {}}
