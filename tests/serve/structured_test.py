# SPDX-License-Identifier: MIT
"""Constraints: what is refused, and that answers which follow masks satisfy."""

import json
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models

from jspec import errors
from jspec.checkpoints import gguf
from jspec.decode import grammar
from jspec.serve import structured
from jspec.targets import embedded
from jspec.text import tokenizer
from tests.evals import unchecked
from tests.serve import constrained

NEEDED = "install the extra: pip install 'jspec[structured]'"
SCHEMA = {
  'type': 'object',
  'properties': {
    'id': {'type': 'integer', 'minimum': -20, 'maximum': 300},
    'name': {'type': 'string', 'maxLength': 4},
    'kind': {'enum': ['ab', 'b"c', 7, None]},
    'tags': {
      'type': 'array',
      'items': {'anyOf': [{'type': 'boolean'}, {'type': 'null'}]},
      'minItems': 1,
      'maxItems': 3,
    },
    'in': {
      'type': 'object',
      'properties': {'x': {'type': 'boolean'}},
      'required': ['x'],
      'additionalProperties': False,
    },
  },
  'required': ['id', 'name', 'kind', 'tags', 'in'],
  'additionalProperties': False,
}
REGEXES = [
  'a(b|c)d',
  r'[A-F][0-9]{2,4}(-x)?',
  r'(ab|abd|b){1,5}\.?',
  r'^\d\d:\d\d$',
  'é[^a]{0,3}/"',
]


@pytest.fixture(scope='module')
def compiler():
  pytest.importorskip('llguidance', reason=NEEDED)
  return constrained.compiler()


@pytest.fixture(scope='module')
def tok():
  return constrained.byte_tokenizer()


def one_line(caught):
  assert '\n' not in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize(
  'kind, text, named',
  [
    ('yaml', 'x', 'yaml'),
    ('json_object', '{}', 'leave it out'),
    ('regex', '', 'no text'),
    ('json_schema', '{"type"', 'not valid JSON'),
    ('json_schema', '{"minimum": NaN}', 'NaN'),
    ('json_schema', '[' * 100_000, 'not valid JSON'),
    ('json_schema', 'true', 'bool'),
    ('json_schema', '{"x-guidance": {"lenient": true}}', 'x-guidance'),
  ],
)
def test_constraint_is_refused_without_the_library(kind, text, named):
  with pytest.raises(errors.UserError) as caught:
    structured.Constraint(kind, text)
  assert named in one_line(caught)


def test_constraint_must_be_text():
  with unchecked.constructors(), pytest.raises(errors.UserError, match='dict'):
    structured.Constraint('json_schema', {'type': 'object'})


@pytest.mark.parametrize(
  'kind, text, named',
  [
    ('json_schema', '{"not": {}}', 'Unimplemented keys'),
    ('json_schema', '{"type": "strin"}', 'Invalid type'),
    ('json_schema', '{"type": "string", "format": "moon"}', 'moon'),
    ('json_schema', '{"oneOf": [{}, {"type": "null"}]}', 'oneOf'),
    ('json_schema', '{"$ref": "http://a/b"}', 'retriev'),
    ('json_schema', '{"$ref": "#"}', 'no answer at all'),
    (
      'json_schema',
      '{"type": "integer", "minimum": 3, "maximum": 1}',
      'Unsatisfiable',
    ),
    ('json_schema', r'{"const": "\ud800"}', 'cannot be read'),
    ('json_schema', '{"items":' * 200 + '{}' + '}' * 200, 'recursion'),
    ('regex', 'a(b', 'unclosed group'),
    ('regex', r'(a)\1', 'backreferences'),
    ('regex', 'a(?=b)', 'look-around'),
    ('regex', 'a^b', 'lookaround'),
    ('regex', '(' * 10_000 + ')' * 10_000, 'nest'),
    ('regex', r'[^\x00-\u{10FFFF}]', 'no answer at all'),
    ('regex', '\ud800', 'cannot be read'),
    ('lark', 'start: "a" missing', 'missing'),
  ],
)
def test_constraint_that_cannot_be_enforced_is_refused(
  compiler, kind, text, named
):
  constraint = structured.Constraint(kind, text)
  for _ in range(2):  # A failure is not kept as a success.
    with pytest.raises(errors.UserError) as caught:
      compiler.matcher(constraint)
    assert named in one_line(caught)


def test_answers_that_follow_the_masks_satisfy_the_schema(compiler, tok):
  rng = np.random.default_rng(0)
  constraint = constrained.schema(SCHEMA)
  seen = set()
  for _ in range(25):
    tokens = constrained.walk(compiler.matcher(constraint), rng, most=800)
    text = tok.decode(tokens)
    constrained.check(json.loads(text), SCHEMA)
    seen.add(text)
  assert len(seen) == 25
  # Control: the validator catches every property that is missing or wrong.
  good = json.loads(seen.pop())
  for name in SCHEMA['properties']:
    assert not constrained.is_valid({**good, name: 10**6}, SCHEMA)
    less = {key: value for key, value in good.items() if key != name}
    assert not constrained.is_valid(less, SCHEMA)
  assert not constrained.is_valid({**good, 'extra': 1}, SCHEMA)


def test_json_object_answers_parse(compiler, tok):
  rng = np.random.default_rng(1)
  constraint = structured.Constraint('json_object')
  found = 0
  for _ in range(20):
    # Objects close soon only where few tokens are to choose from.
    tokens = constrained.walk(compiler.matcher(constraint), rng, most=300)
    if tokens is not None:
      assert isinstance(json.loads(tok.decode(tokens)), dict)
      found += 1
  assert found >= 5


@pytest.mark.parametrize('pattern', REGEXES)
def test_answers_that_follow_the_masks_match_the_regex(compiler, tok, pattern):
  rng = np.random.default_rng(2)
  constraint = structured.Constraint('regex', pattern)
  for _ in range(20):
    tokens = constrained.walk(compiler.matcher(constraint), rng, most=100)
    text = tok.decode(tokens)
    assert re.fullmatch(pattern, text), text
  # Control: answers drawn without masks do not.
  blind = constrained.walk(None, rng, most=100, is_masked=False)
  assert not re.fullmatch(pattern, tok.decode(blind or [5]))


@pytest.mark.parametrize(
  'pattern, good, bad',
  [
    ('a(b|c)d', ['abd', 'acd'], ['ab', 'abcd', 'ad', '']),
    ('(ab)*', ['', 'ab', 'abab'], ['aba', 'b']),
  ],
)
def test_matcher_accepts_what_the_regex_does(compiler, tok, pattern, good, bad):
  for text in good + bad:
    matcher = compiler.matcher(structured.Constraint('regex', pattern))
    ids = tok.encode(text)
    for token in ids:
      if token not in constrained.ids(matcher.mask_words()):
        break
      matcher.commit((token,))
    is_whole = matcher.tokens == tuple(ids) and matcher.is_accepting
    assert is_whole == (text in good) == bool(re.fullmatch(pattern, text))


def test_white_space_is_bounded(compiler, tok):
  for count, is_good in ((0, True), (32, True), (33, False)):
    ids = tok.encode('{' + '\n' * count + '}')
    matcher = compiler.matcher(structured.Constraint('json_object'))
    if is_good:
      assert matcher.commit(ids).is_finished
    else:
      with pytest.raises(ValueError, match='cannot follow'):
        matcher.commit(ids)


def test_lark_grammars_are_followed(compiler, tok):
  text = 'start: NAME "=" NUMBER\nNAME: /[a-c]{1,3}/\nNUMBER: /[0-9]{1,2}/'
  matcher = compiler.matcher(structured.Constraint('lark', text))
  rng = np.random.default_rng(3)
  answer = tok.decode(constrained.walk(matcher, rng, most=50))
  assert re.fullmatch('[a-c]{1,3}=[0-9]{1,2}', answer)


def test_masks_forbid_control_tokens_and_padding(compiler, tok):
  matcher = compiler.matcher(structured.Constraint('regex', '(?s).*'))
  allowed = constrained.ids(matcher.mask_words())
  assert constrained.EOS in allowed
  assert tok.token_id('<|other|>') not in allowed
  assert tok.token_id('<t>') in allowed
  assert max(allowed) < tok.vocab_size < constrained.VOCAB_SIZE


def test_device_reads_the_masks_as_they_are_meant(compiler, tok):
  matcher = compiler.matcher(structured.Constraint('regex', '[b-e]|true'))
  words = jnp.asarray(matcher.mask_words())[None]
  logits = jnp.zeros((1, constrained.VOCAB_SIZE))
  masked = grammar.mask(logits, words, jnp.ones((1,), bool))
  allowed = np.flatnonzero(np.isfinite(masked[0]))
  assert {tok.decode([int(i)]) for i in allowed} == {*'bcde', 't', 'true'}


def test_compiled_constraints_are_kept_but_not_their_state(
  compiler, monkeypatch
):
  constraint = structured.Constraint('regex', 'xy+')
  first = compiler.matcher(constraint)
  monkeypatch.setattr(compiler, '_compile', None)  # Not called again.
  first.commit((first_id := constrained.ids(first.mask_words())[0],))
  second = compiler.matcher(constraint)
  assert second.tokens == ()
  assert constrained.ids(second.mask_words()) == [first_id]


def test_old_constraints_are_forgotten(compiler):
  for i in range(structured._CACHE_SIZE + 5):
    compiler.matcher(structured.Constraint('regex', f'a{i}'))
  assert len(compiler._compiled) == structured._CACHE_SIZE


def test_missing_library_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, 'llguidance', None)
  with pytest.raises(errors.UserError) as caught:
    constrained.compiler()
  assert "pip install 'jspec[structured]'" in one_line(caught)


def test_tokenizers_that_cannot_be_used_are_refused(tok):
  pytest.importorskip('llguidance', reason=NEEDED)
  endless = tokenizer.Tokenizer(tok.backend, None, ())
  with pytest.raises(errors.UserError, match='eos_token'):
    constrained.compiler(endless)
  with pytest.raises(errors.UserError, match='not of the same model'):
    structured.Compiler(tok, tok.vocab_size - 1)
  words = tokenizers.Tokenizer(models.WordLevel({'a': 0, 'b': 1}, 'a'))
  with pytest.raises(errors.UserError, match='byte-level') as caught:
    structured.Compiler(tokenizer.Tokenizer(words, None, (1,)), 2)
  one_line(caught)


@pytest.fixture(scope='module')
def smollm2():
  """The embedded model's tokenizer, where its file was fetched already."""
  path = embedded.cache_folder() / embedded.MEMBER.split('/')[-1]
  if not path.is_file():
    pytest.skip('smollm2_135m is not in the cache; load it once to fetch it')
  file = gguf.GGUFFile(path)
  return tokenizer.from_gguf(file.metadata, file.where)


@pytest.mark.slow
def test_embedded_tokenizer_may_spell_json_as_it_does(smollm2):
  pytest.importorskip('llguidance', reason=NEEDED)
  made = structured.Compiler(smollm2, smollm2.vocab_size)
  wanted = {
    'type': 'object',
    'properties': {'text': {'type': 'string'}, 'n': {'type': 'integer'}},
    'required': ['text', 'n'],
    'additionalProperties': False,
  }
  value = {'text': 'na\u00efve \u6771\u4eac \U0001f642 "q" \\ 12\n', 'n': -1203}
  for layout in ({}, {'indent': 4}, {'separators': (',', ':')}):
    text = json.dumps(value, ensure_ascii=False, **layout)
    ids = tuple(smollm2.encode(text))
    matcher = made.matcher(constrained.schema(wanted))
    done = matcher.commit((*ids, *smollm2.eos_ids))
    assert (done.num_tokens, done.is_finished) == (len(ids), True), text
  # Control: another value is stopped at the token that goes wrong.
  matcher = made.matcher(constrained.schema(wanted))
  with pytest.raises(ValueError, match='cannot follow'):
    matcher.commit(smollm2.encode('{"text": 5'))
  assert smollm2.decode(matcher.tokens).startswith('{"text":')
  rng = np.random.default_rng(5)
  constraint = structured.Constraint('regex', '[a-z ]{5,20}[.!]')
  for _ in range(5):
    tokens = constrained.walk(made.matcher(constraint), rng, most=40)
    assert re.fullmatch(constraint.text, smollm2.decode(tokens))
