# SPDX-License-Identifier: MIT
"""Messages of an answer of GPT-OSS: thought, content, and what is sent."""

import itertools
import random

import pytest

from jspec.text import answers
from jspec.text.formats import calls, harmony

SCHEMAS = {'f': {}, 'get-it_2': {}}
ANALYSIS = '<|channel|>analysis<|message|>'
FINAL = '<|channel|>final<|message|>'
COMMENTARY = '<|channel|>commentary<|message|>'
NEXT = '<|end|><|start|>assistant'


def form(schemas=SCHEMAS):
  return answers.Format(tools=harmony.FORMAT, schemas=schemas)


def parse(text, schemas=SCHEMAS):
  return answers.parse(text, form(schemas))


def called(arguments='{}', name='f'):
  return (calls.ToolCall(name=name, arguments=arguments),)


@pytest.mark.parametrize('end', ['', '<|return|>', '<|end|>', '<|return|>\n'])
@pytest.mark.parametrize('schemas', [SCHEMAS, {}])
def test_thought_and_answer(end, schemas):
  text = f'{ANALYSIS}Hm.\n So.{NEXT}{FINAL} Yes,\n yes.{end}'
  want = answers.Answer(reasoning='Hm.\n So.', content=' Yes,\n yes.')
  assert parse(text, schemas) == want


def test_messages_of_a_kind_are_lines():
  text = NEXT.join(
    [ANALYSIS + 'a', COMMENTARY + 'Plan', ANALYSIS + 'b', FINAL + 'Done']
  )
  want = answers.Answer(reasoning='a\nb', content='Plan\nDone')
  assert parse(text) == want


@pytest.mark.parametrize(
  'header',
  [
    '<|channel|>commentary to=functions.{} <|constrain|>json',
    '<|channel|>commentary to=functions.{}<|constrain|>json',
    '<|channel|>commentary to=functions.{} json',
    '<|channel|>analysis to=functions.{} code',
    ' to=functions.{}<|channel|>commentary json',
    ' to=functions.{}<|channel|>commentary',
  ],
)
@pytest.mark.parametrize('name', ['f', 'get-it_2'])
def test_function_is_called(header, name):
  head = header.format(name) + '<|message|>'
  text = head + '{"a": [1, "<|end|>"]}<|call|>'
  want = answers.Answer(tool_calls=called('{"a": [1, "<|end|>"]}', name))
  assert parse(text) == want
  found = parse(f'{ANALYSIS}Hm{NEXT}{COMMENTARY}I look.{NEXT}{text}')
  assert found == answers.Answer(reasoning='Hm', content='I look.') + want
  # Without tools it is said to nobody.
  assert parse(text, {}).tool_calls == ()
  # An empty message has no arguments.
  assert parse(head + '<|call|>').tool_calls == called(name=name)


def test_other_recipients_are_no_functions():
  text = '<|channel|>analysis to=python code<|message|>1 + 1<|call|>'
  assert parse(text) == answers.Answer(reasoning='1 + 1')


def test_arguments_that_are_no_json_are_content():
  head = '<|channel|>commentary to=functions.f<|message|>'
  assert parse(head + 'x = 1<|call|>') == answers.Answer(content='x = 1')
  found = parse(head + '{"a": 1 x}<|call|>')
  assert found == answers.Answer(tool_calls=called('{"a": 1 '), content='x}')


def test_text_without_headers_and_marks_that_are_mentioned_are_content():
  for text in ('Hello', 'to whom', '<|channel|>final says "Hi"', ''):
    assert parse(text) == answers.Answer(content=text)
  text = 'Write <|end|> and <|start|>, or <|call|>; <|message|>.'
  assert parse(FINAL + text + '<|return|>') == answers.Answer(content=text)


def test_answer_that_is_cut_has_what_was_said():
  tokens = ['<|channel|>', 'analysis', '<|message|>', 'Hm', '.', '<|end|>']
  tokens += ['<|start|>', 'assistant', '<|channel|>', 'final', '<|message|>']
  tokens += ['Yes', '.', '<|return|>']
  for num in range(len(tokens) + 1):
    found = parse(''.join(tokens[:num]))
    assert found.reasoning == ''.join(tokens[3 : max(min(num, 5), 3)])
    assert found.content == ''.join(tokens[11 : max(min(num, 13), 11)])


def test_any_cut_gives_what_the_whole_text_gives():
  rng = random.Random(0)
  head = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>'
  parts = [ANALYSIS, FINAL, COMMENTARY, head, NEXT, '<|call|>', '<|start|>']
  parts += ['{"a": 1}', '{"b', 'word', ' ', '\n', '<|en', '<|end|>', 'to=']
  num = {'reasoning': 0, 'content': 0, 'tool_calls': 0}
  for i in range(60):
    text = ''.join(rng.choices(parts, k=rng.randrange(1, 9)))
    text = rng.choice([ANALYSIS, FINAL, head, '']) + text
    schemas = SCHEMAS if i % 4 else {}
    whole = parse(text, schemas)
    for name in num:
      num[name] += bool(getattr(whole, name))
    for places in (range(len(text)), [rng.randrange(len(text) + 1)]):
      deltas = answers.Deltas(form(schemas))
      edges = [0, *places, len(text)]
      found = answers.Answer()
      for start, stop in itertools.pairwise(edges):
        found += deltas.push(text[start:stop])
        assert whole.content.startswith(found.content)
        assert whole.reasoning.startswith(found.reasoning)
      assert found + deltas.finish() == whole, (text, places)
  assert min(num.values()) > 3, num


def test_thought_is_shown_while_it_comes():
  deltas = answers.Deltas(form())
  assert deltas.push(ANALYSIS + 'Hm, le').reasoning == 'Hm, le'
  assert deltas.push('t me<|e').reasoning == 't me'
  found = deltas.push('nd|><|start|>assistant' + FINAL + 'Y')
  assert found == answers.Answer(content='Y')


def test_tokens_of_all_thoughts_are_counted():
  pieces = [ANALYSIS, 'a', ' b', NEXT, COMMENTARY, 'x', NEXT, ANALYSIS, 'c']
  pieces += [NEXT, FINAL, 'y', '<|return|>']
  assert answers.num_reasoning_tokens(pieces, form()) == 3
