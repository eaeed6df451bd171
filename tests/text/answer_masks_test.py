# SPDX-License-Identifier: MIT
"""In every family, the mask is what the model writes, turn by turn."""

import dataclasses
import itertools
import random

import pytest

from jspec import errors
from jspec.text import answer_masks, chat
from tests.text import families

FAMILIES = families.FAMILIES
_TEXTS = ('hello', 'he he', 'hello', 'Grüße, 東京', 'll\n\nhe', '<b>x</b>', 'a')


def conversation(rng, family):
  """Repeated texts on purpose: nothing may be found by its words."""
  messages = []
  if family.has_system and rng.random() < 0.5:
    messages.append({'role': 'system', 'content': rng.choice(_TEXTS)})
  for _ in range(rng.randint(1, 4)):
    messages.append({'role': 'user', 'content': rng.choice(_TEXTS)})
    messages.append({'role': 'assistant', 'content': rng.choice(_TEXTS)})
    if rng.random() < 0.5:
      messages[-1]['reasoning_content'] = rng.choice(_TEXTS)
  if rng.random() < 0.2:
    messages.append({'role': 'user', 'content': 'he'})
  return messages


def runs(mask):
  """First and last index of each run of answer tokens."""
  at, found = 0, []
  for is_answer, group in itertools.groupby(mask):
    num = len(list(group))
    if is_answer:
      found.append((at, at + num))
    at += num
  return found


def check(family, messages):
  """Every law that the documents of a conversation keep."""
  tok, template = family.tokenizer(), family.template
  given = {'variables': family.variables}
  found = answer_masks.documents(tok, template, messages, **given)
  answers = [i for i, m in enumerate(messages) if m['role'] == 'assistant']
  assert sorted(i for d in found for i in d.turns) == answers
  for document in found:
    whole = template.render(
      messages[: document.turns[-1] + 1], add_generation_prompt=False, **given
    )
    assert document.ids == tok.encode(whole)
    spans = runs(document.mask)
    assert len(spans) == len(document.turns)
    for (start, stop), turn in zip(spans, document.turns, strict=True):
      text = tok.decode(document.ids[start:stop], skip_special=False)
      assert text == family.written(messages[turn])
      prompt = template.render(
        messages[:turn], add_generation_prompt=True, **given
      )
      if turn == document.turns[-1]:
        assert document.ids[:start] == tok.encode(prompt)
  return found


@pytest.mark.parametrize('name', FAMILIES)
def test_mask_is_what_the_model_writes_in_each_turn(name):
  rng = random.Random(0)
  for _ in range(12):
    check(FAMILIES[name], conversation(rng, FAMILIES[name]))


def talk(*thoughts):
  messages = []
  for said in thoughts:
    messages += [
      {'role': 'user', 'content': 'hello'},
      {'role': 'assistant', 'content': 'll', 'reasoning_content': said},
    ]
  return messages


@pytest.mark.parametrize(
  'name, num', [('thinking_kept', 1), ('thinking_stripped', 3), ('harmony', 3)]
)
def test_turns_that_are_rewritten_get_documents_of_their_own(name, num):
  found = check(FAMILIES[name], talk('he', 'a', 'he'))
  assert len(found) == num
  if num == 1:
    return
  tok = FAMILIES[name].tokenizer()
  for document, said in zip(found, ('he', 'a', 'he'), strict=True):
    text = tok.decode(document.ids, skip_special=False)
    # Thoughts of earlier turns are gone, as a server's prompt lacks them.
    assert text.count('<think>') <= 1 and said in text
  with pytest.raises(errors.UserError, match='message 1.*rewrites it'):
    answer_masks.answer_mask(tok, FAMILIES[name].template, talk('he', 'a'))


def test_tool_turns_of_one_answer_share_a_document():
  family = FAMILIES['thinking_stripped']
  messages = talk('he', 'a')
  messages[2]['role'] = 'tool'
  assert [d.turns for d in check(family, messages)] == [(1, 3)]


def test_rewritten_ends_alone_split_too():
  # Without thoughts, harmony still ends the last turn in another token.
  assert len(check(FAMILIES['harmony'], talk('', ''))) == 2


def test_a_greeting_is_no_answer():
  family = FAMILIES['chatml']
  greeting = {'role': 'assistant', 'content': 'hello'}
  (found,) = answer_masks.documents(
    family.tokenizer(), family.template, [greeting, *talk('')]
  )
  assert found.turns == (2,)
  with pytest.raises(errors.UserError, match='no assistant turn'):
    answer_masks.documents(family.tokenizer(), family.template, [greeting])


def refused(family, messages=None, **given):
  messages = messages or talk('he', 'a')
  with pytest.raises(errors.UserError) as caught:
    answer_masks.documents(
      family.tokenizer(), family.template, messages, **given
    )
  assert '\n' not in str(caught.value)
  return str(caught.value)


def marked(body):
  return dataclasses.replace(FAMILIES['chatml'], source=families.chatml(body))


def test_marks_that_begin_before_the_answer_are_cut_to_it():
  source = FAMILIES['chatml'].source
  whole = dataclasses.replace(
    FAMILIES['chatml'],
    source='{% generation %}' + source + '{% endgeneration %}',
  )
  rng = random.Random(1)
  for _ in range(5):
    check(whole, conversation(rng, whole))


def test_answer_ends_where_a_server_would_stop():
  # The end of the text is marked once more, by an end token of its own.
  family = dataclasses.replace(
    FAMILIES['chatml'],
    source=FAMILIES['chatml'].source
    + '{% if not add_generation_prompt %}</s>{% endif %}',
    specials=(*FAMILIES['chatml'].specials, '</s>'),
    ends=('<|im_end|>', '</s>'),
  )
  (found,) = check(family, talk('', ''))
  assert family.tokenizer().decode(found.ids, skip_special=False).endswith('s>')


def test_content_that_the_template_drops_is_refused():
  parts = FAMILIES['chatml'].source.replace(
    '{{ m.content + ', "{{ m.content[0]['text'] | default('') + "
  )
  family = dataclasses.replace(FAMILIES['chatml'], source=parts)
  assert 'shows nothing of its content' in refused(family)


def test_marks_around_nothing_of_the_answer_are_refused():
  said = "{{ m.content + '<|im_end|>' }}"
  wrong = FAMILIES['chatml'].source.replace(
    "{{ '<|im_start|>' + m.role + '\\n' }}",
    "{% generation %}{{ '<|im_start|>' + m.role + '\\n' }}{% endgeneration %}",
  )
  wrong = dataclasses.replace(FAMILIES['chatml'], source=wrong)
  assert 'marks nothing' in refused(wrong)
  none = marked(
    said + '{% if false %}{% generation %}x{% endgeneration %}{% endif %}'
  )
  assert 'marks nothing' in refused(none)


def test_marks_within_marks_and_changed_marks_are_refused():
  double = '{% generation %}' * 2 + 'x' + '{% endgeneration %}' * 2
  assert 'within another one' in refused(marked(double))
  changed = (
    '{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}'
    '{{ x | length }}'
  )
  assert 'changes afterwards' in refused(marked(changed))


def test_prompt_that_the_answer_does_not_begin_with_is_refused():
  # The thought is opened for the model, and dropped with the answer.
  source = families.chatml("{{ m.content + '<|im_end|>' }}", "{{ '<think>' }}")
  family = dataclasses.replace(FAMILIES['chatml'], source=source)
  said = refused(family)
  assert "ends the prompt with '<think>'" in said and '`prompt_len`' in said
  # Served without thinking, but the answers have thoughts.
  said = refused(
    FAMILIES['thinking_stripped'], variables={'enable_thinking': False}
  )
  assert 'enable_thinking' in said


def test_token_over_the_border_is_refused():
  # '\n' ends the prompt, '\n' begins the answer, '\n\n' is one token.
  family = FAMILIES['chatml']
  messages = talk('')
  messages[1]['content'] = '\nhello'
  assert 'reaches over the border' in refused(family, messages)


def test_content_may_be_parts():
  family = FAMILIES['chatml']
  messages = talk('')
  messages[1]['content'] = [{'type': 'text', 'text': 'he'}]
  (found,) = answer_masks.documents(
    family.tokenizer(), family.template, messages
  )
  assert sum(found.mask) == 2


def test_tools_reach_the_text():
  source = '{% if tools %}{{ tools[0].function.name }}{% endif %}'
  family = dataclasses.replace(
    FAMILIES['chatml'], source=source + FAMILIES['chatml'].source
  )
  tools = [{'type': 'function', 'function': {'name': 'hell'}}]
  (found,) = answer_masks.documents(
    family.tokenizer(), family.template, talk(''), tools=tools
  )
  text = family.tokenizer().decode(found.ids, skip_special=False)
  assert text.startswith('hell<|im_start|>')
  assert chat.ChatTemplate(source).has_marks is False
