# SPDX-License-Identifier: MIT
"""Clouds and clusters that are shell scripts: they note what they are asked.

A TPU VM is a folder, and what is sent over ssh runs in it; Slurm and xpk run
the one process they would run many times. `make` builds an environment whose
`jspec` notes its words, and ends as the test says.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from tests.launch import serving

_HEAD = r"""#!/usr/bin/env bash
set -eu
# Unit and record separators; one write, as several may write at once.
printf '%s\036' "$(printf '%s\037' "${0##*/}" "$@")" >>"$PRETENDED/asked"
# The first line of a file; it goes, unless it is the last.
take() {
  head -n 1 "$PRETENDED/$1"
  if [ "$(wc -l <"$PRETENDED/$1")" -gt 1 ]; then sed -i 1d "$PRETENDED/$1"; fi
}
"""
GCLOUD = r"""
case "$3 $4" in
  'tpu-vm describe') test -e "$PRETENDED/vm" ;;
  'tpu-vm create') mkdir "$PRETENDED/vm" ;;
  'tpu-vm scp') cp "$5" "$PRETENDED/vm/${6#*:}" ;;
  'tpu-vm ssh')
    while [ "$1" != --command ]; do shift; done
    cd "$PRETENDED/vm" && exec bash -c "$2"
    ;;
  'queued-resources describe')
    state=$(take states)
    if [ "$state" = ABSENT ]; then exit 1; fi
    echo "$state"
    ;;
  'queued-resources create') mkdir -p "$PRETENDED/vm" ;;
  'queued-resources delete') rm -rf "$PRETENDED/vm" ;;
  *) exit 64 ;;
esac
"""
# A workload is a line of a file: its name and its status.
XPK = r"""
verb=$2
workloads=$PRETENDED/workloads
touch "$workloads"
while [ $# -gt 0 ]; do
  case $1 in
    --workload) name=$2 ;;
    --command) command=$2 ;;
    --filter-by-status) status=$2 ;;
    --wait-for-job-completion) exit "$(take ends)" ;;
    *) ;;
  esac
  shift
done
case $verb in
  list)
    echo 'Jobset Name   Status'
    if [ "$status" = EVERYTHING ]; then status=.; fi
    grep "$status" "$workloads" || true
    ;;
  create)
    echo "$name RUNNING" >>"$workloads"
    bash -c "$command"
    ;;
  delete) sed -i "/^$name /d" "$workloads" ;;
  *) exit 64 ;;
esac
"""
SRUN = r"""
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
# The batch script is run where Slurm keeps its copies.
SBATCH = r"""
flags=()
while [[ $1 == --* ]]; do flags+=("$1" "$2"); shift 2; done
mkdir -p "$PRETENDED/spool"
cp "$1" "$PRETENDED/spool/job"
shift
SLURM_SUBMIT_DIR=$PWD exec bash "$PRETENDED/spool/job" "$@"
"""
MAKE = r"""
mkdir -p .venv/bin
for name in pip jspec python; do cp "$PRETENDED/bin/$name" .venv/bin; done
"""
JSPEC = 'exit "$(take statuses)"\n'
PYTHON = f'if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi\n'
PROGRAMS = {
  'gcloud': GCLOUD,
  'xpk': XPK,
  'srun': SRUN,
  'sbatch': SBATCH,
  'scontrol': '',
  'make': MAKE,
  'jspec': JSPEC,
  'python': PYTHON,
  'pip': '',
  'python3.11': '',
}


class World:
  """Programs in a folder, and what they were asked.

  Attributes:
    folder: of all that is pretended.
    tree: a copy of launch/ in a folder of its own, for scripts that install
      where they lie.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.tree = folder / 'tree'
    shutil.copytree(serving.LAUNCH, self.tree / 'launch')
    for name, text in PROGRAMS.items():
      self.program(name, text)
    self.says('statuses', 0)
    self.says('ends', 0)

  def program(self, name, text):
    """Writes a program."""
    path = self.folder / 'bin' / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(_HEAD + text)
    path.chmod(0o755)

  def says(self, name, *lines):
    """What a program says or ends with, call by call; the last one stays."""
    text = ''.join(f'{line}\n' for line in lines)
    (self.folder / name).write_text(text)

  def environment(self, **more):
    """Where the pretended programs come first."""
    path = f'{self.folder / "bin"}:{os.environ["PATH"]}'
    return {
      **{'PATH': path, 'HOME': str(self.folder), 'LC_ALL': 'C'},
      **{'PRETENDED': str(self.folder), 'POLL_S': '0', **more},
    }

  def run(self, *words, cwd=None, **environment):
    """Runs a command to its end."""
    return subprocess.run(
      [str(word) for word in words],
      cwd=cwd or self.folder,
      env=self.environment(**environment),
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      check=False,
      timeout=120,
    )

  def asked(self, *start):
    """Calls that begin with these words, each a list of words."""
    path = self.folder / 'asked'
    records = path.read_text().split('\x1e')[:-1] if path.exists() else []
    calls = [record.split('\x1f')[:-1] for record in records]
    return [call for call in calls if call[: len(start)] == list(start)]
