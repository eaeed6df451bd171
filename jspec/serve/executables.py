# SPDX-License-Identifier: MIT
"""Compiled programs on disk, so that a second start need not trace them.

  <JAX's compilation cache>/executables/fused-16-<hash of the key>.bin

  jspec's source, what it is made of   -> file                    loaded
                   none: traced; its text -> file, named anew   loaded
                                       none: compiled, and kept under both names

JAX's own cache finds a program by its traced form, and tracing takes most of a
start from disk. The first name here says all that tracing would look at
(`described`, `program_key`). The second helps who edits jspec without changing
the program. A program that no name says whole is compiled every time, and one
line says why. A file that is damaged, or that does not load, is told in one
line, and replaced.

Files are unpickled and run, as those of JAX's own cache are run: whoever can
write to the folder can run code as its user. So it is made for its owner alone,
and one that others can write to, or own, is not used.
"""

import collections
import dataclasses
import functools
import hashlib
import io
import os
import pathlib
import pickle
import shutil
import sys
import tempfile
import threading
from typing import Any

import jax
from jax.experimental import serialize_executable

from jspec.serve import described, program_key

MAX_BYTES = 4 * 10**9
_HIT = '/jax/compilation_cache/cache_hits'
_MAGIC = b'jspec executable 1\n'
_DIGEST_BYTES = 32
_SUFFIX = '.bin'


def folder() -> 'Folder | None':
  """Beside the programs that JAX keeps; None where it keeps none, or elsewhere.

  Several processes that share one program have nothing to share here.
  """
  home = jax.config.values['jax_compilation_cache_dir']
  is_on = jax.config.values['jax_enable_compilation_cache']
  if not home or not is_on or '://' in home or jax.process_count() > 1:
    return None
  return Folder(pathlib.Path(home) / 'executables')


@dataclasses.dataclass(frozen=True)
class Folder:
  """Files of programs.

  Attributes:
    path: where they lie; made when something is kept.
    max_bytes: of all of them; what was used least recently goes first.
  """

  path: pathlib.Path
  max_bytes: int = MAX_BYTES
  # What was said, so that many programs do not say it again.
  _told: set[str] = dataclasses.field(default_factory=set, compare=False)

  def load_or_compile(self, name: str, source: Any) -> tuple[Any, bool]:
    """A program, and whether it came from disk.

    Args:
      name: of the program, for people.
      source: what it is compiled from (`programs.Source`).
    """
    try:
      made_of = self._made_of(source)
    except described.Indescribable as error:
      self._warn(f'some programs are compiled at every start: {error}')
      return source.lower().compile(), False
    by_source = self._path(name, self._source, *made_of)
    found = self._load(by_source, source)
    if found is not None:
      return found, True
    lowered = source.lower()
    by_text = self._path(
      name, lowered.as_text(), str(lowered.out_tree), *made_of
    )
    found = self._load(by_text, source)
    if found is None:
      compiled, is_whole = _compiled(lowered)
      if is_whole:
        self._save(compiled, by_text, by_source)
      return compiled, False
    self._name(by_text, by_source)
    return found, True

  @functools.cached_property
  def _environment(self):
    return program_key.environment()

  @functools.cached_property
  def _source(self):
    return program_key.source()

  def _made_of(self, source):
    return (
      self._environment,
      described.value(source.function),
      described.argument(source.models),
      described.argument(source.args),
      described.value(source.donated),
      'None' if source.gives is None else described.argument(source.gives),
    )

  def _path(self, name, *texts):
    name = f'{name.replace(" ", "-")}-{program_key.of(*texts)}{_SUFFIX}'
    return self.path / name

  def _load(self, path, source):
    """The program of a file; None if there is none that is of use."""
    if not path.exists() or not self._is_safe():
      return None
    try:
      text = path.read_bytes()
      start = len(_MAGIC) + _DIGEST_BYTES
      body = text[start:]
      if text[:start] != _head(body):
        raise ValueError('it is damaged')
      code, gives = _Unpickler(io.BytesIO(body)).load()
      found = serialize_executable.deserialize_and_load(
        code,
        jax.tree.structure((source.taken, {})),
        gives,
        execution_devices=_devices(source),
      )
      os.utime(path)  # The least recently used go first.
    # A file of another build can fail in any way; compiling is always right.
    except Exception as error:  # noqa: BLE001
      what = path.name.rpartition('-')[0]
      self._warn(
        f'program {what} kept in {self.path} is of no use ({error}): compiling'
        ' again'
      )
      return None
    return found

  def _save(self, compiled, *paths):
    """Writes a program under its names, whole or not at all."""
    try:
      code, _, gives = serialize_executable.serialize(compiled)
      body = _pickled((code, gives))
      self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
      if not self._is_safe():
        return
      with tempfile.NamedTemporaryFile(
        dir=self.path, prefix='.', suffix='.part', delete=False
      ) as file:
        file.write(_head(body) + body)
      os.replace(file.name, paths[0])
    # Not every back end can say a program; the engine has it all the same.
    except Exception as error:  # noqa: BLE001
      self._warn(f'cannot keep a program in {self.path} ({error})')
      return
    for path in paths[1:]:
      self._name(paths[0], path)
    self._trim(paths)

  def _name(self, path, other):
    """Gives a file another name, under which it is found without tracing."""
    try:
      if program_key.has_changed():
        self._warn(
          'programs are traced again at the next start: jspec is younger than'
          ' this process'
        )
        return
      part = other.with_name(f'.{other.name}.{os.getpid()}.part')
      part.unlink(missing_ok=True)
      try:
        os.link(path, part)
      except OSError:  # Not every file system has links.
        shutil.copyfile(path, part)
      os.replace(part, other)
      part.unlink(missing_ok=True)  # Left where both were one file already.
    except OSError as error:
      self._warn(f'cannot keep a program in {self.path} ({error})')

  def _is_safe(self):
    status = self.path.stat()
    is_own = not hasattr(os, 'getuid') or status.st_uid == os.getuid()
    if is_own and not status.st_mode & 0o022:
      return True
    self._warn(f'programs in {self.path} are not used: others can write there')
    return False

  def _trim(self, newest):
    """Drops what was used least recently beyond the limit."""
    files = []
    for path in self.path.glob(f'*{_SUFFIX}'):
      try:
        files.append((path.stat(), path))
      except FileNotFoundError:  # Another process was here.
        continue
    files.sort(key=lambda file: (file[1] in newest, file[0].st_mtime))
    # A file of two names is counted by halves.
    sizes = [status.st_size / status.st_nlink for status, _ in files]
    total = sum(sizes)
    for (_, path), size in zip(files, sizes, strict=True):
      if total <= self.max_bytes or path in newest:
        break
      path.unlink(missing_ok=True)
      total -= size

  def _warn(self, text):
    if text not in self._told:
      self._told.add(text)
      print('warning: ' + ' '.join(text.split()), file=sys.stderr)


def _devices(source):
  """What a program runs on: the devices of its arguments, in their order."""
  for leaf in jax.tree.leaves(source.taken):
    where = getattr(leaf, 'sharding', None)
    if where is not None:
      return tuple(where._device_assignment)
  return tuple(jax.devices()[:1])


class _Pickler(pickle.Pickler):
  """Says devices, which a state on a mesh names, by number."""

  def persistent_id(self, obj):
    return obj.id if isinstance(obj, jax.Device) else None


class _Unpickler(pickle.Unpickler):
  def persistent_load(self, pid):
    return next(device for device in jax.devices() if device.id == pid)


def _pickled(value):
  file = io.BytesIO()
  _Pickler(file).dump(value)
  return file.getvalue()


def _head(body):
  """Stands before a body; a file that was cut short or changed has another."""
  return _MAGIC + hashlib.sha256(body).digest()


def _compiled(lowered):
  """A program, and whether it can be kept.

  XLA's CPU back end writes a program that it loaded itself, as JAX does from
  its own cache, without some of its functions; running it fails later.
  """
  hits = _hits()
  before = hits[threading.get_ident()]
  compiled = lowered.compile()
  return compiled, hits[threading.get_ident()] == before


@functools.cache
def _hits():
  """Counts what JAX finds in its own cache, by thread, from now on."""
  found = collections.Counter()

  def count(name, **_):
    if name == _HIT:
      found[threading.get_ident()] += 1

  jax.monitoring.register_event_listener(count)
  return found
