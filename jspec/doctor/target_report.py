# SPDX-License-Identifier: MIT
"""What a target was understood to be, without reading its weights."""

import collections
import json
import math
import pathlib
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from jspec import errors, opening
from jspec.cache import forms
from jspec.checkpoints import names, safetensors
from jspec.doctor import report
from jspec.nn import rope
from jspec.targets import architecture, embedded, families, quantised
from jspec.text import chat
from jspec.text.formats import detection

_SCALE_BYTES = 4  # Of a weight; float32.


def is_target(spec: str) -> bool:
  """Whether something is a target rather than a drafter.

  A folder is one if its family is known and it has most of the tensors of such
  a model: drafters often carry their target's config.
  """
  name = spec.partition(',')[0]
  if name == embedded.NAME or name.startswith('hf:') or name.endswith('.gguf'):
    return True
  folder = pathlib.Path(name).expanduser()
  try:
    fields = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    if 'jspec_format' in fields or 'model_type' not in fields:
      return False
    family = families.find(fields, spec)
    config = family.config(fields, spec)
    source = family.prepare(safetensors.SafetensorsFolder(folder))
  except (OSError, ValueError, TypeError, errors.UserError):
    return False
  wanted = {rule.source for rule in family.rules(config)}
  return 2 * len(wanted & set(source.names())) > len(wanted)


def examine(spec: str) -> dict[str, Any]:
  """The facts and findings about a target, as JSON values.

  Args:
    spec: as of `loading.load_target`.

  Raises:
    UserError: it cannot be understood.
  """
  found = opening.open_target(spec)
  shapes = architecture.array_shapes(found.config)
  if found.config.tied:
    del shapes['head']
  facts = {
    **_model(found.config, shapes),
    **_memory(found),
    **_text(found),
    'tensors': f'{len(found.rules)} read, {len(found.ignored)} not needed',
  }
  problems = names.check(
    found.rules, found.source, shapes, ignored=found.ignored
  )
  findings = [*map(report.wrong, problems), *_doubts(found)]
  return {
    'place': found.source.where,
    'layout': found.family,
    'method': 'a target',
    'facts': facts,
    'findings': [vars(finding) for finding in findings],
  }


def _model(config, shapes):
  """Facts about what is computed."""
  c = config
  numbers = sum(map(math.prod, shapes.values()))
  facts = {
    'layers': f'{c.num_layers} of width {c.width}',
    'attention': _attention(c),
    'windows': _counted(
      'all tokens' if window is None else f'{window} tokens'
      for window in architecture.windows(c)
    ),
    'rotary': _rotary(c.rope),
    'MLP': _mlp(c),
    'vocabulary': f'{c.vocab_size}, head {"tied" if c.tied else "of its own"}',
    'context': f'{c.max_len} tokens',
    'parameters': f'{numbers / 1e9:.3f} billion',
  }
  if c.local_rope is not None:
    facts['rotary'] += f'; with a window {_rotary(c.local_rope)}'
  if c.logit_cap is not None:
    facts['logits'] = f'capped at {c.logit_cap:g}'
  if c.embedding_scale != 1:
    facts['embeddings'] = f'times {c.embedding_scale:g}'
  return facts


def _memory(found):
  """Facts about the form of weights and cache, and what they take.

  A tied head is there as a matrix of its own once the target is loaded.
  """
  shapes = architecture.array_shapes(found.config)
  itemsize = jnp.dtype(found.dtype).itemsize
  small, num_bytes = 0, 0
  for name, shape in shapes.items():
    numbers = math.prod(shape)
    if found.weights is None or name not in quantised.AXES:
      num_bytes += itemsize * numbers
      continue
    small += numbers
    scales = numbers // shape[quantised.AXES[name]]
    num_bytes += numbers + _SCALE_BYTES * scales
  form = found.dtype
  if found.weights is not None:
    share = 100 * small / sum(map(math.prod, shapes.values()))
    form = f'{found.weights} for {share:.0f} % of them, else {form}'
  heads, width = architecture.cached_row(found.config)
  rows = 2 * found.config.num_layers * heads
  if found.cache is not None:
    itemsize = forms.DTYPES[found.cache].itemsize
  row_bytes = width * itemsize
  if forms.has_scales(found.cache):
    row_bytes += jnp.dtype(jnp.bfloat16).itemsize
  return {
    'weights': f'{form}, {_size(num_bytes)}',
    'cache': f'{rows * width} numbers a token, {found.cache or found.dtype},'
    f' {_size(rows * row_bytes)} a token',
  }


def _size(num_bytes):
  for unit in ('B', 'kB', 'MB', 'GB'):
    if num_bytes < 1000 or unit == 'GB':
      break
    num_bytes /= 1000
  return f'{num_bytes:.{0 if unit == "B" else 1}f} {unit}'


def _attention(c):
  parts = [f'{c.num_heads} heads of {c.head_width}']
  if c.latent is not None:
    parts.append(f'latents of {c.latent.row_width}')
  else:
    parts.append(f'{c.num_kv_heads} key-value heads')
  for is_there, what in (
    (c.qk_norm, 'norms of queries and keys'),
    (c.qkv_bias, 'biases'),
    (c.sinks, 'sinks'),
    (c.post_norms, 'norms behind'),
  ):
    if is_there:
      parts.append(what)
  return ', '.join(parts)


def _rotary(config: rope.RopeConfig) -> str:
  scaled = '' if config.kind == 'default' else f', {config.kind}'
  if config.kind != 'default':
    scaled += f' by {config.factor:g}'
  return f'base {config.base:g}{scaled}'


def _mlp(c):
  dense = f'{c.activation} of {c.ff_width}'
  if c.experts is None:
    return dense
  e = c.experts
  text = f'{e.top_k} of {e.num_experts} experts of {e.ff_width}, {e.score}'
  if e.num_groups > 1:
    text += f', {e.top_groups} of {e.num_groups} groups'
  if e.shared_ff_width:
    text += f', a shared one of {e.shared_ff_width}'
  if c.dense_layers:
    text += f'; {len(c.dense_layers)} layers {dense}'
  return text


def _text(found):
  """Facts about what it reads and writes."""
  tokenizer, template = found.tokenizer, found.template
  ends = [f'{i} {tokenizer.token(i)!r}' for i in tokenizer.eos_ids]
  said, calls = 'none', None
  if template is not None:
    calls = detection.tool_format(template.source)
    said = chat.fingerprint(template)
    said += ', with tools' if 'tools' in template.source else ', no tools'
  return {
    'tokenizer': f'{tokenizer.vocab_size} ids',
    'ends answers': ', '.join(ends) or 'none',
    'chat template': said,
    'tool calls': calls.name if calls else 'no format that is known',
  }


def _counted(values: Iterable[str]) -> str:
  """How many layers each."""
  counts = collections.Counter(values)
  return ', '.join(f'{n} layers {value}' for value, n in counts.items())


def _doubts(found):
  if not found.tokenizer.eos_ids:
    yield report.doubt(
      'no token ends an answer: name eos_token_id in generation_config.json'
    )
  if found.template is None:
    yield report.doubt(
      'it has no chat template: prompts are given to it as they are'
    )
