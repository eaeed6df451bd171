# SPDX-License-Identifier: MIT
"""Documents are shown with their masks, rows with their borders."""

import functools

import numpy as np
import pytest

from jspec.data import examples, packing, pipeline, showing
from jspec.text import answer_masks
from jspec.text.formats import thinking
from tests.text import families

FAMILY = families.FAMILIES['thinking_kept']
TALK = [
  {'role': 'user', 'content': 'hello'},
  {'role': 'assistant', 'content': 'he 東', 'reasoning_content': 'll'},
  {'role': 'user', 'content': 'he'},
  {'role': 'assistant', 'content': ' x'},
]


@pytest.fixture(scope='module')
def tok():
  return FAMILY.tokenizer()


def document(tok, messages=TALK, **changes):
  (found,) = answer_masks.documents(tok, FAMILY.template, messages)
  return examples.Document(
    **{
      'id': 'd1',
      'tokens': np.array(found.ids, np.int32),
      'is_answer': np.array(found.mask),
    }
    | changes
  )


def test_brackets_stand_around_what_is_trained_on(tok):
  found = document(tok)
  shown = showing.text(tok, found.tokens, found.is_answer, showing.BRACKETS)
  whole = FAMILY.template.render(TALK, add_generation_prompt=False)
  assert shown.replace('[[', '').replace(']]', '') == whole
  assert '[[<think>\nll\n</think>\n\nhe 東<|im_end|>]]\n' in shown
  assert shown.count('[[') == shown.count(']]') == 2


def test_colours_instead_on_a_terminal(tok):
  found = document(tok)
  shown = showing.text(tok, found.tokens, found.is_answer, showing.COLOURS)
  assert '\x1b[32m<think>' in shown and '[[' not in shown


def test_what_would_move_the_cursor_is_spelled_out(tok):
  tokens = np.array(tok.encode('a\x1b[31mb\tc\nd\u202e'), np.int32)
  shown = showing.text(
    tok, tokens, np.zeros(len(tokens), bool), showing.BRACKETS
  )
  assert shown == 'a\\x1b[31mb\tc\nd\\u202e'


def test_heading_counts_tokens_and_thoughts(tok):
  found = document(tok, domain='math')
  num, trained = len(found), int(found.is_answer.sum())
  share = f'{100 * trained / num:.1f} %'
  thoughts = showing.num_thoughts(tok, found, thinking.THINK)
  assert thoughts == 1  # The second answer's thought is empty.
  assert showing.heading(found, thoughts) == (
    f'--- d1 (math): {num} tokens, {trained} trained ({share}),'
    ' 1 with a thought'
  )
  assert showing.num_thoughts(tok, found, None) == 0


def test_row_shows_the_borders_of_its_documents(tok):
  documents = [document(tok), document(tok, TALK[2:], id='d2')]
  source = pipeline.Documents(documents)
  row_len = sum(len(d) for d in documents) + 5
  filled = packing.fill_row([source[0], source[1]], row_len)
  show = functools.partial(showing.text, tok, marks=showing.BRACKETS)
  lines = list(showing.row(documents, filled, show))
  first = len(documents[0])
  assert lines[0].startswith(f'=== 2 documents, {row_len - 5} of {row_len}')
  assert f'segment 1, tokens 0 to {first - 1}: d1' in lines[1]
  assert f'segment 2, tokens {first} to {row_len - 6}: d2' in lines[3]
  assert lines[4].startswith('<|im_start|>user') and 'hello' not in lines[4]


def test_summary_tells_the_shares_of_a_mixture(tok):
  documents = [
    document(tok, domain='math'),
    document(tok, domain='chat'),
    document(tok, domain='chat'),
  ]
  lines = list(showing.summary(documents, {'math': 3.0, 'chat': 1.0}))
  assert lines[0].startswith('chat: 2 documents') and '25.0 %' in lines[0]
  assert lines[1].startswith('math: 1 documents') and '75.0 %' in lines[1]
  assert lines[2].startswith('in all: 3 documents')
  assert len(list(showing.summary(documents[:1], None))) == 1
