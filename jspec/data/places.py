# SPDX-License-Identifier: MIT
"""Where a store of taps lies: a folder of this machine, or object storage.

  runs/taps      gs://BUCKET/taps      s3://BUCKET/taps      az://CONTAINER/taps

Object storage is reached through `etils.epath`, which wants the package of the
service. ArrayRecord files are written to and read from local files alone, so a
shard goes through a scratch file ($TMPDIR) on its way up, and is fetched once
into $JSPEC_CACHE/taps on its way down. Files appear under their name when they
are whole: locally by a rename, in object storage when the upload is closed.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from etils import epath

from jspec import errors

# The package that each scheme needs; epath names it only in a traceback.
PACKAGES = {'gs': 'gcsfs', 's3': 's3fs', 'az': 'adlfs'}
_CHUNK = 1 << 24

Folder = pathlib.Path | epath.Path


def folder(name: os.PathLike[str] | str) -> Folder:
  """Reads the name of a folder; nothing is looked at.

  Raises:
    UserError: a scheme that is not known here.
  """
  text = os.fspath(name)
  scheme = _scheme(text)
  if scheme is None:
    return pathlib.Path(text)
  if scheme not in PACKAGES:
    known = ', '.join(f'{name}://' for name in PACKAGES)
    raise errors.UserError(
      f'{text}: taps are stored in a folder or under {known}; there is no'
      f' {scheme}:// here'
    )
  return epath.Path(text)


def is_remote(path: Folder) -> bool:
  """Whether it lies in object storage."""
  return _scheme(os.fspath(path)) is not None


def names(place: Folder) -> set[str]:
  """The files of a folder; none if it does not exist.

  Raises:
    UserError: it is a file, may not be read, or its service does not answer.
  """
  try:
    return {path.name for path in place.iterdir()}
  except FileNotFoundError:
    return set()
  except ImportError as error:
    package = PACKAGES[_scheme(os.fspath(place))]
    raise errors.UserError(
      f'{place} needs the package {package} (pip install {package}): {error}'
    ) from error
  # The packages of services raise what they like, credentials and all.
  except Exception as error:
    if not is_remote(place) and not isinstance(error, OSError):
      raise
    raise errors.UserError(
      f'cannot read {place} ({_told(error)}): name another data.store, or mend'
      ' the access to it'
    ) from error


def make(place: Folder) -> None:
  """Makes a folder; object storage has none to make.

  Raises:
    UserError: it cannot be made.
  """
  if is_remote(place):
    return
  try:
    place.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise errors.UserError(
      f'cannot write taps to {place} ({_told(error)}): name another data.store'
    ) from error


@contextlib.contextmanager
def writing(path: Folder) -> Iterator[pathlib.Path]:
  """Gives a local file to write, which is `path` after the block.

  Raises:
    UserError: it cannot be written; what was there before is still there.
  """
  try:
    if is_remote(path):
      with tempfile.TemporaryDirectory(prefix='jspec-taps-') as scratch:
        partial = pathlib.Path(scratch) / path.name
        yield partial
        _copy(partial, path)
      return
    partial = path.with_name(path.name + '.partial')
    yield partial
    with open(partial, 'rb') as file:
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError as error:
    raise errors.UserError(
      f'cannot write {path} ({_told(error)}): make room or mend the access,'
      ' then run the capture again; it goes on'
    ) from error


def read(path: Folder) -> bytes:
  """The content of a small file."""
  with path.open('rb') as file:
    return file.read()


def num_bytes(path: Folder) -> int:
  """The size of a file."""
  found = path.stat()
  return found.length if is_remote(path) else found.st_size


def local_file(path: Folder, size: int, key: str) -> pathlib.Path:
  """A file of this machine with the content of `path`, fetched if need be.

  Args:
    path: the file.
    size: bytes it has; another size is fetched again.
    key: of the content of its folder: copies of other content lie elsewhere.

  Raises:
    UserError: the copy cannot be kept.
  """
  if not is_remote(path):
    return path
  copy = _cache() / 'taps' / key / path.name
  if copy.exists() and copy.stat().st_size == size:
    return copy
  # Several processes of a machine may fetch the same.
  partial = copy.with_name(f'{copy.name}.{os.getpid()}.partial')
  try:
    copy.parent.mkdir(parents=True, exist_ok=True)
    _copy(path, partial)
    os.replace(partial, copy)
  except OSError as error:
    partial.unlink(missing_ok=True)
    raise errors.UserError(
      f'cannot fetch {path} to {copy.parent} ({_told(error)}): point'
      ' JSPEC_CACHE at a disk with room for all taps, or mend the access'
    ) from error
  return copy


def _scheme(text):
  scheme, mark, _ = text.partition('://')
  return scheme if mark else None


def _cache():
  named = os.environ.get('JSPEC_CACHE')
  return pathlib.Path(named or pathlib.Path.home() / '.cache' / 'jspec')


def _copy(source, target):
  with source.open('rb') as file, target.open('wb') as to:
    shutil.copyfileobj(file, to, _CHUNK)


def _told(error):
  lines = str(error).strip().split('\n')
  return lines[0] or type(error).__name__
