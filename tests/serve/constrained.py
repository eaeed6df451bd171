# SPDX-License-Identifier: MIT
"""A byte vocabulary, walks that follow masks, and a small JSON validator."""

import json

import numpy as np
from tokenizers import pre_tokenizers

from jspec.serve import structured
from jspec.text import tokenizer

EOS = 0
# Pieces that cross the tokens of JSON, so that masks have more than bytes.
PIECES = ('{"', '":', '",', '"}', 'ab', 'abd', 'true', '12', '[]', ', "', '<t>')
VOCAB_SIZE = 300  # Of the head, padded beyond the tokenizer's.


def byte_tokenizer(pieces=PIECES, letters=None):
  """EOS, the bytes, and pieces; no merge is needed to spell by ids."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  tokens = ['<|end|>', '<|other|>', *(alphabet if letters is None else letters)]
  tokens += [piece.replace(' ', '\u0120') for piece in pieces]
  return tokenizer.from_gguf(
    {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': 'gpt-2',
      'tokenizer.ggml.tokens': tokens,
      'tokenizer.ggml.merges': [],
      'tokenizer.ggml.token_type': [3, 3] + [1] * (len(tokens) - 2),
      'tokenizer.ggml.eos_token_id': EOS,
    },
    'toy.gguf',
  )


def compiler(tok=None):
  return structured.Compiler(tok or byte_tokenizer(), VOCAB_SIZE)


def schema(value):
  return structured.Constraint('json_schema', json.dumps(value))


def ids(words):
  """The tokens that a mask allows."""
  bits = np.unpackbits(words.view(np.uint8), bitorder='little')
  return np.flatnonzero(bits).tolist()


def walk(matcher, rng, *, most, is_masked=True, num_ids=256):
  """Draws an answer from the masks, blind if not `is_masked`.

  Returns:
    The tokens without EOS, or None where `most` of them did not finish.
  """
  tokens = []
  while len(tokens) < most:
    allowed = ids(matcher.mask_words()) if is_masked else list(range(num_ids))
    token = int(rng.choice(allowed))
    if not is_masked:
      if token == EOS:
        return tokens
      tokens.append(token)
      continue
    done = matcher.commit((token,))
    tokens += [token] * (done.num_tokens if token != EOS else 0)
    if done.is_finished:
      return tokens
  return None


def check(value, wanted):
  """Raises AssertionError where `value` does not satisfy a JSON schema."""
  known = {
    'type',
    'properties',
    'required',
    'additionalProperties',
    'items',
    'minItems',
    'maxItems',
    'enum',
    'anyOf',
    'minimum',
    'maximum',
    'maxLength',
  }
  assert set(wanted) <= known, set(wanted) - known
  kinds = {
    'object': dict,
    'array': list,
    'string': str,
    'integer': int,
    'boolean': bool,
    'null': type(None),
  }
  if 'type' in wanted:
    assert isinstance(value, kinds[wanted['type']])
    assert wanted['type'] == 'boolean' or not isinstance(value, bool)
  if 'enum' in wanted:
    assert value in wanted['enum']
  if 'anyOf' in wanted:
    assert any(is_valid(value, one) for one in wanted['anyOf'])
  if isinstance(value, int) and not isinstance(value, bool):
    assert wanted.get('minimum', value) <= value
    assert value <= wanted.get('maximum', value)
  if isinstance(value, str):
    assert len(value) <= wanted.get('maxLength', len(value))
  if isinstance(value, list):
    least, most = wanted.get('minItems', 0), wanted.get('maxItems', len(value))
    assert least <= len(value) <= most
    for one in value:
      check(one, wanted.get('items', {}))
  if isinstance(value, dict):
    assert set(wanted.get('required', ())) <= set(value)
    properties = wanted.get('properties', {})
    for name, one in value.items():
      if name in properties:
        check(one, properties[name])
      else:
        assert wanted.get('additionalProperties', True)


def is_valid(value, wanted):
  try:
    check(value, wanted)
  except AssertionError:
    return False
  return True
