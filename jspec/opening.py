# SPDX-License-Identifier: MIT
"""Finds out what a target is: architecture, texts, and where its tensors lie.

  smollm2_135m | DIR | FILE.gguf | hf:ORG/NAME   [,KEY=VALUE ...]

  dtype=float32 | bfloat16    of arrays, and of what is computed with them
  weights=int8 | fp8          of layers, with a scale for every output channel
  cache=bf16 | int8 | fp8     rows of keys and values, see `cache.forms`

Weights are not read (`loading` does that), so it takes no time and no memory.
"""

import ast
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jspec import errors
from jspec.cache import forms
from jspec.checkpoints import gguf, names, safetensors
from jspec.targets import (
  architecture,
  embedded,
  families,
  gguf_model,
  quantised,
  reading,
)
from jspec.text import chat
from jspec.text import tokenizer as tokenizer_lib
from jspec.text.formats import detection

TARGETS = f'{embedded.NAME}, a folder, a .gguf file or hf:ORG/NAME'


@dataclasses.dataclass(frozen=True)
class OpenTarget:
  """What a target is, before its weights are read.

  Attributes:
    name: short name, for reports and drafter checkpoints.
    family: its `model_type`, or the architecture a GGUF file names.
    config: the architecture.
    tokenizer: its tokenizer.
    template: its chat template; None if it has none.
    source: its tensors.
    rules: how they become arrays.
    ignored: those that hold nothing to load.
    files: those with tensors.
    folder: where it lies, of a Hugging Face folder.
    fields: its config.json, of a Hugging Face folder.
    dtype: of its arrays, one of `reading.DTYPES`.
    weights: form of the matrices of layers (`nn.qarray`); None: of `dtype`.
    cache: form of cached rows (`cache.forms`); None: as they are computed.
  """

  name: str
  family: str
  config: architecture.TransformerConfig
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate | None
  source: names.Source
  rules: list[names.Rule]
  ignored: list[str]
  files: tuple[pathlib.Path, ...] = ()
  folder: pathlib.Path | None = None
  fields: Mapping[str, Any] | None = None
  dtype: str = reading.DTYPES[0]
  weights: str | None = None
  cache: str | None = None

  @property
  def options(self) -> str:
    """What was asked for beside the name, as it is written."""
    usual = OpenTarget.dtype
    asked = {'dtype': None if self.dtype == usual else self.dtype}
    asked |= {'weights': self.weights, 'cache': self.cache}
    return ','.join(f'{key}={form}' for key, form in asked.items() if form)

  def reader(self) -> reading.Reader:
    """Of its arrays."""
    return reading.Reader(
      self.config, self.rules, self.source, ignored=self.ignored
    )

  def forms(self) -> dict[str, str | None]:
    """What was asked for, as `reading.read` names it."""
    return dict(dtype=self.dtype, weights=self.weights, cache_form=self.cache)


def read_options(spec: str, what: str) -> tuple[str, dict[str, Any]]:
  """Splits `name,key=value,...`; values are Python literals, else text.

  Args:
    spec: as a user wrote it.
    what: is named so, for the message.

  Raises:
    errors.UserError: an option that cannot be read, or one given twice.
  """
  name, *pairs = spec.split(',')
  options = {}
  for pair in pairs:
    key, equals, text = pair.partition('=')
    if not (equals and key.isidentifier()) or key in options:
      raise errors.UserError(
        f'{what} {spec!r}: cannot read option {pair!r}; write each once, as'
        ' key=value'
      )
    try:
      options[key] = ast.literal_eval(text)
    except (SyntaxError, ValueError):
      options[key] = text
  return name, options


def open_target(
  spec: str, show: Callable[[str, int, int], None] | None = None
) -> OpenTarget:
  """Opens a target by name, folder, GGUF file or hub name.

  Args:
    spec: see the module docstring.
    show: called with (what, done, in all), for a progress bar.

  Raises:
    errors.UserError: unknown name or option, unreadable or unsupported model.
  """
  name, options = read_options(spec, 'target')
  asked = read_forms(options)  # First: finding may download.
  return dataclasses.replace(_find(name, show), **asked)


def read_forms(options: Mapping[str, Any]) -> dict[str, str | None]:
  """What the options of a target ask for, as fields of `OpenTarget`.

  Raises:
    errors.UserError: an option or a form that there is not.
  """
  unknown = options.keys() - {'dtype', 'weights', 'cache'}
  if unknown:
    raise errors.UserError(
      f'{min(unknown)}: no option of a target; there are dtype, weights and'
      ' cache'
    )
  return {
    'dtype': reading.checked(options.get('dtype', OpenTarget.dtype)),
    'weights': quantised.checked(options.get('weights')),
    'cache': forms.checked(options.get('cache')),
  }


def _find(spec, show):
  if spec == embedded.NAME:
    return _open_gguf(embedded.path(show), embedded.NAME)
  if spec.startswith('hf:'):
    name = spec.removeprefix('hf:')
    return _open_folder(_download(name), name)
  path = pathlib.Path(spec).expanduser()
  if spec and path.is_dir():
    return _open_folder(path, path.resolve().name)
  if path.suffix == '.gguf':
    return _open_gguf(path, path.stem)
  raise errors.UserError(f'unknown target {spec!r}; use {TARGETS}')


def architecture_of(spec: str) -> architecture.TransformerConfig:
  """The architecture of a published model by name, or of a target.

  Args:
    spec: a key of `families.presets()`, or as of `open_target`.

  Raises:
    errors.UserError: it is neither.
  """
  known = families.presets()
  if spec in known:
    return known[spec]
  try:
    return open_target(spec).config
  except errors.UserError as error:
    raise errors.UserError(
      f'{error}; shapes known by name are {", ".join(sorted(known))}'
    ) from error


def _open_gguf(path: pathlib.Path, name: str) -> OpenTarget:
  file = gguf.GGUFFile(path)
  family, config = gguf_model.family(file), gguf_model.config(file)
  tokenizer = tokenizer_lib.from_gguf(file.metadata, file.where)
  tokenizer_lib.check_fits(tokenizer, config.vocab_size, file.where)
  return OpenTarget(
    name=name,
    family=family,
    config=config,
    tokenizer=tokenizer,
    template=chat.from_gguf(file.metadata, tokenizer),
    source=file,
    rules=gguf_model.rules(config, family),
    ignored=gguf_model.ignored(file),
    files=(path,),
  )


def _open_folder(path: pathlib.Path, name: str) -> OpenTarget:
  file = path / 'config.json'
  if not file.is_file():
    raise errors.UserError(
      f'{path} has no config.json; give a Hugging Face checkpoint folder'
    )
  fields = tokenizer_lib.read_json(file)
  family = families.find(fields, str(file))
  config = family.config(fields, str(file))
  tokenizer = tokenizer_lib.from_hf_folder(path)
  tokenizer_lib.check_fits(tokenizer, config.vocab_size, str(path))
  files = safetensors.SafetensorsFolder(path)
  source = family.prepare(files)
  template = chat.from_hf_folder(path)
  return OpenTarget(
    name=name,
    family=fields['model_type'],
    config=config,
    tokenizer=_with_ends(tokenizer, template),
    template=template,
    source=source,
    rules=family.rules(config),
    ignored=family.ignored(config, source),
    files=tuple(files.files()),
    folder=path,
    fields=fields,
  )


def _with_ends(
  tokenizer: tokenizer_lib.Tokenizer, template: chat.ChatTemplate | None
) -> tokenizer_lib.Tokenizer:
  """Adds the ends of answers that the template has and no config names."""
  marks = detection.end_marks(template.source) if template else ()
  found = {tokenizer.token_id(mark) for mark in marks} - {None}
  ends = tuple(sorted({*tokenizer.eos_ids, *found}))
  return dataclasses.replace(tokenizer, eos_ids=ends)


def _download(name: str) -> pathlib.Path:
  """Returns the local folder of a model of the Hugging Face hub."""
  if name.count('/') != 1 or not all(name.split('/')):
    raise errors.UserError(f"'hf:{name}' is not of the form hf:ORG/NAME")
  try:
    import huggingface_hub
  except ImportError as error:
    raise errors.UserError(
      f'hf:{name} needs the package huggingface_hub; run `pip install'
      ' huggingface_hub`, or give a local folder'
    ) from error
  try:
    folder = huggingface_hub.snapshot_download(
      name, allow_patterns=['*.json', '*.jinja', '*.safetensors']
    )
  # The hub package raises its own, requests' and httpx' errors.
  except Exception as error:
    first = str(error).strip().split('\n')[0]
    raise errors.UserError(
      f'cannot fetch hf:{name} ({first or type(error).__name__}); check the'
      ' name and the network, or give a local folder'
    ) from error
  return pathlib.Path(folder)
