# SPDX-License-Identifier: MIT
"""Turns what a user names on the command line into targets and drafters.

  target    smollm2_135m | DIR | FILE.gguf | hf:ORG/NAME
  drafter   none | ngram | suffix | shipped | DIR | module:attr, with options

A DIR for a drafter is an exported checkpoint or the workdir of a training run.
Options of a drafter follow its name, as in `shipped,tree_size=16`.
Whatever does not resolve is an error that lists the choices.
"""

import ast
import dataclasses
import hashlib
import importlib
import inspect
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np

from jspec import errors, opening
from jspec.targets import architecture, embedded, tables, transformer
from jspec.text import chat
from jspec.text import tokenizer as tokenizer_lib

# Folder of a training workdir that holds its best drafter, exported.
EXPORT = 'export'

DRAFTERS = 'none, ngram, shipped, suffix, a checkpoint folder or module:attr'

# `jspec.drafters.base.Drafter`, a protocol that no isinstance can check.
Drafter = Any

# Rows and columns of a matrix that enter a fingerprint.
_FINGERPRINT_ROWS = 16


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
      one it was trained for.
  """

  name: str
  model: transformer.Transformer
  tokenizer: tokenizer_lib.Tokenizer
  template: chat.ChatTemplate | None
  stop_ids: tuple[int, ...]
  fingerprint: str


def load_target(spec: str, *, progress: bool = True) -> LoadedTarget:
  """Loads a target by name, folder, GGUF file or hub name.

  Args:
    spec: see the module docstring.
    progress: draw progress on stderr when it is a terminal.

  Raises:
    errors.UserError: unknown name, unreadable or unsupported model.
  """
  bar = _Bar(progress)
  try:
    return _load(opening.open_target(spec, bar.show), bar)
  finally:
    bar.clear()


def load_drafter(spec: str, target: LoadedTarget) -> Drafter | None:
  """Loads a drafter for a target; 'none' gives None.

  Raises:
    errors.UserError: unknown name or option, or a checkpoint for another
      target.
  """
  name, options = _options(spec)
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


def fingerprint(
  config: architecture.TransformerConfig, arrays: dict[str, np.ndarray]
) -> str:
  """Returns 16 hex digits over the architecture and a corner of each array."""
  digest = hashlib.sha256()
  shape = {
    'num_layers': config.num_layers,
    'width': config.width,
    'ff_width': config.ff_width,
    'num_heads': config.num_heads,
    'num_kv_heads': config.num_kv_heads,
    'head_width': config.head_width,
    'vocab_size': config.vocab_size,
    'rope': [config.rope.kind, config.rope.base, config.rope.factor],
    'tied': config.tied,
    **architecture.deviations(config),
  }
  digest.update(json.dumps(shape, sort_keys=True).encode())
  for name in sorted(arrays):
    corner = arrays[name][(slice(0, _FINGERPRINT_ROWS),) * arrays[name].ndim]
    values = np.ascontiguousarray(corner, dtype='<f4')
    digest.update(name.encode())
    digest.update(values.tobytes())
  return digest.hexdigest()[:16]


def _load(found: opening.OpenTarget, bar: '_Bar') -> LoadedTarget:
  name, config = found.name, found.config
  arrays = tables.load(
    config,
    found.rules,
    found.source,
    ignored=found.ignored,
    on_tensor=lambda done, total: bar.show(f'reading {name}', done, total),
  )
  mark = fingerprint(config, arrays)
  model = transformer.Transformer(config, arrays, is_split=_splits_layers())
  arrays.clear()  # Before there is a third copy of them.
  if _splits_layers():
    model.add_tiles()
  return LoadedTarget(
    name=name,
    model=model,
    tokenizer=found.tokenizer,
    template=found.template,
    stop_ids=found.tokenizer.eos_ids,
    fingerprint=mark,
  )


def _splits_layers() -> bool:
  """Whether the layers' weights are kept apart here; see `nn.stack`."""
  return jax.default_backend() == 'cpu'


def _options(spec: str) -> tuple[str, dict[str, Any]]:
  """Splits `name,key=value,...`; values are Python literals, else text."""
  name, *pairs = spec.split(',')
  options = {}
  for pair in pairs:
    key, equals, text = pair.partition('=')
    if not (equals and key.isidentifier()) or key in options:
      raise errors.UserError(
        f'drafter {spec!r}: cannot read option {pair!r}; write each once, as'
        ' key=value'
      )
    try:
      options[key] = ast.literal_eval(text)
    except (SyntaxError, ValueError):
      options[key] = text
  return name, options


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
