# SPDX-License-Identifier: MIT
"""What stays, what is restored, and what happens to broken checkpoints."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jspec import errors
from jspec.checkpoints import orbax


def state(value, **extra):
  return {
    'params': {'a.b': jnp.full((3,), float(value)), **extra},
    'step': jnp.asarray(value, jnp.int32),
    'key': jax.random.key(value),
  }


@pytest.fixture
def open_checkpoints(tmp_path):
  opened = []

  def make(messages=None, **settings):
    messages = [] if messages is None else messages
    checkpoints = orbax.Checkpoints(
      tmp_path / 'checkpoints',
      metric='score',
      on_message=messages.append,
      **settings,
    )
    opened.append(checkpoints)
    return checkpoints

  yield make
  for checkpoints in opened:
    checkpoints.close()


def save(checkpoints, scores, first=1):
  for step, score in enumerate(scores, start=first):
    checkpoints.save(step, state(step), {'at': step}, {'score': score})
  checkpoints.wait()  # Others look at the same folder.


def test_latest_comes_back_whole(open_checkpoints):
  save(open_checkpoints(), [1.0, 2.0])
  restored = open_checkpoints().latest(state(0))
  assert restored.step == 2
  assert restored.extra == {'at': 2}
  np.testing.assert_array_equal(restored.state['params']['a.b'], [2, 2, 2])
  assert jnp.array_equal(
    jax.random.key_data(restored.state['key']),
    jax.random.key_data(jax.random.key(2)),
  )


def test_nothing_is_restored_from_an_empty_folder(open_checkpoints):
  assert open_checkpoints().latest(state(0)) is None


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'scores, kept, best',
  [
    ([5.0, 3.0, 2.0, 1.0], [1, 4], 1),
    ([1.0, 2.0, 3.0], [3], 3),
    ([1.0, 4.0, 4.0, 2.0], [2, 4], 2),
    ([2.0, float('nan'), 1.0], [1, 3], 1),
  ],
)
def test_newest_and_best_are_kept(open_checkpoints, scores, kept, best):
  checkpoints = open_checkpoints(keep_latest=1, keep_best=1)
  save(checkpoints, scores)
  assert checkpoints.steps() == kept
  assert checkpoints.best_step() == best
  assert checkpoints.restore(best, state(0)).step == best
  reopened = open_checkpoints(keep_latest=1, keep_best=1)
  assert reopened.best_step() == best
  assert reopened.latest(state(0)).step == len(scores)


@pytest.mark.parametrize('victim', ['state', 'meta', 'metrics'])
def test_cut_checkpoint_is_skipped_with_a_message(
  open_checkpoints, tmp_path, victim
):
  save(open_checkpoints(), [1.0, 2.0])
  folder = tmp_path / 'checkpoints' / '2' / victim
  files = [p for p in folder.rglob('*') if p.is_file()]
  for path in files:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  messages = []
  checkpoints = open_checkpoints(messages)
  assert checkpoints.latest(state(0)).step == 1
  assert len(messages) == 1 and 'checkpoint 2 cannot be read' in messages[0]
  # The step can be saved again, and nothing of the broken one was deleted.
  save(checkpoints, [3.0], first=2)
  assert checkpoints.latest(state(0)).extra == {'at': 2}
  assert (tmp_path / 'broken_checkpoints' / '2').is_dir()


def test_checkpoint_that_one_of_several_cannot_read_stays(
  open_checkpoints, tmp_path, monkeypatch
):
  """It may be the process it read with that is gone."""
  save(open_checkpoints(), [1.0, 2.0])
  (tmp_path / 'checkpoints' / '2' / 'meta' / 'metadata').write_text('{')
  checkpoints = open_checkpoints()

  def nobody_comes(*, key, timeout_ms):
    raise RuntimeError(f'{key} after {timeout_ms} ms')

  with monkeypatch.context() as patch:
    patch.setattr(ocp.multihost, 'get_barrier_sync_fn', lambda: nobody_comes)
    with pytest.raises(errors.UserError, match='checkpoint 2 .* alone'):
      checkpoints.latest(state(0))
  assert (tmp_path / 'checkpoints' / '2').is_dir()
  assert checkpoints.latest(state(0)).step == 1


def test_unfinished_save_is_ignored(open_checkpoints, tmp_path):
  save(open_checkpoints(), [1.0])
  folder = tmp_path / 'checkpoints'
  (folder / '2.orbax-checkpoint-tmp').mkdir()
  (folder / '1_export').mkdir()
  checkpoints = open_checkpoints()
  assert checkpoints.steps() == [1]
  save(checkpoints, [2.0], first=2)
  assert checkpoints.latest(state(0)).step == 2
  assert (folder / '1_export').is_dir()


def test_training_does_not_start_over_when_all_are_broken(
  open_checkpoints, tmp_path
):
  save(open_checkpoints(), [1.0])
  for path in (tmp_path / 'checkpoints' / '1' / 'meta').rglob('*'):
    path.write_bytes(b'')
  with pytest.raises(errors.UserError, match='no checkpoint'):
    open_checkpoints().latest(state(0))


def test_metrics_that_are_all_cut_are_no_reason_to_start_over(
  open_checkpoints, tmp_path
):
  save(open_checkpoints(), [1.0])
  (tmp_path / 'checkpoints' / '1' / 'metrics' / 'metrics').write_text('{')
  # Set aside in the first start, and not forgotten in the second.
  for _ in range(2):
    with pytest.raises(errors.UserError, match='no checkpoint .* can be read'):
      open_checkpoints().latest(state(0))


def test_best_that_was_deleted_by_hand_is_chosen_anew(
  open_checkpoints, tmp_path
):
  settings = {'keep_latest': 2, 'keep_best': 1}
  save(open_checkpoints(**settings), [1.0, 5.0, 3.0, 2.0, 4.0])
  assert open_checkpoints(**settings).best_step() == 2
  shutil.rmtree(tmp_path / 'checkpoints' / '2')
  checkpoints = open_checkpoints(**settings)
  assert checkpoints.best_step() == 5
  save(checkpoints, [1.5], first=6)
  assert checkpoints.steps() == [5, 6] and checkpoints.best_step() == 5


def test_step_that_was_not_measured_is_never_the_best(open_checkpoints):
  checkpoints = open_checkpoints(keep_latest=2)
  save(checkpoints, [1.0, 2.0, float('nan')])
  assert checkpoints.best_step() == 2
  assert checkpoints.latest(state(0)).step == 3


@pytest.mark.parametrize(
  'like, said',
  [
    ({'c': jnp.zeros((1,))}, r'missing \[.params.c.\]'),
    ({'a.b': jnp.zeros((4,))}, r'float32\[3\], expected float32\[4\]'),
  ],
)
def test_other_names_or_shapes_are_refused(open_checkpoints, like, said):
  checkpoints = open_checkpoints()
  save(checkpoints, [1.0])
  with pytest.raises(errors.UserError, match=said):
    checkpoints.latest(state(0, **like))
  assert checkpoints.steps() == [1]


def test_number_of_devices_may_change(open_checkpoints):
  save(open_checkpoints(), [1.0])
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  like = jax.device_put(state(0), sharding)
  restored = open_checkpoints().latest(like)
  assert restored.state['params']['a.b'].sharding == sharding
