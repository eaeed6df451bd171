# SPDX-License-Identifier: MIT
"""Text to token ids and back, over `tokenizers`.

Read from `tokenizer.json` of a Hugging Face folder, or rebuilt from the
vocabulary inside a GGUF file (`text/gguf_vocabulary.py`).
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from jspec import errors
from jspec.text import gguf_vocabulary
from jspec.text import pieces as pieces_lib


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A vocabulary with the ids that start and end a text.

  Attributes:
    backend: the `tokenizers` object; treat it as read only.
    bos_id: the id that starts a text, if the vocabulary names one.
    eos_ids: the ids that end an answer.
  """

  backend: tokenizers.Tokenizer
  bos_id: int | None = None
  eos_ids: tuple[int, ...] = ()

  @property
  def vocab_size(self) -> int:
    """One more than the largest id."""
    return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

  @functools.cached_property
  def pieces(self) -> pieces_lib.Pieces:
    """What every id adds to a text; a UserError where no single id does."""
    return pieces_lib.Pieces(self.backend)

  def encode(self, text: str, *, add_special: bool = False) -> list[int]:
    """Returns the ids of a text; special tokens in it are recognised.

    Args:
      text: the text.
      add_special: add what the vocabulary puts around a text (often BOS). Off
        for rendered chat templates, which write it themselves.
    """
    return self.backend.encode(text, add_special_tokens=add_special).ids

  def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
    """Returns the text; ids of the model's padded rows decode to nothing."""
    return self.backend.decode(list(ids), skip_special_tokens=skip_special)

  def token_id(self, token: str) -> int | None:
    """Returns the id of one token as spelled in the vocabulary."""
    return self.backend.token_to_id(token)

  def token(self, token_id: int | None) -> str | None:
    """Returns the spelling of an id."""
    return None if token_id is None else self.backend.id_to_token(token_id)


def from_hf_folder(path: str | pathlib.Path) -> Tokenizer:
  """Reads `tokenizer.json` and the ids named beside it.

  The ids that end an answer are those of tokenizer_config.json, config.json and
  generation_config.json together: chat models often name `<|im_end|>` in only
  one of them.
  """
  folder = pathlib.Path(path)
  file = folder / 'tokenizer.json'
  if not file.is_file():
    raise errors.UserError(
      f'{folder} has no tokenizer.json; save the tokenizer there with'
      ' save_pretrained (fast tokenizer)'
    )
  try:
    backend = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # The Rust side raises bare Exception.
    raise errors.UserError(
      f'{file} is not a readable tokenizer ({error}); save it again'
    ) from error
  # Stored limits belong to training; they would cut prompts silently.
  backend.no_truncation()
  backend.no_padding()
  settings = read_json(folder / 'tokenizer_config.json')
  bos_id = _id_of(backend, settings.get('bos_token'), file)
  eos_ids = [_id_of(backend, settings.get('eos_token'), file)]
  for name in ('config.json', 'generation_config.json'):
    found = read_json(folder / name).get('eos_token_id')
    eos_ids += found if isinstance(found, list) else [found]
  unique = tuple(sorted({i for i in eos_ids if i is not None}))
  return Tokenizer(backend, bos_id, unique)


def from_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
  """Rebuilds the tokenizer in the metadata of the GGUF file `where`."""
  backend = gguf_vocabulary.build(metadata, where)
  ids = [
    metadata.get(f'tokenizer.ggml.{name}_token_id') for name in ('eos', 'eot')
  ]
  unique = tuple(sorted({i for i in ids if i is not None}))
  return Tokenizer(backend, metadata.get('tokenizer.ggml.bos_token_id'), unique)


def check_fits(tokenizer: Tokenizer, vocab_size: int, where: str) -> None:
  """Refuses a tokenizer with ids that the model has no row for.

  Fewer ids than rows is common: vocabularies are padded to a round number.
  """
  if tokenizer.vocab_size > vocab_size:
    raise errors.UserError(
      f'{where}: the tokenizer has ids up to {tokenizer.vocab_size - 1} but the'
      f' model only {vocab_size} rows; they are not of the same model'
    )
  special = [tokenizer.bos_id, *tokenizer.eos_ids]
  outside = [i for i in special if i is not None and not 0 <= i < vocab_size]
  if outside:
    raise errors.UserError(
      f'{where}: special token id {outside[0]} is outside the vocabulary of'
      f' {vocab_size}; correct the tokenizer files'
    )


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file; an absent file holds none."""
  if not path.is_file():
    return {}
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f'{path} is not valid JSON ({error}); fetch or save it again'
    ) from error
  if not isinstance(found, dict):
    raise errors.UserError(f'{path} is not a JSON object; fetch it again')
  return found


def spelling(token: Any) -> str | None:
  """Returns the text of a token that a config spells out or describes."""
  return token.get('content') if isinstance(token, Mapping) else token


def _id_of(
  backend: tokenizers.Tokenizer, token: Any, where: pathlib.Path
) -> int | None:
  text = spelling(token)
  if text is None:
    return None
  token_id = backend.token_to_id(text)
  if token_id is None:
    raise errors.UserError(
      f'{where} has no token {text!r}, which tokenizer_config.json names; save'
      ' both files from the same tokenizer'
    )
  return token_id
