# SPDX-License-Identifier: MIT
"""Chat templates as model families write them, and what their models write.

Written from the families' formats, short. `written` says what the model of a
family generates in a turn, without looking at the template.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jspec.text import chat, tokenizer


@dataclasses.dataclass(frozen=True)
class Family:
  """A template with its special tokens and the law of its turns.

  Attributes:
    source: the template.
    written: message -> the text that the model writes, end token included.
    specials: special tokens.
    ends: those that end an answer.
    variables: what the template is rendered with.
    has_system: whether conversations may begin with instructions.
  """

  source: str
  written: Callable[[dict[str, Any]], str]
  specials: tuple[str, ...]
  ends: tuple[str, ...]
  variables: dict[str, Any] = dataclasses.field(default_factory=dict)
  has_system: bool = True

  @functools.cached_property
  def template(self) -> chat.ChatTemplate:
    return chat.ChatTemplate(self.source, '<s>', self.ends[0])

  def tokenizer(self) -> tokenizer.Tokenizer:
    """Bytes, and merges that reach over blanks and lines."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [('Ċ', 'Ċ'), ('h', 'e'), ('Ġ', 'he'), ('l', 'l'), ('Ġ', 'Ġ')]
    words = [*letters, *(a + b for a, b in merges)]
    vocab = {word: i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(self.specials))
    ids = tuple(backend.token_to_id(end) for end in self.ends)
    return tokenizer.Tokenizer(backend, None, ids)


def thought(message: dict[str, Any]) -> str:
  return message.get('reasoning_content') or ''


_IM = ('<|im_start|>', '<|im_end|>')
_CHATML = """\
{% for m in messages %}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}BODY{% else %}{{ m.content + '<|im_end|>' }}
{%- endif %}{{ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}OPEN
{%- endif %}"""


def chatml(body: str, opening: str = '') -> str:
  """A template whose turns of the assistant are `body`."""
  return _CHATML.replace('BODY', body).replace('OPEN', opening)


_PLAIN = "{{ m.content + '<|im_end|>' }}"
_GIVEN = 'enable_thinking is defined and enable_thinking is false'
# The thought stays behind the user's last message only.
_LATE = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}"""
_THOUGHT = (
  "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}"
)
_STRIPPED = '{% if loop.index0 > ns.last %}' + _THOUGHT + '{% endif %}' + _PLAIN
_OPENS_EMPTY = (
  '{% if ' + _GIVEN + " %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
_HARMONY = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content and loop.last %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' }}
{{- m.reasoning_content + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last else '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
_LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{{- m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
_INST = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ ' ' + m.content + TAIL }}
{%- else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}
{%- endfor %}"""
_GEMMA = """\
{{- bos_token }}
{%- for m in messages %}
{{- '<start_of_turn>' }}
{{- ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""


def _chatml(source, written, **changes):
  specials = (*_IM, '<think>', '</think>')
  return Family(source, written, specials, ('<|im_end|>',), **changes)


def _says(end):
  return lambda m: m['content'] + end


def _thinks(m):
  return f'<think>\n{thought(m)}\n</think>\n\n{m["content"]}<|im_end|>'


def _harmony(m):
  before = ''
  if thought(m):
    before = f'<|channel|>analysis<|message|>{thought(m)}<|end|>'
    before += '<|start|>assistant'
  return f'{before}<|channel|>final<|message|>{m["content"]}<|return|>'


FAMILIES = {
  'chatml': _chatml(chatml(_PLAIN), _says('<|im_end|>')),
  'chatml_marked': _chatml(
    chatml('{% generation %}' + _PLAIN + '{% endgeneration %}'),
    _says('<|im_end|>'),
  ),
  # The end token, and the separator behind it, on the wrong side of the mark.
  'chatml_marked_short': _chatml(
    chatml(
      '{% generation %}{{ m.content }}{% endgeneration %}{{ "<|im_end|>" }}'
    ),
    _says('<|im_end|>'),
  ),
  'chatml_marked_long': _chatml(
    chatml(
      '{% generation %}' + _PLAIN + "{{ '\\n' }}{% endgeneration %}"
    ).replace(
      "{{ '\\n' }}\n{%- endfor",
      "{% if m.role != 'assistant' %}{{ '\\n' }}{% endif %}\n{%- endfor",
    ),
    _says('<|im_end|>'),
  ),
  'thinking_kept': _chatml(chatml(_THOUGHT + _PLAIN), _thinks),
  'thinking_kept_marked': _chatml(
    chatml(
      '{% generation %}' + _THOUGHT + '{% endgeneration %}'
      '{% generation %}' + _PLAIN + '{% endgeneration %}'
    ),
    _thinks,
  ),
  'thinking_stripped': _chatml(
    _LATE + chatml(_STRIPPED, _OPENS_EMPTY), _thinks
  ),
  'thinking_stripped_marked': _chatml(
    _LATE + chatml('{% generation %}' + _STRIPPED + '{% endgeneration %}'),
    _thinks,
  ),
  'thinking_off': _chatml(
    _LATE
    + chatml(_STRIPPED.replace('m.reason', 'none and m.reason'), _OPENS_EMPTY),
    _says('<|im_end|>'),
    variables={'enable_thinking': False},
  ),
  # The generation prompt opens the thought.
  'thinking_opened': _chatml(
    chatml(
      "{{ '<think>' + (m.reasoning_content or '') + '</think>' }}" + _PLAIN,
      "{{ '<think>' }}",
    ),
    lambda m: f'{thought(m)}</think>{m["content"]}<|im_end|>',
  ),
  'harmony': Family(
    _HARMONY,
    _harmony,
    ('<|start|>', '<|end|>', '<|message|>', '<|channel|>', '<|return|>'),
    ('<|return|>',),
  ),
  'llama3': Family(
    _LLAMA3,
    lambda m: m['content'].strip() + '<|eot_id|>',
    ('<s>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'),
    ('<|eot_id|>',),
  ),
  'llama2': Family(
    _INST.replace('TAIL', "' </s>'"),
    lambda m: f' {m["content"]} </s>',
    ('<s>', '</s>'),
    ('</s>',),
  ),
  'mistral': Family(
    _INST.replace('TAIL', "'</s>'"),
    lambda m: f' {m["content"]}</s>',
    ('<s>', '</s>', '[INST]', '[/INST]'),
    ('</s>',),
  ),
  'gemma': Family(
    _GEMMA,
    lambda m: m['content'].strip() + '<end_of_turn>',
    ('<s>', '<start_of_turn>', '<end_of_turn>'),
    ('<end_of_turn>',),
    has_system=False,
  ),
}
