# SPDX-License-Identifier: MIT
"""Saving in the background: what it saves, and what is said when it fails."""

import errno
import pathlib
import resource
import threading

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jspec import errors, supervised
from jspec.checkpoints import inventory, orbax

# The size of a state that meets the limit of `small_files`.
WIDTH = 100_000


def state(value, width=3):
  rng = np.random.default_rng(value)
  return {
    'w': jnp.asarray(rng.normal(size=width), jnp.float32),
    'step': jnp.asarray(value, jnp.int32),
  }


def value_of(checkpoints, like=None):
  return int(checkpoints.latest(like or state(0)).state['step'])


@pytest.fixture
def make(tmp_path):
  opened = []

  def make(**settings):
    settings = {'keep_latest': 2, 'on_message': print, **settings}
    made = orbax.Checkpoints(
      tmp_path / 'checkpoints', metric='score', **settings
    )
    opened.append(made)
    return made

  yield make
  for checkpoints in opened:
    checkpoints.close()


@pytest.fixture
def small_files():
  """No file may grow beyond 64 kB from here on: a disk that takes no more."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)

  def limit(size=2**16):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

  yield limit
  resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def held_back(monkeypatch):
  """Saves end only when the event is set."""
  let_go = threading.Event()
  write = ocp.JsonCheckpointHandler._save_fn

  async def wait(self, *rest):
    assert let_go.wait(30)
    await write(self, *rest)

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', wait)
  yield let_go
  let_go.set()


def test_save_does_not_wait_and_what_asks_for_it_does(make, held_back):
  checkpoints = make()
  checkpoints.save(1, state(1), {}, {'score': 1.0})
  path = checkpoints._folder / '1'
  assert not path.exists()
  threading.Timer(0.2, held_back.set).start()
  assert checkpoints.best_step() == 1
  assert path.is_dir()


@pytest.mark.parametrize('num_devices', [1, 2])
def test_step_that_is_given_the_state_changes_nothing_saved(
  make, held_back, num_devices
):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  given = jax.device_put(state(1, WIDTH), sharding)
  wanted = np.asarray(given['w']).copy()
  train_step = jax.jit(
    lambda tree: jax.tree.map(lambda x: x * 0 - 7, tree), donate_argnums=0
  )
  checkpoints = make()
  checkpoints.save(1, given, {}, {'score': 1.0})
  for _ in range(3):
    given = train_step(given)
  assert float(given['w'].sum()) == -7 * WIDTH
  held_back.set()
  restored = checkpoints.latest(state(0, WIDTH))
  np.testing.assert_array_equal(restored.state['w'], wanted)


# Writes of a save that failed end after orbax has closed their event loop.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_full_disk_is_one_line_and_older_checkpoints_load(make, small_files):
  owner = supervised.Owner()
  checkpoints = make(owner=owner)
  for step in (1, 2):
    checkpoints.save(step, state(step, WIDTH), {}, {'score': -float(step)})
  checkpoints.wait()
  small_files()
  checkpoints.save(3, state(3, WIDTH), {}, {'score': 9.0})
  assert checkpoints._saving.join(30.0)
  with pytest.raises(
    errors.UserError, match='checkpoint 3 could not'
  ) as caught:
    owner.check()
  text = str(caught.value)
  assert 'make room there' in text and '\n' not in text
  assert caught.value.__cause__ is not None
  for use in (checkpoints.wait, checkpoints.best_step):
    with pytest.raises(errors.UserError, match='checkpoint 3 could not'):
      use()
  checkpoints.close()
  small_files(resource.RLIM_INFINITY)
  again = make()
  assert again.steps() == [1, 2] and again.best_step() == 1
  assert value_of(again, state(0, WIDTH)) == 2
  # The step can be saved once there is room.
  again.save(3, state(3, WIDTH), {}, {'score': 9.0})
  assert again.best_step() == 3


def test_nothing_is_deleted_for_a_checkpoint_that_is_not_there(
  make, monkeypatch
):
  checkpoints = make(keep_latest=1)
  checkpoints.save(1, state(1), {}, {'score': 1.0})
  checkpoints.wait()

  async def full(self, *_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', full)
  # Better and newer: it would push the first one out.
  checkpoints.save(2, state(2), {}, {'score': 2.0})
  with pytest.raises(errors.UserError, match='No space left'):
    checkpoints.wait()
  entries = inventory.read(checkpoints._folder.parent, 'score')
  assert [entry.step for entry in entries] == [1]
  assert not inventory.why_unreadable(checkpoints._folder.parent, 1)


def test_save_that_fails_unseen_is_said_at_the_end(make, monkeypatch):
  said = []
  checkpoints = make(on_message=said.append)

  async def full(self, *_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', full)
  checkpoints.save(1, state(1), {}, {'score': 1.0})
  checkpoints.close()
  assert len(said) == 1 and 'checkpoint 1 could not be written' in said[0]


def test_folder_that_cannot_be_made_is_said_at_once(make, monkeypatch):
  checkpoints = make()

  async def refused(*_, **__):
    raise PermissionError(errno.EACCES, 'Permission denied')

  monkeypatch.setattr(ocp.AsyncCheckpointer, 'create_temporary_path', refused)
  with pytest.raises(errors.UserError, match='Permission denied'):
    checkpoints.save(1, state(1), {}, {'score': 1.0})


@pytest.mark.few(2)
@pytest.mark.parametrize('name', ['007', '2²', '3_export', '-4', '5.0'])
def test_folder_whose_name_is_not_just_a_number_is_no_checkpoint(
  make, tmp_path, name
):
  first = make()
  first.save(1, state(1), {}, {'score': 1.0})
  first.wait()
  (tmp_path / 'checkpoints' / name).mkdir()
  (tmp_path / 'checkpoints' / name / 'mine').write_text('kept')
  said = []
  checkpoints = make(keep_latest=1, on_message=said.append)
  for step in (2, 3):
    checkpoints.save(step, state(step), {}, {'score': float(step)})
  assert checkpoints.steps() == [3] and not said
  entries = inventory.read(tmp_path, 'score')
  assert [entry.step for entry in entries] == [3]
  assert pathlib.Path(tmp_path, 'checkpoints', name, 'mine').exists()
