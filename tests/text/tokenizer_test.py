# SPDX-License-Identifier: MIT
"""Tokenizers from folders and from GGUF vocabularies."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from jspec import errors
from jspec.text import gguf_vocabulary, tokenizer
from tests import stories260k


def letters():
  """The 256 symbols of byte-level BPE."""
  return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(**changes):
  """GGUF metadata: control token, 256 bytes, three merges, a user token."""
  tokens = ['<|end|>', *letters(), 'he', 'll', '12', 'hell', '<think>']
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'smollm',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.merges': ['h e', 'l l', '1 2', 'he ll'],
    'tokenizer.ggml.token_type': [3] + [1] * (len(tokens) - 2) + [4],
    'tokenizer.ggml.eos_token_id': 0,
  } | changes


def test_byte_level_merges_but_never_across_digits():
  tok = tokenizer.from_gguf(byte_level(), 'x.gguf')
  words = [tok.token(i) for i in tok.encode('hello 12')]
  assert words == ['hell', 'o', 'Ġ', '1', '2']
  plain = tokenizer.from_gguf(
    byte_level(**{'tokenizer.ggml.pre': 'gpt-2'}), 'x.gguf'
  )
  assert [plain.token(i) for i in plain.encode('hello 12')][-1] == '12'


def test_llama3_split_takes_digits_by_three():
  tokens = ['<|end|>', *letters(), '12', '123', '23', '45']
  metadata = byte_level(
    **{
      'tokenizer.ggml.pre': 'llama-bpe',
      'tokenizer.ggml.tokens': tokens,
      'tokenizer.ggml.merges': ['1 2', '12 3', '2 3', '4 5'],
      'tokenizer.ggml.token_type': [3] + [1] * (len(tokens) - 1),
    }
  )
  tok = tokenizer.from_gguf(metadata, 'x.gguf')
  assert [tok.token(i) for i in tok.encode('12345')] == ['123', '45']


def test_qwen_splits_digits_and_composes_characters():
  metadata = byte_level(**{'tokenizer.ggml.pre': 'qwen2'})
  tok = tokenizer.from_gguf(metadata, 'x.gguf')
  words = [tok.token(i) for i in tok.encode('hello 12')]
  assert words == ['hell', 'o', 'Ġ', '1', '2']
  assert tok.encode('e\u0301') == tok.encode('\u00e9')
  other = tokenizer.from_gguf(byte_level(), 'x.gguf')
  assert other.encode('e\u0301') != other.encode('\u00e9')


@pytest.mark.parametrize(
  'text', ['', ' a  b\n', 'naïve — 東京 🙂\u200d🙂', '12345', "don't\t'll"]
)
def test_any_text_survives_the_round_trip(text):
  tok = tokenizer.from_gguf(byte_level(), 'x.gguf')
  assert tok.decode(tok.encode(text)) == text


def test_special_tokens_are_recognised_and_skipped():
  tok = tokenizer.from_gguf(byte_level(), 'x.gguf')
  ids = tok.encode('he<|end|><think>')
  assert [tok.token(i) for i in ids] == ['he', '<|end|>', '<think>']
  assert tok.decode(ids) == 'he<think>'
  assert tok.decode(ids, skip_special=False) == 'he<|end|><think>'
  assert tok.eos_ids == (0,)
  assert tok.token_id('<|end|>') == 0
  assert tok.token_id('absent') is None


def test_ids_of_padded_rows_decode_to_nothing():
  tok = tokenizer.from_gguf(byte_level(), 'x.gguf')
  ids = tok.encode('he')
  assert tok.decode([tok.vocab_size + 5, *ids, 10**6]) == 'he'


@pytest.mark.parametrize(
  'changes, named',
  [
    ({'tokenizer.ggml.model': 'rwkv'}, 'rwkv'),
    ({'tokenizer.ggml.pre': 'deepseek-coder'}, 'deepseek-coder'),
    ({'tokenizer.ggml.merges': ['h zz']}, 'h zz'),
    ({'tokenizer.ggml.merges': None}, 'merges is missing'),
    ({'tokenizer.ggml.token_type': [1]}, '1 token types'),
  ],
)
def test_vocabulary_that_is_not_understood_is_refused(changes, named):
  with pytest.raises(errors.UserError, match=named):
    tokenizer.from_gguf(byte_level(**changes), 'x.gguf')


def test_tokenizer_of_another_model_is_refused():
  tok = tokenizer.from_gguf(byte_level(), 'x.gguf')
  tokenizer.check_fits(tok, tok.vocab_size, 'x')
  tokenizer.check_fits(tok, tok.vocab_size + 64, 'x')
  with pytest.raises(errors.UserError, match='not of the same model'):
    tokenizer.check_fits(tok, tok.vocab_size - 1, 'x')
  odd = tokenizer.Tokenizer(tok.backend, None, (10_000,))
  with pytest.raises(errors.UserError, match='10000'):
    tokenizer.check_fits(odd, 300, 'x')


def llama2c_encode(text, pieces, scores):
  """The encoder of llama2.c: merge the best pair until none is left."""
  index = {piece: i for i, piece in enumerate(pieces)}
  ids = []
  for char in ' ' + text:
    raw = char.encode()
    ids += [index[raw]] if raw in index else [byte + 3 for byte in raw]
  while True:
    best = None
    for i, (a, b) in enumerate(zip(ids, ids[1:], strict=False)):
      merged = index.get(pieces[a] + pieces[b])
      if merged is not None and (best is None or scores[merged] > best[0]):
        best = (scores[merged], i, merged)
    if best is None:
      return ids
    ids[best[1] : best[1] + 2] = [best[2]]


@pytest.mark.parametrize(
  'text',
  [
    'Once upon a time, there was a little girl named Lily.',
    'He said "no"  twice',
    'Zoë likes 漢字 🙂',
    stories260k.START,
  ],
)
def test_sentencepiece_vocabulary_equals_its_own_encoder(text):
  pieces, scores = stories260k.vocabulary()
  tokens = [p.decode('utf-8', 'replace').replace(' ', '\u2581') for p in pieces]
  tokens[:3] = ['<unk>', '<s>', '</s>']
  metadata = {
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.scores': scores,
    'tokenizer.ggml.token_type': [2, 3, 3] + [6] * 256 + [1] * 253,
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
    'tokenizer.ggml.add_bos_token': True,
  }
  tok = tokenizer.from_gguf(metadata, 'x.gguf')
  want = llama2c_encode(text, pieces, scores)
  assert tok.encode(text) == want
  assert tok.encode(text, add_special=True) == [1, *want]
  assert tok.decode(want) == text


def test_merge_order_follows_the_score_of_the_result():
  merges = gguf_vocabulary.scored_merges(
    ['a', 'b', 'ab', 'ba', 'aba'], [0.0, 0.0, -2.0, -1.0, -3.0]
  )
  assert merges == [('b', 'a'), ('a', 'b'), ('a', 'ba'), ('ab', 'a')]


def write_folder(folder, **settings):
  vocab = {'<s>': 0, '<end>': 1, 'a': 2, 'b': 3, 'ab': 4}
  backend = tokenizers.Tokenizer(models.BPE(vocab, [('a', 'b')]))
  backend.decoder = decoders.Fuse()
  backend.add_special_tokens(['<s>', '<end>'])
  backend.post_processor = processors.TemplateProcessing(
    single=['<s>', '$A'], special_tokens=[('<s>', 0)]
  )
  backend.enable_truncation(2)
  backend.save(str(folder / 'tokenizer.json'))
  settings = {'bos_token': '<s>', 'eos_token': {'content': '<end>'}} | settings
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))


def test_folder_gives_ids_of_all_its_files(tmp_path):
  write_folder(tmp_path)
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [1, 3]}')
  tok = tokenizer.from_hf_folder(tmp_path)
  assert tok.bos_id == 0
  assert tok.eos_ids == (1, 3)
  assert tok.vocab_size == 5
  assert tok.encode('ab', add_special=True) == [0, 4]


def test_stored_truncation_does_not_cut_prompts(tmp_path):
  write_folder(tmp_path)
  assert tokenizer.from_hf_folder(tmp_path).encode('abbbb') == [4, 3, 3, 3]


def test_broken_folders_are_user_errors(tmp_path):
  with pytest.raises(errors.UserError, match='no tokenizer.json'):
    tokenizer.from_hf_folder(tmp_path)
  write_folder(tmp_path, eos_token='<gone>')
  with pytest.raises(errors.UserError, match='<gone>'):
    tokenizer.from_hf_folder(tmp_path)
  (tmp_path / 'tokenizer.json').write_text('{"broken": 1}')
  with pytest.raises(errors.UserError, match='not a readable tokenizer'):
    tokenizer.from_hf_folder(tmp_path)
