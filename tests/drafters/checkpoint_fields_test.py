# SPDX-License-Identifier: MIT
"""Checkpoints of every method: nothing guessed, whatever the dtype."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jspec import errors
from jspec.drafters import interchange
from jspec.nn import rope
from jspec.testing import drafter_suite, toy
from tests.drafters import every_method

# One that no other test uses: see `test_rotary_base_is_one_everywhere`.
ROPE_BASE = 5e6


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module', params=every_method.some(every_method.NAMES))
def saved(request, target, tmp_path_factory):
  """A drafter with a reduced vocabulary, and where it is."""
  drafter = every_method.drafter(
    target, request.param, every_method.DRAFT_IDS, rope_base=ROPE_BASE
  )
  every_method.round_to_bfloat16(drafter)
  folder = tmp_path_factory.mktemp(request.param)
  interchange.save(folder, drafter, target_name='toy', target_fingerprint='f00')
  return drafter, folder


@pytest.fixture
def folder(saved, tmp_path):
  """The weights folder alone, a copy to damage."""
  assert {file.name for file in saved[1].iterdir()} == {
    'config.json',
    'model.safetensors',
  }
  for file in saved[1].iterdir():
    (tmp_path / file.name).write_bytes(file.read_bytes())
  return tmp_path


def _load(folder, target):
  return interchange.load(folder, target, target_fingerprint='f00')


def _edit_config(folder, edit):
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  edit(config)
  path.write_text(json.dumps(config))


def _edit_tensors(folder, edit):
  path = folder / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  safetensors.numpy.save_file(edit(tensors), path)


def _proposal(drafter, target):
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  suite = drafter_suite.Suite(drafter, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['one_prefill'])
  return suite.propose(state, table, text)


def test_what_drafts_depend_on_is_written_and_demanded(saved, folder, target):
  """Layers, conventions and rotary base; each one deleted is an error."""
  drafter, _ = saved
  said = json.loads((folder / 'config.json').read_text())
  assert said['target_layer_ids'] == list(drafter.config.taps)
  assert said['rope_theta'] == ROPE_BASE
  wanted = ['target_layer_ids', 'num_draft_tokens', 'rope_theta']
  wanted += ['draft_vocab_size', 'target_fingerprint']
  if drafter.method not in ('eagle3', 'mtp'):
    wanted += ['block_size', 'label_shift']
  if drafter.method not in every_method.PLAIN:
    wanted += ['mask_token_id']
  for key in wanted:
    value = said.pop(key)
    (folder / 'config.json').write_text(json.dumps(said))
    with pytest.raises(errors.UserError, match=key):
      _load(folder, target)
    said[key] = value
  (folder / 'config.json').write_text(json.dumps(said))
  _load(folder, target)


@pytest.mark.slow
def test_reduced_vocabulary_drafts_the_same_or_is_refused(
  saved, folder, target
):
  drafter, _ = saved
  want = _proposal(drafter, target)
  got = _proposal(_load(folder, target), target)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  live = np.arange(want.tokens.shape[1]) < np.asarray(want.num_nodes)[:, None]
  drafted = np.asarray(want.tokens)[live & (np.arange(live.shape[1]) > 0)]
  assert drafted.size and set(drafted) <= set(every_method.DRAFT_IDS.tolist())
  # Negative control: ids read as the first ones would be others.
  assert np.any(drafted != np.searchsorted(every_method.DRAFT_IDS, drafted))

  def without(tensors):
    del tensors['draft_token_ids']
    return tensors

  _edit_tensors(folder, without)
  with pytest.raises(errors.UserError, match='lacks the tensor'):
    _load(folder, target)


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda ids: ids + 10, 'outside the vocabulary'),
    # Offsets of this map, under the convention id = i + d2t[i].
    (lambda ids: ids - np.arange(len(ids), dtype=np.int32) * 2, 'absolute'),
  ],
  ids=['range', 'offsets'],
)
def test_map_that_cannot_be_one_is_refused(folder, target, change, message):
  _edit_tensors(
    folder, lambda t: t | {'draft_token_ids': change(t['draft_token_ids'])}
  )
  with pytest.raises(errors.UserError, match=message):
    _load(folder, target)


@pytest.mark.parametrize('dtype', [np.float32, np.float16])
def test_any_dtype_loads_and_drafts_the_same(saved, folder, target, dtype):
  """Stored are bfloat16, the values of which the others can hold."""
  drafter, _ = saved

  def cast(tensors):
    floats = {
      name: values.astype(np.float32).astype(dtype)
      for name, values in tensors.items()
      if values.dtype == ml_dtypes.bfloat16
    }
    assert floats
    return tensors | floats

  _edit_tensors(folder, cast)
  loaded = _load(folder, target)
  want, got = (_proposal(x, target) for x in (drafter, loaded))
  assert np.all(np.asarray(got.num_nodes) > 1)
  np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.slow
def test_rotary_base_is_one_everywhere(saved, folder, target, monkeypatch):
  """Training, context and drafts turn by the same angles, also when loaded."""
  drafter, _ = saved
  text = toy.prompts(drafter_suite.NUM_ROWS, drafter_suite.TEXT_LEN)
  anchor = jnp.asarray(text[:, -1])
  _proposal(drafter, target)  # Compiles what the target does.
  used, plain = set(), rope.inverse_frequencies

  def spy(config, head_width):
    used.add(config)
    return plain(config, head_width)

  def check():
    assert used == {rope.RopeConfig(base=ROPE_BASE)}
    used.clear()

  monkeypatch.setattr(rope, 'inverse_frequencies', spy)
  answer = np.broadcast_to(np.arange(16) > 3, (2, 16))
  given = every_method.batch(target, drafter.taps, answer)
  jax.make_jaxpr(lambda d: d.loss(given, jax.random.key(0)))(drafter)
  check()
  loaded = _load(folder, target)
  suite = drafter_suite.Suite(loaded, target)
  state, table = suite.prefill(text, drafter_suite.SCHEDULES['one_prefill'])
  check()
  # Traced alone; an equal drafter's compiled program would be taken.
  jax.make_jaxpr(
    lambda d: jax.tree.leaves(d.propose(state, table, anchor, None, None))
  )(loaded)
  # SpecBlock's chain was computed by the commit.
  if loaded.method != 'specblock':
    check()
