# SPDX-License-Identifier: MIT
"""Killed between any two file operations: newest and best can be loaded."""

import os
import shutil
import threading

import jax.numpy as jnp
import pytest

from jspec.checkpoints import inventory, orbax

OPERATIONS = ('mkdir', 'rename', 'replace', 'rmdir', 'remove', 'unlink')
# The third pushes the second out, the fourth is best, the fifth pushes again.
SCORES = {1: 5.0, 2: 3.0, 3: 2.0, 4: 6.0, 5: 1.0}


def state(value):
  return {'w': jnp.full((3,), value, jnp.float32)}


class Instants:
  """Copies of a folder as file operations find it: what a kill leaves there."""

  def __init__(self, folder, copies):
    self.found = []
    self._folder = folder
    self._copies = copies
    self._seen = set()
    # Operations of several threads go one by one, or a copy would be torn.
    self._lock = threading.RLock()
    self._is_copying = False

  def watch(self, operation):
    def watched(*args, **kwargs):
      with self._lock:
        if not self._is_copying:
          self._is_copying = True
          self.copy()
          self._is_copying = False
        return operation(*args, **kwargs)

    return watched

  def copy(self):
    """Keeps the folder as it is now, if it was never so before."""
    # What is being written beside its name may change under the copy.
    paths = [
      path
      for path in self._folder.rglob('*')
      if 'checkpoint-tmp' not in str(path)
    ]
    now = frozenset((str(path), path.stat().st_size) for path in paths)
    if now in self._seen:
      return
    self._seen.add(now)
    copy = self._copies / str(len(self.found))
    shutil.copytree(
      self._folder,
      copy / 'checkpoints',
      ignore=shutil.ignore_patterns('*checkpoint-tmp*'),
    )
    (copy / 'checkpoints' / '9.orbax-checkpoint-tmp' / 'state').mkdir(
      parents=True
    )
    self.found.append(copy)


@pytest.mark.slow
@pytest.mark.parametrize('keep_latest', [1, 2])
def test_kill_between_file_operations_loses_no_checkpoint(
  tmp_path, monkeypatch, keep_latest
):
  settings = {'metric': 'score', 'keep_latest': keep_latest, 'keep_best': 1}
  folder = tmp_path / 'run' / 'checkpoints'
  checkpoints = orbax.Checkpoints(folder, **settings)
  instants = Instants(folder, tmp_path / 'instants')
  with monkeypatch.context() as patched:
    for name in OPERATIONS:
      patched.setattr(os, name, instants.watch(getattr(os, name)))
    for step, score in SCORES.items():
      checkpoints.save(step, state(step), {'at': step}, {'score': score})
    checkpoints.close()
  instants.copy()
  # A save is at least its folder, its rename, and what it pushes out.
  assert len(instants.found) > 2 * len(SCORES)

  newest, highest = 0, 0.0
  for copy in instants.found:
    entries = inventory.read(copy, 'score')
    assert not any(inventory.why_unreadable(copy, e.step) for e in entries)
    said = []
    opened = orbax.Checkpoints(
      copy / 'checkpoints', on_message=said.append, **settings
    )
    restored = opened.latest(state(0))
    assert not said
    if restored is None:
      assert newest == 0
    else:
      best = opened.best_step()
      assert restored.step >= newest and SCORES[best] >= highest
      assert float(restored.state['w'][0]) == restored.step
      assert opened.restore(best, state(0)).extra == {'at': best}
      newest, highest = restored.step, SCORES[best]
    opened.close()
  assert (newest, highest) == (5, 6.0)
