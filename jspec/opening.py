# SPDX-License-Identifier: MIT
"""Finds out what a target is: architecture, texts, and where its tensors lie.

  smollm2_135m | DIR | FILE.gguf | hf:ORG/NAME

Weights are not read (`loading` does that), so it takes no time and no memory.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jspec import errors
from jspec.checkpoints import gguf, names, safetensors
from jspec.targets import architecture, embedded, families, gguf_model
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


def open_target(
  spec: str, show: Callable[[str, int, int], None] | None = None
) -> OpenTarget:
  """Opens a target by name, folder, GGUF file or hub name.

  Args:
    spec: see the module docstring.
    show: called with (what, done, in all), for a progress bar.

  Raises:
    errors.UserError: unknown name, unreadable or unsupported model.
  """
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
