# SPDX-License-Identifier: MIT
"""Turns what a user names on the command line into targets and drafters.

  target    smollm2_135m | DIR | FILE.gguf | hf:ORG/NAME, with options
  drafter   none | ngram | suffix | shipped | DIR | module:attr, with options

A DIR for a drafter is an exported checkpoint or the workdir of a training run.
Options follow the name, as in `shipped,tree_size=16` or `DIR,weights=int8`;
those of a target are in `opening`.
Whatever does not resolve is an error that lists the choices.
"""

import dataclasses
import importlib
import inspect
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jspec import errors, opening
from jspec.targets import embedded, reading, tiling, transformer
from jspec.text import chat
from jspec.text import tokenizer as tokenizer_lib

# Folder of a training workdir that holds its best drafter, exported.
EXPORT = 'export'

# What loading a target is made of, in order: header, texts and tokenizer; the
# arrays on their devices; those of a CPU in tiles as well; the fingerprint.
STEPS = ('open', 'arrays', 'tiles', 'fingerprint')

DRAFTERS = 'none, ngram, shipped, suffix, a checkpoint folder or module:attr'

# What a folder has beside weights and their config.
_TEXTS = (
  *('tokenizer.json', 'tokenizer_config.json', 'tokenizer.model'),
  *('special_tokens_map.json', 'added_tokens.json', 'vocab.json'),
  *('merges.txt', 'generation_config.json'),
  *('chat_template.jinja', 'chat_template.json'),
)

# `jspec.drafters.base.Drafter`, a protocol that no isinstance can check.
Drafter = Any


@dataclasses.dataclass(frozen=True)
class LoadedTarget:
  """A target with all that belongs to it.

  Attributes:
    name: short name, for reports and drafter checkpoints.
    model: the model.
    tokenizer: its tokenizer.
    template: its chat template; None if it has none.
    stop_ids: ids that end an answer.
    fingerprint: of architecture and weights; a drafter checkpoint carries the
      one it was trained for. Of the weights as they were read: a drafter fits
      all forms of its target.
    options: forms that were asked for, as they are written.
    opened: its files, for who reads them to other places.
  """

  name: str
  model: transformer.Transformer
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate | None
  stop_ids: tuple[int, ...]
  fingerprint: str
  options: str = ''
  opened: opening.OpenTarget | None = None

  @property
  def label(self) -> str:
    """Name and options, for reports."""
    return ','.join(filter(None, (self.name, self.options)))


def load_target(
  spec: str,
  *,
  progress: bool = True,
  mesh: Mesh | None = None,
  has_layers: bool = True,
  on_step: Callable[[str], None] = lambda step: None,
) -> LoadedTarget:
  """Loads a target by name, folder, GGUF file or hub name.

  Args:
    spec: see the module docstring.
    progress: draw progress on stderr when it is a terminal.
    mesh: devices it is read to (`sharding.checked`); None: the first one.
    has_layers: False reads an outline, see `reading.read`.
    on_step: called with the name of each of `STEPS` that is done.

  Raises:
    errors.UserError: unknown name or option, unreadable or unsupported model.
  """
  bar = _Bar(progress)
  try:
    found = opening.open_target(spec, bar.show)
    on_step('open')
    return _load(found, bar, mesh, has_layers, on_step)
  finally:
    bar.clear()


def export_target(
  spec: str, folder: str | pathlib.Path, dtype: str
) -> list[pathlib.Path]:
  """Writes a target as a Hugging Face folder, texts included.

  Args:
    spec: as of `load_target`, without options.
    folder: absent, or empty.
    dtype: of the tensors, one of `reading.DTYPES`.

  Returns:
    The files with tensors.

  Raises:
    errors.UserError: as `load_target`, an option, or a GGUF file that says what
      a folder cannot.
  """
  from jspec.targets import families, gguf_to_hf, writing
  from jspec.text import hf_texts

  bar = _Bar(True)
  try:
    found = opening.open_target(spec, bar.show)
    if found.options:
      raise errors.UserError(
        f'{spec}: a folder is written in floats, leave {found.options} out;'
        ' --dtype says in which'
      )
    fields, rules = found.fields, found.rules
    if fields is None:
      fields = gguf_to_hf.fields(found.config, found.family, spec)
      rules = families.find(fields, spec).rules(found.config)
    model = reading.read(
      found.reader(),
      dtype=dtype,
      on_array=lambda done, total: bar.show(
        f'reading {found.name}', done, total
      ),
    )
  finally:
    bar.clear()
  fields = families.find(fields, spec).written(fields)
  files = writing.write(folder, model, rules, fields)
  if found.folder is None:
    hf_texts.write(folder, found.tokenizer, found.template)
    return files
  for name in _TEXTS:
    if (found.folder / name).is_file():
      shutil.copy(found.folder / name, folder)
  return files


def load_drafter(spec: str, target: LoadedTarget) -> Drafter | None:
  """Loads a drafter for a target; 'none' gives None.

  Raises:
    errors.UserError: unknown name or option, or a checkpoint for another
      target.
  """
  name, options = opening.read_options(spec, 'drafter')
  if name == 'none':
    if options:
      raise errors.UserError(f'drafter {spec!r}: none has no options')
    return None
  if name == 'ngram':
    return _ngram(options)
  if name == 'suffix':
    return _suffix(options)
  path = pathlib.Path(name).expanduser()
  if name == 'shipped' or (name and path.is_dir()):
    drafter = (
      _shipped(target) if name == 'shipped' else _drafter_folder(path, target)
    )
    drafter.set_options(**options)
    return drafter
  module, colon, attribute = name.partition(':')
  if colon and module and attribute:
    return _plugged_in(module, attribute, target, options)
  raise errors.UserError(f'unknown drafter {name!r}; use {DRAFTERS}')


def _load(
  found: opening.OpenTarget,
  bar: '_Bar',
  mesh: Mesh | None,
  has_layers: bool,
  on_step: Callable[[str], None],
) -> LoadedTarget:
  name, reader = found.name, found.reader()
  model = reading.read(
    reader,
    **found.forms(),
    mesh=mesh,
    is_split=_splits_layers(),
    has_layers=has_layers,
    on_array=lambda done, total: bar.show(f'reading {name}', done, total),
  )
  on_step('arrays')
  if _splits_layers() and mesh is None and has_layers:
    tiling.add(model)
  on_step('tiles')
  fingerprint = reader.fingerprint()
  on_step('fingerprint')
  return LoadedTarget(
    name=name,
    model=model,
    tokenizer=found.tokenizer,
    template=found.template,
    stop_ids=found.tokenizer.eos_ids,
    fingerprint=fingerprint,
    options=found.options,
    opened=found,
  )


def _splits_layers() -> bool:
  """Whether the layers' weights are kept apart here; see `nn.stack`."""
  return jax.default_backend() == 'cpu'


def _ngram(options: dict[str, Any]) -> Drafter:
  from jspec.drafters import ngram  # A drafter's code loads when it is used.

  unknown = options.keys() - {'num_draft_tokens'}
  if unknown:
    raise errors.UserError(
      f'{min(unknown)}: no option of ngram; there is num_draft_tokens'
    )
  # True and False are numbers to Python.
  if not all(type(value) is int for value in options.values()):
    raise errors.UserError(
      f'num_draft_tokens={options["num_draft_tokens"]!r}: expected a whole'
      ' number from 1'
    )
  return ngram.NGram(**options)


def _suffix(options: dict[str, Any]) -> Drafter:
  from jspec.drafters import suffix

  return suffix.Suffix(suffix.read_options(options))


def _shipped(target: LoadedTarget) -> Drafter:
  folder = pathlib.Path(__file__).parent / 'assets' / f'dflash_{embedded.NAME}'
  if not folder.is_dir():
    raise errors.UserError(
      f'this installation ships no drafter ({folder} is absent); train one or'
      ' use ngram'
    )
  return _drafter_folder(folder, target)


def _drafter_folder(path: pathlib.Path, target: LoadedTarget) -> Drafter:
  # A training run exports its best step beside its checkpoints; the config.json
  # in the workdir itself is the run's, not a drafter's.
  places = (path / EXPORT, path)
  found = [place for place in places if (place / 'config.json').is_file()]
  if not found:
    raise errors.UserError(
      f'{path} holds no drafter: neither config.json nor {EXPORT}/config.json;'
      ' give an exported checkpoint, or let the training run end'
    )
  from jspec.drafters import interchange

  reserved = {*target.stop_ids, target.tokenizer.bos_id} - {None}
  drafter = interchange.load(
    found[0],
    target.model,
    target_fingerprint=target.fingerprint,
    reserved_token_ids=reserved,
  )
  _warn_of_template(found[0], interchange.read_config(found[0]), target)
  _warn_of_variables(found[0])
  # Drafters that loop over layers have another form for CPUs.
  if _splits_layers() and hasattr(drafter, 'split_layers'):
    drafter.split_layers()
  return drafter


def _warn_of_template(path, said, target):
  """Says so if the drafter learnt texts of another template; it still works."""
  trained, own = said.get('target_template'), chat.fingerprint(target.template)
  if trained and trained != own:
    print(
      f'{path}: trained with chat template {trained}, but {target.name} has'
      f' {own or "none"}; fewer drafts may be accepted',
      file=sys.stderr,
    )


def _warn_of_variables(path):
  """Says so if the template of the drafter's texts was told something.

  Prompts here are rendered without variables, and those of a server as each
  request says.
  """
  said = tokenizer_lib.read_json(path / 'provenance.json')
  variables = said.get('chat_template_kwargs')
  if variables:
    told = ', '.join(f'{name}={value}' for name, value in variables.items())
    print(
      f'{path}: trained on texts rendered with {told}; after prompts rendered'
      ' otherwise, fewer drafts may be accepted',
      file=sys.stderr,
    )


def _plugged_in(
  module: str, attribute: str, target: LoadedTarget, options: dict[str, Any]
) -> Drafter:
  try:
    make = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError) as error:
    raise errors.UserError(
      f'cannot import drafter {module}:{attribute} ({error}); check the name'
      ' and that the module is on PYTHONPATH'
    ) from error
  if not callable(make):
    raise errors.UserError(
      f'drafter {module}:{attribute} is not callable; name a function that'
      ' takes the target model'
    )
  try:
    inspect.signature(make).bind(target.model, **options)
  except TypeError as error:
    raise errors.UserError(
      f'drafter {module}:{attribute} does not take (target, '
      f'{", ".join(options)}): {error}'
    ) from error
  return make(target.model, **options)


class _Bar:
  """One line of progress on stderr, redrawn when the percentage changes."""

  def __init__(self, wanted: bool):
    self._is_on = wanted and sys.stderr.isatty()
    self._last = ''

  def show(self, what: str, done: int, total: int) -> None:
    line = f'{what} {100 * done // max(total, 1):3d} %'
    if self._is_on and line != self._last:
      print(f'\r\033[K{line}', end='', file=sys.stderr, flush=True)
      self._last = line

  def clear(self) -> None:
    if self._last:
      print('\r\033[K', end='', file=sys.stderr, flush=True)
      self._last = ''
