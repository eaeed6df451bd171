# SPDX-License-Identifier: MIT
"""Writes what a Hugging Face folder says about texts, from parts.

For targets that do not come out of such a folder; `tokenizer.from_hf_folder`
and `chat.from_hf_folder` read the same again.
"""

import json
import pathlib

from jspec.text import chat
from jspec.text import tokenizer as tokenizer_lib


def write(
  folder: str | pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  template: chat.ChatTemplate | None,
) -> None:
  """Writes tokenizer, template, and the ids that begin and end texts.

  Args:
    folder: is there.
    tokenizer: of the target.
    template: of its chats; None if it has none.
  """
  folder = pathlib.Path(folder)
  tokenizer.backend.save(str(folder / 'tokenizer.json'))
  ends = list(tokenizer.eos_ids)
  end = (
    template.eos_token if template else tokenizer.token(min(ends, default=None))
  )
  settings = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'clean_up_tokenization_spaces': False,
    'bos_token': tokenizer.token(tokenizer.bos_id),
    'eos_token': end,
    'chat_template': template.source if template else None,
  }
  ids = {'bos_token_id': tokenizer.bos_id, 'eos_token_id': ends or None}
  _write(folder / 'tokenizer_config.json', settings)
  _write(folder / 'generation_config.json', ids)


def _write(path, found):
  said = {key: value for key, value in found.items() if value is not None}
  text = json.dumps(said, indent=2, sort_keys=True, ensure_ascii=False)
  path.write_text(text + '\n', encoding='utf-8')
