# SPDX-License-Identifier: MIT
"""Eight bits straight from files: the same numbers, and little memory."""

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import host_memory
from jspec.nn import qarray
from jspec.targets import (
  quantised,
  quantising,
  reading,
  sharding,
  tables,
  transformer,
)
from tests.targets import goldens, reading_test
from tests.targets.sharding_test import mesh_of

FORMS = qarray.FORMS
# Latents and experts; sizes that share out over so many devices.
DEVICES = {'llama': 8, 'gemma3': 8, 'deepseek_v3': 2, 'gpt_oss': 2}


def made(name, form, **how):
  """From arrays that are there, whole."""
  config, arrays = goldens.arrays(name)
  return transformer.Transformer(config, quantised.arrays(arrays, form), **how)


def assert_same(one, other):
  one, other = (jax.tree_util.tree_leaves_with_path(x) for x in (one, other))
  assert [path for path, _ in one] == [path for path, _ in other]
  for (path, value), (_, want) in zip(one, other, strict=True):
    name = jax.tree_util.keystr(path)
    assert value.dtype == want.dtype, name
    assert value.sharding == want.sharding, name
    np.testing.assert_array_equal(value, want, err_msg=name)


def slow_but(*quick):
  return [
    name if name in quick else pytest.param(name, marks=pytest.mark.slow)
    for name in DEVICES
  ]


@pytest.mark.few(3)
@pytest.mark.parametrize('is_split', [False, True])
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', slow_but('llama', 'deepseek_v3'))
def test_the_arrays_are_those_made_of_whole_ones(name, form, is_split):
  reader = reading_test.reader(name)
  found = reading.read(
    reader, weights=form, cache_form='int8', is_split=is_split
  )
  assert quantised.form_of(found) == form
  assert found.cache_form == 'int8'
  assert_same(found, made(name, form, is_split=is_split, cache_form='int8'))
  # A drafter is for all forms of its target.
  plain = reading_test.reader(name)
  reading.read(plain)
  assert reader.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
  'is_split', [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('name', slow_but('llama'))
def test_on_a_mesh_they_lie_as_if_placed_later(name, is_split, monkeypatch):
  monkeypatch.setattr(quantising, 'PIECE_BYTES', 3000)
  mesh = mesh_of(DEVICES[name])
  found = reading.read(
    reading_test.reader(name), weights='int8', mesh=mesh, is_split=is_split
  )
  placed = sharding.place(made(name, 'int8', is_split=is_split), mesh)
  assert_same(found, placed)
  assert sharding.place(found, mesh) is found


@pytest.mark.few(1)
@pytest.mark.parametrize('mesh', [None, 8])
def test_host_memory_is_the_small_model_once(tmp_path, monkeypatch, mesh):
  monkeypatch.setattr(quantising, 'PIECE_BYTES', 1 << 16)
  monkeypatch.setattr(host_memory, 'threads', lambda: 2)
  config = reading_test.config_of(num_hidden_layers=4)
  source = reading_test.stored(tmp_path / 'model', config)
  mesh = mesh and mesh_of(mesh)

  def read():
    return reading_test.read_stored(
      source, config, dtype='bfloat16', weights='int8', mesh=mesh
    )

  read()  # What JAX keeps of its tracing is not counted.
  target, peak = reading_test.peak_of(read)
  leaves = jax.tree.leaves(target)
  size = sum(x.nbytes for x in leaves)
  # Embedding and head are read whole on one device, and kept.
  assert peak < size + 2 * 6 * quantising.PIECE_BYTES + 300_000
  whole = sum(x.size for x in leaves) * 4
  assert whole > 2.5 * size  # So that the bound is one.
  # The other way has the floats first.
  rules = tables.table(config, tables.Names())

  def later():
    arrays = tables.load(config, rules, source, ignored=[])
    return transformer.Transformer(config, quantised.arrays(arrays, 'int8'))

  assert reading_test.peak_of(later)[1] > whole


def test_every_number_is_read_once(tmp_path, monkeypatch):
  """Of rows that are shared out, too, whose scale is everyone's."""
  monkeypatch.setattr(quantising, 'PIECE_BYTES', 1 << 16)
  config = reading_test.config_of(num_hidden_layers=2)
  source = reading_test.Recording(
    reading_test.stored(tmp_path / 'model', config)
  )
  reading_test.read_stored(source, config, weights='fp8', mesh=mesh_of(8))
  for name, sizes in source.asked.items():
    assert sum(sizes) == np.prod(source.shape(name)), name
    if 'down' in name or 'gate' in name:
      assert max(sizes) * 4 <= quantising.PIECE_BYTES, name
      assert len(sizes) > 4, name


def test_pieces_are_small_and_whole_along_the_axis():
  box = (slice(2, 5), slice(0, 100), slice(40, 60))
  seen = np.zeros((5, 100, 60), int)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(quantising, 'PIECE_BYTES', 100 * 7 * 4)
    pieces = list(quantising._pieces(box, 1))
  for piece in pieces:
    assert piece[1] == slice(0, 100)
    seen[piece] += 1
    assert seen[piece].size <= 700
  assert np.all(seen[box] == 1) and seen.sum() == 3 * 100 * 20
  assert len(pieces) == 9
  # Rows that are too many are read all the same.
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(quantising, 'PIECE_BYTES', 8)
    assert len(list(quantising._pieces(box[1:], 0))) == 20


@pytest.mark.slow
def test_it_runs_in_bfloat16_over_a_cache_of_eight_bits():
  small = reading.read(
    reading_test.reader('llama'),
    dtype='bfloat16',
    weights='int8',
    cache_form='int8',
  )
  plain = goldens.load('llama')
  tokens = np.random.default_rng(0).integers(3, 250, (2, 12))
  got, want = (
    np.asarray(goldens.feed(target, goldens.empty_cache(target, 2), tokens)[0])
    for target in (small, plain)
  )
  assert got.dtype == np.float32
  off = np.linalg.norm(got - want) / np.linalg.norm(want)
  assert 1e-3 < off < 0.08


def test_another_form_is_refused():
  with pytest.raises(errors.UserError, match="weights='int4'"):
    reading.read(reading_test.reader('llama'), weights='int4')
