# SPDX-License-Identifier: MIT
"""A target with a tokenizer and a template, small enough to decode in tests."""

import dataclasses

import tokenizers

from jspec import loading
from jspec.testing import toy
from jspec.text import chat
from jspec.text import tokenizer as tokenizer_lib

USER, ASSISTANT = 'w60', 'w61'
MAX_LEN = 64
NUM_DRAFT_TOKENS = 4
# Words keep their order of turns; content is words such as `w5 w17`.
TEMPLATE = (
  '{% for m in messages %}'
  "{{ 'w60 ' if m['role'] == 'user' else 'w61 ' }}{{ m['content'] }} "
  '{% endfor %}'
  "{% if add_generation_prompt %}{{ 'w61' }}{% endif %}"
)


def tokenizer():
  """One token a word: `w7` is id 7."""
  words = {f'w{i}': i for i in range(toy.VOCAB_SIZE)}
  backend = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(words, unk_token='w0')
  )
  backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  return tokenizer_lib.Tokenizer(backend)


def loaded(model=None, *, with_template=True):
  """The toy target as the programs see it."""
  return loading.LoadedTarget(
    name='toy',
    model=model or toy.target(max_len=MAX_LEN),
    tokenizer=tokenizer(),
    template=(
      chat.ChatTemplate(TEMPLATE, bos_token=None, eos_token=None)
      if with_template
      else None
    ),
    stop_ids=(),
    fingerprint='0' * 16,
  )


def changed(target, **fields):
  """The same loaded target with other fields."""
  return dataclasses.replace(target, **fields)
