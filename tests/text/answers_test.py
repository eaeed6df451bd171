# SPDX-License-Identifier: MIT
"""An answer means the same however it was cut, and nothing of it is lost."""

import itertools
import json
import random

import pytest

from jspec.text import answers, delivery, incremental, stops
from jspec.text.formats import hermes, thinking
from tests.text import vocabularies
from tests.text.formats import samples

WRITERS = pytest.mark.parametrize('writer', samples.WRITERS)


def form(tools=None, **changes):
  return answers.Format(
    **{'tags': thinking.THINK, 'tools': tools, 'schemas': samples.SCHEMAS}
    | changes
  )


def streamed(text, places, what):
  """The parts put together, and each of them."""
  deltas = answers.Deltas(what)
  edges = [0, *sorted(places), len(text)]
  parts = [deltas.push(text[a:b]) for a, b in itertools.pairwise(edges)]
  parts.append(deltas.finish())
  return sum(parts[1:], parts[0]), parts


def gap_of(writer):
  """What may stand between two calls."""
  return '' if writer == 'harmony' else '\n'


def pieces_of(text, rng, num):
  return [rng.randrange(len(text) + 1) for _ in range(num)]


@pytest.mark.few(1)
@WRITERS
def test_any_cut_gives_what_the_whole_text_gives(writer):
  tools, write = samples.WRITERS[writer]
  rng = random.Random(0)
  num_calls = num_marked = 0
  for i in range(50):
    text = samples.drawn(rng, write, tools.marks)
    if i % 3 == 0:
      text = rng.choice(['<think>', ' <think>\n']) + text
    what = form(tools, is_open=i % 4 == 0)
    whole = answers.parse(text, what)
    num_calls += len(whole.tool_calls)
    num_marked += any(mark in whole.content for mark in tools.marks)
    for places in (
      range(len(text)),
      pieces_of(text, rng, 1),
      pieces_of(text, rng, 1),
      pieces_of(text, rng, 9),
    ):
      assert streamed(text, places, what)[0] == whole, (text, places)
  # The texts hold calls, and marks that are no calls.
  assert num_calls > 5 and num_marked > 1, (num_calls, num_marked)


@pytest.mark.few(1)
@WRITERS
def test_what_was_certain_once_stays(writer):
  tools, write = samples.WRITERS[writer]
  rng = random.Random(1)
  for _ in range(10):
    text = samples.drawn(rng, write, tools.marks)
    what = form(tools)
    whole = answers.parse(text, what)
    for at in range(len(text)):
      begun = answers.parse(text[:at], what, is_final=False)
      assert whole.content.startswith(begun.content), (text, at)
      assert whole.reasoning.startswith(begun.reasoning)
      for call, end in zip(begun.tool_calls, whole.tool_calls, strict=False):
        assert call.name == end.name
        assert end.arguments.startswith(call.arguments), (text, at)
      assert len(begun.tool_calls) <= len(whole.tool_calls)


@WRITERS
def test_reading_each_part_alone_is_caught(writer):
  tools, write = samples.WRITERS[writer]
  rng, wrong = random.Random(2), 0
  for _ in range(30):
    text = write('f', rng.choice(samples.ARGUMENTS[1:]))
    at = rng.randrange(1, len(text))
    parts = [
      answers.parse(part, form(tools)) for part in (text[:at], text[at:])
    ]
    wrong += sum(parts[1:], parts[0]) != answers.parse(text, form(tools))
  assert wrong > 20


@WRITERS
def test_calls_between_texts_are_found(writer):
  tools, write = samples.WRITERS[writer]
  one = write('f', {'n': 12, 'b': 'y'})
  two = write('g', {})
  both = (samples.call('f', {'n': 12, 'b': 'y'}), samples.call('g', {}))
  what = form(tools)
  for gap in {gap_of(writer), ''} | ({' \n\n'} if gap_of(writer) else set()):
    assert answers.parse(one + gap + two, what) == answers.Answer(
      tool_calls=both
    )
    for thought in ('<think>Hm.</think>', '\n<think>\n Hm.\n</think>\n\n'):
      assert answers.parse(thought + one + gap + two + gap, what) == (
        answers.Answer(reasoning='Hm.', tool_calls=both)
      )
  if writer == 'harmony':  # Text goes on up to a mark that ends a message.
    return
  if writer in samples.UNMARKED:
    # Without a mark, calls are all of an answer or none.
    assert answers.parse(f'So: {one}', what).content == f'So: {one}'
    return
  found = answers.parse(f'Look:\n{one}\n{two}\nThere.', what)
  assert found.tool_calls == both
  assert found.content.split() == ['Look:', 'There.']


@WRITERS
def test_arguments_may_hold_marks_and_any_text(writer):
  tools, write = samples.WRITERS[writer]
  for arguments in samples.ARGUMENTS:
    found = answers.parse(write('f', arguments), form(tools))
    assert found == answers.Answer(tool_calls=(samples.call('f', arguments),))


@WRITERS
def test_call_that_is_torn_ends_there_and_before_its_arguments_is_none(writer):
  tools, write = samples.WRITERS[writer]
  text = write('f', {'n': 12, 'a': 'y'})
  whole = answers.parse(text, form(tools)).tool_calls[0].arguments
  kinds = set()
  for at in range(1, len(text)):
    torn = text[:at] + '\x00'  # It can stand nowhere but in a text.
    found = answers.parse(torn, form(tools))
    if not found.tool_calls:
      kinds.add('content')
      # What was sent to a function, and is no JSON, has lost its header.
      assert found.content == torn or writer == 'harmony'
      continue
    (call,) = found.tool_calls
    assert torn.endswith(found.content)
    assert call.name == 'f'
    if call.arguments == whole:
      kinds.add('closed')
      continue
    kinds.add('torn')
    if writer != 'qwen_coder':  # Whose text goes on with it.
      assert whole.startswith(call.arguments)
    if writer not in samples.SPELLED:  # They spell them otherwise.
      assert torn.endswith(call.arguments + found.content)
  assert kinds >= {'content', 'torn'}


@WRITERS
def test_call_that_the_length_cuts_has_the_arguments_so_far(writer):
  tools, write = samples.WRITERS[writer]
  text = write('f', {'n': 12, 'a': 'y'})
  whole = answers.parse(text, form(tools)).tool_calls[0].arguments
  lengths = set()
  for at in range(text.index('12') + 2, len(text) + 1):
    found = answers.parse(text[:at], form(tools))
    if found.tool_calls:
      (call,) = found.tool_calls
      assert whole.startswith(call.arguments)
      lengths.add(len(call.arguments))
  assert len(lengths) > 1 and max(lengths) == len(whole)


@WRITERS
def test_arguments_come_while_they_are_written(writer):
  tools, write = samples.WRITERS[writer]
  arguments = {'n': 12, 'a': 'text of some length "\\'}
  text = write('f', arguments) + gap_of(writer) + write('g', arguments)
  schemas = dict.fromkeys('fg', samples.SCHEMAS['f'])
  what = form(tools, schemas=schemas)
  _, parts = streamed(text, range(len(text)), what)
  pieces = [call for part in parts for call in part.tool_calls]
  assert [call.name for call in pieces if call.name] == ['f', 'g']
  (second,) = (i for i, call in enumerate(pieces) if call.name == 'g')
  for told in (pieces[:second], pieces[second:]):
    assert len(told) > (1 if writer.startswith('pythonic') else 10)
    whole = ''.join(call.arguments for call in told)
    assert json.loads(whole) == arguments
  first = next(i for i, part in enumerate(parts) if part.tool_calls)
  # The name is told before the arguments are there.
  assert '12' not in text[:first] or writer in samples.SPELLED


@WRITERS
def test_format_keeps_the_marks_of_its_own_samples(writer):
  tools, write = samples.WRITERS[writer]
  text = write('f', {'a': 'x'})
  kept = [mark for mark in form(tools).marks if mark in text]
  assert kept or writer in samples.UNMARKED


def test_answer_without_formats_is_content_at_once():
  text = ' <think>a</think> <tool_call>{"name": "f"}</tool_call> \n'
  deltas = answers.Deltas(answers.Format())
  assert deltas.push(text) == answers.Answer(content=text)
  assert deltas.finish() == answers.Answer()


def test_thought_that_is_cut_is_thought():
  opened = form(is_open=True)
  assert answers.parse('Hm. Let', opened) == answers.Answer(reasoning='Hm. Let')
  assert answers.parse('<think>\nHm', form()) == answers.Answer(reasoning='Hm')
  # A model that opens the thought again has opened it once.
  text = '<think>\nHm.\n</think>\n\nYes.'
  want = answers.Answer(reasoning='Hm.', content='Yes.')
  assert answers.parse(text, opened) == answers.parse(text, form()) == want


def test_tags_that_are_mentioned_later_stay_in_stream_and_reply():
  text = '<think>Hm.</think>Write </think> behind <think>. \n'
  content = 'Write </think> behind <think>. \n'
  want = answers.Answer(reasoning='Hm.', content=content)
  for what in (form(), form(hermes.FORMAT)):
    assert answers.parse(text, what) == want
    for at in range(len(text)):
      assert streamed(text, [at], what)[0] == want
  # So do they where nothing was thought.
  assert answers.parse('A </think> tag', form()).content == 'A </think> tag'
  mention = 'Write <tool_call> and </tool_call>, as in <tool_call>{}'
  assert answers.parse(mention, form(hermes.FORMAT)).content == mention


def test_call_in_a_thought_is_thought():
  text = '<think><tool_call>{"name": "f"}</tool_call></think>No.'
  found = answers.parse(text, form(hermes.FORMAT))
  assert (found.tool_calls, found.content) == ((), 'No.')


def test_content_is_not_held_longer_than_a_mark_could_be():
  deltas = answers.Deltas(form(hermes.FORMAT))
  assert deltas.push('Yes, <tool').content == 'Yes,'
  assert deltas.push('box> ').content == ' <toolbox>'
  assert deltas.push('ok').content == ' ok'


def test_thought_is_opened_by_the_template_and_not_by_a_user():
  tags = thinking.THINK
  assert tags.is_open('<|im_start|>assistant\n<think>\n')
  assert not tags.is_open('<|im_start|>assistant\n<think>\n\n</think>\n\n')
  assert not tags.is_open('<|im_start|>assistant\n')


@pytest.mark.parametrize(
  'pieces, want',
  [
    (['<think>', 'a', ' b', '</think>', 'c', ''], 2),
    (['<think>', '', '\u4f60', 'b', '</think>', 'c'], 3),
    (['<think>', '\n', 'a', '\n</', 'think', '>x'], 3),
    (['<think>', 'a', 'b', ''], 2),  # Cut by the length, then the end token.
    (['a', 'b'], 0),
    (['', 'a'], 0),
    (['<think>', '</think>', 'a'], 0),
    ([], 0),
  ],
)
def test_tokens_of_the_thought_are_counted_and_no_others(pieces, want):
  assert answers.num_reasoning_tokens(pieces, form()) == want
  assert want <= len(pieces)


def test_tokens_of_an_open_thought_are_counted_from_the_first():
  opened = form(is_open=True)
  assert answers.num_reasoning_tokens(['a', 'b', '</think>', 'c'], opened) == 2
  assert answers.num_reasoning_tokens(['a', 'b'], opened) == 2


@pytest.mark.parametrize('width', [1, 3, 8, 100])
def test_tokens_become_an_answer_whatever_a_round_commits(width):
  tok = vocabularies.byte_level()
  tok.backend.add_special_tokens(['<tool_call>'])  # Or it would be skipped.
  thought, gap = '\nHm. \U0001f642 hell\n', '\n\n\u6771 '
  call = samples.WRITERS['hermes'][1]('f', {'a': '\u00e9'})
  ids = tok.encode(f'<think>{thought}</think>{gap}{call} STOP x<|im_end|>')
  what = form(hermes.FORMAT)
  made = delivery.Delivery(
    incremental.Detokenizer(tok, keep=what.marks), stops.Stops(['STOP'])
  )
  deltas, answer, pieces = answers.Deltas(what), answers.Answer(), ()
  for at in range(0, len(ids), width):
    now = made.push(ids[at : at + width])
    answer += deltas.push(now.text)
    pieces += now.pieces
    if now.stop:
      break
  now = made.finish()
  answer += deltas.push(now.text) + deltas.finish()
  pieces += now.pieces
  assert answer == answers.Answer(
    reasoning=thought.strip(),
    content='\u6771',
    tool_calls=(samples.call('f', {'a': '\u00e9'}),),
  )
  assert len(pieces) == made.num_tokens == len(ids) - 3
  num = answers.num_reasoning_tokens(pieces, what)
  assert num == len(tok.encode(thought))
