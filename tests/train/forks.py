# SPDX-License-Identifier: MIT
"""Starts runs of `tests.train.tiny` that can be killed, importing only once.

A process imports everything, touches no device, and forks for every run. So a
run starts in the time that JAX needs to trace, not to be imported.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback

from tests.train import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Forks:
  """The process that forks; runs go one by one."""

  def __init__(self, programs: pathlib.Path):
    """Starts it; compiled programs are kept in the folder `programs`."""
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'tests.train.forks'],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env={
        **os.environ,
        # One device compiles faster, and what is compiled stays.
        'XLA_FLAGS': '',
        'JAX_COMPILATION_CACHE_DIR': str(programs),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
      },
    )
    self._pid = 0

  def start(self, folder: pathlib.Path, changes: dict) -> None:
    """Starts a run; its output goes to FOLDER/output.txt."""
    self._process.stdin.write(json.dumps([str(folder), changes]) + '\n')
    self._process.stdin.flush()
    self._pid = int(self._process.stdout.readline())

  def kill(self) -> None:
    """Kills the run, as a machine that loses its power would."""
    if self.is_running():
      os.kill(self._pid, signal.SIGKILL)

  def wait(self) -> int:
    """Waits for the end of the run and returns its exit code."""
    self._pid = 0
    return int(self._process.stdout.readline())

  def is_running(self) -> bool:
    """Whether the run has not ended yet (a zombie has)."""
    status = pathlib.Path(f'/proc/{self._pid}/stat')
    try:
      return status.read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
      return False

  def close(self) -> None:
    """Ends the process, and a run that still goes on."""
    if self._pid:
      self.kill()
    self._process.communicate()


def _run(folder, changes):
  """In the forked process: trains and ends, whatever happens."""
  output = os.open(
    folder / 'output.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND
  )
  os.dup2(output, 1)
  os.dup2(output, 2)
  code = 1
  try:
    tiny.train(
      folder, on_message=lambda text: print(text, flush=True), **changes
    )
    code = 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve():
  for line in sys.stdin:
    folder, changes = json.loads(line)
    pid = os.fork()
    if not pid:
      _run(pathlib.Path(folder), changes)
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == '__main__':
  _serve()
