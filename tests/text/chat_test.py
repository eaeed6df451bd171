# SPDX-License-Identifier: MIT
"""Chat templates: rendering, refusals, and masks of what the model wrote."""

import json

import pytest

from jspec import errors
from jspec.text import answer_masks, chat, tokenizer
from tests.text import tokenizer_test, vocabularies

CHATML = (
  '{% for m in messages %}'
  "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
  '{% endfor %}'
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def tok():
  metadata = tokenizer_test.byte_level()
  metadata['tokenizer.ggml.tokens'] += ['<|im_start|>', '<|im_end|>']
  metadata['tokenizer.ggml.token_type'] += [3, 3]
  end = len(metadata['tokenizer.ggml.tokens']) - 1
  metadata['tokenizer.ggml.eos_token_id'] = end
  return tokenizer.from_gguf(metadata, 'x.gguf')


def talk(*contents):
  roles = ('user', 'assistant')
  return [
    {'role': roles[i % 2], 'content': text} for i, text in enumerate(contents)
  ]


def test_chatml_renders_turns_and_the_opening_of_the_answer():
  template = chat.ChatTemplate(CHATML)
  text = template.render(talk('Hi'), add_generation_prompt=True)
  assert text == '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
  assert not template.render(talk('Hi'), add_generation_prompt=False).endswith(
    'assistant\n'
  )


def test_template_has_the_helpers_of_hugging_face():
  source = (
    "{{ bos_token }}{{ strftime_now('%Y') | length }}"
    "{{ {'a': '<é>'} | tojson }}\n"
    '  {% for m in messages %}{% break %}{% endfor %}'
  )
  text = chat.ChatTemplate(source, '<s>', None).render(
    talk('x'), add_generation_prompt=False
  )
  assert text == '<s>4{"a": "<é>"}\n'


@pytest.mark.parametrize(
  'source, named',
  [
    ("{{ raise_exception('roles must alternate') }}", 'roles must alternate'),
    ('{{ messages.__class__.__mro__ }}', 'refused'),
    ("{{ messages.append('x') }}", 'refused'),
    ("{{ messages[5]['role'] + 1 }}", 'refused'),
    ('{% if %}', 'does not parse'),
  ],
)
def test_template_that_fails_or_escapes_is_refused(source, named):
  template = chat.ChatTemplate(source)
  with pytest.raises(errors.UserError, match=named):
    template.render(talk('x'), add_generation_prompt=False)


def test_mask_covers_answers_and_their_end(tok):
  messages = talk('hello', 'he he', 'he he', 'll')
  ids, mask = answer_masks.answer_mask(tok, chat.ChatTemplate(CHATML), messages)
  written = [i for i, m in zip(ids, mask, strict=True) if m]
  want = tok.encode('he he<|im_end|>ll<|im_end|>')
  assert written == want
  whole = chat.ChatTemplate(CHATML).render(
    messages, add_generation_prompt=False
  )
  assert ids == tok.encode(whole)


def test_mask_starts_behind_a_prefilled_thought(tok):
  # The generation prompt opens a thought; what follows it is the model's.
  source = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>' }}"
  )
  messages = talk('he', '<think>ll')
  ids, mask = answer_masks.answer_mask(tok, chat.ChatTemplate(source), messages)
  written = [i for i, m in zip(ids, mask, strict=True) if m]
  assert written == tok.encode('ll<|im_end|>')


def test_template_that_rewrites_history_is_refused(tok):
  source = CHATML.replace(
    "m['content']", "(m['content'] if loop.last else m['content'][-2:])"
  )
  template = chat.ChatTemplate(source)
  answer_masks.answer_mask(tok, template, talk('he', 'hello'))
  with pytest.raises(errors.UserError, match='message 1.*ambiguous'):
    answer_masks.answer_mask(tok, template, talk('he', 'hello', 'he', 'll'))


@pytest.mark.parametrize('messages', [talk('he'), talk('he', '')])
def test_conversation_without_an_answer_token(tok, messages):
  template = chat.ChatTemplate(CHATML)
  if len(messages) == 2:
    # An empty answer still has its end to learn.
    ids, mask = answer_masks.answer_mask(tok, template, messages)
    assert sum(mask) == 1
    return
  with pytest.raises(errors.UserError, match='no assistant turn'):
    answer_masks.answer_mask(tok, template, messages)


def test_folder_template_comes_from_either_file(tmp_path):
  assert chat.from_hf_folder(tmp_path) is None
  named = [
    {'name': 'tool_use', 'template': 'B'},
    {'name': 'default', 'template': 'A{{ eos_token }}'},
  ]
  settings = {'chat_template': named, 'eos_token': {'content': '</s>'}}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(settings))
  template = chat.from_hf_folder(tmp_path)
  assert template.render(talk('x'), add_generation_prompt=False) == 'A</s>'
  (tmp_path / 'chat_template.jinja').write_text('C')
  assert chat.from_hf_folder(tmp_path).source == 'C'


TOOLS = [{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}]
# Tools first; calls and their results as Hermes' templates show them.
CALLING = (
  '{% if tools %}{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% endif %}'
  '{% for m in messages %}<{{ m.role }}>'
  '{% if m.content %}{{ m.content | trim }}{% endif %}'
  '{% for c in m.tool_calls or [] %}{{ c.function.name }}:'
  '{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};'
  '{% endfor %}{% endfor %}</>{% endfor %}'
  '{% if add_generation_prompt %}<assistant>'
  "{% if thinks is defined and thinks %}{{ '<think>' }}{% endif %}{% endif %}"
)
CALLED = [
  {'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]},
  {
    'role': 'assistant',
    'content': None,
    'tool_calls': [
      {
        'id': 'call_1',
        'type': 'function',
        'function': {'name': 'f', 'arguments': '{"n": 12, "s": "é"}'},
      }
    ],
  },
  {'role': 'tool', 'content': 'b', 'tool_call_id': 'call_1'},
]


def test_tools_calls_and_results_reach_the_template():
  text = chat.ChatTemplate(CALLING).render(
    CALLED, add_generation_prompt=True, tools=TOOLS
  )
  tool = json.dumps(TOOLS[0])
  assert text == (
    f'[{tool}]<user>a</><assistant>f:n=12;s="é";</><tool>b</><assistant>'
  )


def test_variables_reach_the_template_and_hide_nothing():
  template = chat.ChatTemplate(CALLING)
  text = template.render(
    talk('a'), add_generation_prompt=True, variables={'thinks': True}
  )
  assert text.endswith('<assistant><think>')
  for name in ('messages', 'tools', 'add_generation_prompt', 'bos_token'):
    with pytest.raises(errors.UserError, match=name):
      template.render(
        talk('a'), add_generation_prompt=True, variables={name: 1}
      )


def test_template_without_a_place_for_tools_is_refused():
  template = chat.ChatTemplate(CHATML)
  with pytest.raises(errors.UserError, match='no place for tools'):
    template.render(talk('a'), add_generation_prompt=True, tools=TOOLS)
  # No tools are no tools.
  assert template.render(
    talk('a'), add_generation_prompt=True, tools=[]
  ) == template.render(talk('a'), add_generation_prompt=True)


def test_opening_is_what_the_model_continues():
  template = chat.ChatTemplate(CALLING)
  assert template.opening(talk('<think>')) == '<assistant>'
  assert template.opening(talk('a'), variables={'thinks': True}) == (
    '<assistant><think>'
  )


def test_last_message_is_continued_where_it_ends():
  template = chat.ChatTemplate(CALLING)
  # Text that the end of a turn holds, too, and a blank that is trimmed.
  messages = talk('a', '</> a ')
  assert template.continued(messages, tools=TOOLS).endswith('<assistant></> a ')
  with pytest.raises(errors.UserError, match='nothing to continue'):
    template.continued(talk('a'))
  with pytest.raises(errors.UserError, match='nothing to continue'):
    template.continued(CALLED[:2])
  with pytest.raises(errors.UserError, match='as it is'):
    chat.ChatTemplate(CALLING.replace('m.content |', "'x' |")).continued(
      messages
    )


@pytest.mark.parametrize(
  'source',
  ['{{ 1 // 0 }}', "{{ {}['a']['b'] }}", "{{ 'x'.index('y') }}"],
)
def test_whatever_a_template_does_wrong_is_a_user_error(source):
  with pytest.raises(errors.UserError, match='refused'):
    chat.ChatTemplate(source).render(talk('x'), add_generation_prompt=False)


def test_mask_covers_calls_of_tools(tok):
  source = CHATML.replace(
    "m['content']",
    "(m['content'] or m.tool_calls[0].function.arguments.s)",
  )
  called = json.loads(json.dumps(CALLED))
  called[1]['tool_calls'][0]['function']['arguments'] = {'s': 'hello'}
  ids, mask = answer_masks.answer_mask(tok, chat.ChatTemplate(source), called)
  written = [i for i, m in zip(ids, mask, strict=True) if m]
  assert tok.decode(written, skip_special=False) == 'hello<|im_end|>'


def test_embedded_template_opens_answers_and_has_no_tools():
  tok, template = vocabularies.smollm2()
  assert template.opening(talk('a')) == '<|im_start|>assistant\n'
  text = template.continued(talk('a', 'b'))
  assert text.endswith('<|im_start|>assistant\nb')
  assert tok.decode(tok.encode(text), skip_special=False) == text
  with pytest.raises(errors.UserError, match='no place for tools'):
    template.render(talk('a'), add_generation_prompt=True, tools=TOOLS)
