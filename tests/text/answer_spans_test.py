# SPDX-License-Identifier: MIT
"""The mask of a conversation: what the model wrote in each turn, or an error.

Templates as they are found: with and without generation marks, with tools, and
with thinking that is kept or taken out of earlier turns.
"""

import itertools

import pytest

from jspec import errors
from jspec.text import answer_masks, chat
from tests.text import chat_test

CHATML = chat_test.CHATML
MARKED = (
  '{% for m in messages %}'
  "{{ '<|im_start|>' + m['role'] + '\n' }}"
  "{% if m['role'] == 'assistant' %}"
  "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
  "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
  "{{ '\n' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Everything up to the end of a thought is taken out of all turns but the last.
STRIPS = CHATML.replace(
  "m['content']",
  "(m['content'] if loop.last else m['content'].split('</think>')[-1])",
)

tok = chat_test.tok  # The fixture.


def spans(tok, template, messages):
  """The masked text, run by run, and all ids."""
  ids, mask = answer_masks.answer_mask(
    tok, chat.ChatTemplate(template), messages
  )
  runs = [
    tok.decode([i for i, _ in group], skip_special=False)
    for is_answer, group in itertools.groupby(
      zip(ids, mask, strict=True), key=lambda pair: pair[1]
    )
    if is_answer
  ]
  return runs, ids


@pytest.mark.parametrize('template', [CHATML, MARKED], ids=['bare', 'marked'])
def test_answers_and_their_ends_are_masked_with_marks_or_without(tok, template):
  messages = chat_test.talk('hello', 'he he', 'hello', 'll')
  runs, ids = spans(tok, template, messages)
  assert runs == ['he he<|im_end|>', 'll<|im_end|>']
  whole = chat.ChatTemplate(template).render(
    messages, add_generation_prompt=False
  )
  assert ids == tok.encode(whole)
  # The marks leave no trace in the text.
  assert whole == chat.ChatTemplate(CHATML).render(
    messages, add_generation_prompt=False
  )


@pytest.mark.parametrize('template', [CHATML, MARKED], ids=['bare', 'marked'])
def test_nothing_but_instructions_is_refused(tok, template):
  messages = [{'role': 'system', 'content': 'he'}]
  with pytest.raises(errors.UserError, match='no assistant turn'):
    answer_masks.answer_mask(tok, chat.ChatTemplate(template), messages)


def test_marks_that_do_not_end_are_refused():
  template = chat.ChatTemplate("{% generation %}{{ messages[0]['content'] }}")
  with pytest.raises(errors.UserError, match='does not parse'):
    template.render(chat_test.talk('he'), add_generation_prompt=False)


THINKING = [
  {'role': 'user', 'content': 'hello'},
  {'role': 'assistant', 'content': '<think>he</think>ll'},
  {'role': 'tool', 'content': 'll'},
  {'role': 'assistant', 'content': '<think>he</think>ll'},
  {'role': 'user', 'content': 'hello'},
  {'role': 'assistant', 'content': 'll'},
  {'role': 'user', 'content': 'hello'},
  {'role': 'assistant', 'content': 'll'},
]


def test_thinking_tools_and_repeated_sentences_stay_in_their_turns(tok):
  runs, _ = spans(tok, CHATML, THINKING)
  thought, plain = '<think>he</think>ll<|im_end|>', 'll<|im_end|>'
  assert runs == [thought, thought, plain, plain]


def test_thinking_that_the_template_drops_is_refused_and_not_shifted(tok):
  template = chat.ChatTemplate(STRIPS)
  with pytest.raises(errors.UserError, match='message 1: .*ambiguous'):
    answer_masks.answer_mask(tok, template, THINKING)
  # One answer a document, as the message says, is exact.
  runs, ids = spans(tok, STRIPS, THINKING[:2])
  assert runs == ['<think>he</think>ll<|im_end|>']
  assert ids == tok.encode(
    template.render(THINKING[:2], add_generation_prompt=False)
  )
