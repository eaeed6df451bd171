# SPDX-License-Identifier: MIT
"""Rebuilds a `tokenizers.Tokenizer` from `tokenizer.ggml.*` metadata.

Two kinds of vocabulary:

  'gpt2'   byte-level BPE with a merge list; `tokenizer.ggml.pre` names how text
           is split beforehand (smollm: single digits, then the GPT-2 rule)
  'llama'  SentencePiece BPE: spaces are U+2581, unknown characters fall to
           bytes, and a pair merges in the order of its score

Another kind or pre-tokenizer is refused by name: a wrong split gives ids the
model was never trained on, without any error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import (
  AddedToken,
  Regex,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from jspec import errors

# Token types of llama.cpp that are not plain text.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = '\u2581'

_LLAMA3_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_SPLITS = {
  'llama-bpe': _LLAMA3_SPLIT,
  # Digits one by one.
  'qwen2': _LLAMA3_SPLIT.replace('{1,3}', ''),
}


def build(metadata: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
  """Returns the tokenizer; `where` names the file in messages."""
  kind = metadata.get('tokenizer.ggml.model')
  if kind == 'gpt2':
    backend = _byte_level(metadata, where)
  elif kind == 'llama':
    backend = _sentencepiece(metadata, where)
  else:
    raise errors.UserError(
      f'{where}: tokenizer.ggml.model {kind!r} is not supported; use a file'
      " with 'gpt2' or 'llama'"
    )
  _add_special(backend, metadata, where)
  return backend


def _byte_level(
  metadata: Mapping[str, Any], where: str
) -> tokenizers.Tokenizer:
  pre = metadata.get('tokenizer.ggml.pre')
  whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
  if pre == 'smollm':
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.Sequence([digits, whole])
  elif pre == 'gpt-2':
    split = whole
  elif pre in _SPLITS:
    pieces = pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior='isolated')
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pieces, as_bytes])
  else:
    raise errors.UserError(
      f'{where}: tokenizer.ggml.pre {pre!r} is not supported; use a file with'
      " 'smollm', 'gpt-2', 'llama-bpe' or 'qwen2', or the Hugging Face folder"
    )
  tokens = _required(metadata, 'tokens', where)
  vocab = _vocabulary(tokens, where)
  merges = []
  for merge in _required(metadata, 'merges', where):
    left, _, right = merge.partition(' ')
    if left not in vocab or right not in vocab or left + right not in vocab:
      raise errors.UserError(
        f'{where}: merge {merge!r} is not made of tokens; the file is damaged'
      )
    merges.append((left, right))
  model = models.BPE(vocab, merges, ignore_merges=pre == 'llama-bpe')
  backend = tokenizers.Tokenizer(model)
  backend.pre_tokenizer = split
  if pre == 'qwen2':
    backend.normalizer = normalizers.NFC()
  backend.decoder = decoders.ByteLevel()
  return backend


def _sentencepiece(
  metadata: Mapping[str, Any], where: str
) -> tokenizers.Tokenizer:
  tokens = _required(metadata, 'tokens', where)
  scores = _required(metadata, 'scores', where)
  if len(scores) != len(tokens):
    raise errors.UserError(
      f'{where}: {len(scores)} token scores for {len(tokens)} tokens; the file'
      ' is damaged'
    )
  vocab = _vocabulary(tokens, where)
  unknown = tokens[metadata.get('tokenizer.ggml.unknown_token_id', 0)]
  model = models.BPE(
    vocab,
    scored_merges(tokens, scores),
    unk_token=unknown,
    fuse_unk=True,
    byte_fallback=True,
  )
  backend = tokenizers.Tokenizer(model)
  marks = [normalizers.Replace(' ', _SPACE)]
  endings = [
    decoders.Replace(_SPACE, ' '),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if metadata.get('tokenizer.ggml.add_space_prefix', True):
    marks.insert(0, normalizers.Prepend(_SPACE))
    endings.append(decoders.Strip(' ', 1, 0))
  backend.normalizer = normalizers.Sequence(marks)
  backend.decoder = decoders.Sequence(endings)
  return backend


def scored_merges(
  tokens: Sequence[str], scores: Sequence[float]
) -> list[tuple[str, str]]:
  """Returns the merge list that scores imply, best merged token first."""
  vocab = {token: i for i, token in enumerate(tokens)}
  found = []
  for i, token in enumerate(tokens):
    for cut in range(1, len(token)):
      left, right = token[:cut], token[cut:]
      if left in vocab and right in vocab:
        order = (-scores[i], i, vocab[left], vocab[right])
        found.append((order, (left, right)))
  return [pair for _, pair in sorted(found)]


def _add_special(
  backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], where: str
) -> None:
  """Marks control tokens, and BOS and EOS around a text where asked for."""
  tokens = metadata['tokenizer.ggml.tokens']
  types = _required(metadata, 'token_type', where)
  if len(types) != len(tokens):
    raise errors.UserError(
      f'{where}: {len(types)} token types for {len(tokens)} tokens; the file is'
      ' damaged'
    )
  for token, kind in zip(tokens, types, strict=True):
    if kind in (_CONTROL, _UNKNOWN):
      backend.add_special_tokens([AddedToken(token, normalized=False)])
    elif kind == _USER_DEFINED:
      backend.add_tokens([AddedToken(token, normalized=False)])
  template, specials = ['$A'], []
  for name, side in (('bos', 0), ('eos', 1)):
    if metadata.get(f'tokenizer.ggml.add_{name}_token', False):
      token_id = _required(metadata, f'{name}_token_id', where)
      template.insert(side * len(template), tokens[token_id])
      specials.append((tokens[token_id], token_id))
  if specials:
    backend.post_processor = processors.TemplateProcessing(
      single=template, special_tokens=specials
    )


def _vocabulary(tokens: Sequence[str], where: str) -> dict[str, int]:
  vocab = {token: i for i, token in enumerate(tokens)}
  if len(vocab) != len(tokens):
    raise errors.UserError(
      f'{where}: {len(tokens) - len(vocab)} tokens of the vocabulary occur'
      ' twice; the file is damaged'
    )
  return vocab


def _required(metadata: Mapping[str, Any], name: str, where: str) -> Any:
  value = metadata.get(f'tokenizer.ggml.{name}')
  if value is None:
    raise errors.UserError(
      f'{where}: tokenizer.ggml.{name} is missing; use a file with a tokenizer'
    )
  return value
