# SPDX-License-Identifier: MIT
"""Presets: sizes of axes, and what does not share out."""

import types

import pytest

from jspec import errors
from jspec.train import mesh


def data(num_rows=8, row_len=32):
  return types.SimpleNamespace(num_rows=num_rows, row_len=row_len)


@pytest.mark.parametrize(
  'values, num_devices, expected',
  [
    (dict(), 8, dict(data=8)),
    (dict(preset='fsdp'), 8, dict(fsdp=8)),
    (dict(preset='fsdp', data=2), 8, dict(data=2, fsdp=4)),
    (dict(preset='fsdp_tp'), 8, dict(fsdp=4, model=2)),
    (dict(preset='fsdp_tp', model=4), 8, dict(fsdp=2, model=4)),
    (dict(preset='fsdp_tp', fsdp=8), 8, dict(fsdp=8)),
    (dict(preset='fsdp_tp'), 1, dict()),
    (dict(preset='sp'), 8, dict(sequence=2, fsdp=4)),
    (dict(preset='sp', sequence=8), 8, dict(sequence=8)),
    (dict(preset='ep'), 8, dict(expert=8)),
    (dict(preset='ep', expert=2), 8, dict(fsdp=4, expert=2)),
    (dict(preset='ep', expert=2, fsdp=1), 8, dict(data=4, expert=2)),
  ],
)
def test_axes_without_a_size_take_what_is_left(values, num_devices, expected):
  found = mesh.sizes(mesh.MeshConfig(**values), num_devices)
  assert found == {**dict.fromkeys(mesh.AXES, 1), **expected}


@pytest.mark.parametrize(
  'values, message',
  [
    (dict(preset='zero'), 'mesh.preset is zero: choose one of dp'),
    (dict(model=2), 'mesh.model is 2, but preset dp has the axes data'),
    (dict(preset='fsdp', fsdp=0), 'mesh.fsdp is 0'),
  ],
)
def test_presets_and_axes_that_are_not_there_are_refused(values, message):
  with pytest.raises(errors.UserError, match=message):
    mesh.MeshConfig(**values)


@pytest.mark.parametrize(
  'values, of, message',
  [
    (dict(data=3), data(), 'dp with data=3 does not fill 8 devices'),
    (
      dict(preset='fsdp_tp', fsdp=3, model=2),
      data(),
      'fsdp_tp with model=2, fsdp=3 does not fill 8',
    ),
    (dict(), data(num_rows=4), '4 rows go through at once .* 8 devices'),
    (dict(preset='fsdp_tp'), data(num_rows=6), '6 rows .* 4 devices'),
    (
      dict(preset='sp', sequence=8),
      data(num_rows=1, row_len=30),
      'data.row_len is 30 but mesh.sequence is 8',
    ),
  ],
)
def test_what_does_not_share_out_is_refused(values, of, message):
  with pytest.raises(errors.UserError, match=message):
    mesh.make(mesh.MeshConfig(**values), of)


def test_rows_of_portions_must_share_out():
  mesh.make(mesh.MeshConfig(), data(16), 2)
  with pytest.raises(errors.UserError, match='4 rows go through at once'):
    mesh.make(mesh.MeshConfig(), data(8), 2)
  with pytest.raises(errors.UserError, match='num_micro_batches is 3'):
    mesh.make(mesh.MeshConfig(), data(8), 3)


@pytest.mark.parametrize(
  'owners, shares',
  [
    ([[0], [0], [1], [1], [2], [2]], [(0, 3), (1, 3), (2, 3)]),
    ([[0, 0], [0, 0], [1, 1], [1, 1]], [(0, 2), (1, 2)]),
    # The devices of a row belong to two processes: both read it.
    ([[0, 1], [2, 3]], [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ([[0, 0, 1, 1]], [(0, 1), (0, 1)]),
  ],
)
def test_processes_read_the_rows_of_their_devices(owners, shares):
  for process, expected in enumerate(shares):
    assert mesh.share(owners, process) == expected


@pytest.mark.parametrize('owners', [[[0], [1], [0], [1]], [[0], [1], [1], [2]]])
def test_rows_that_lie_scattered_are_refused(owners):
  with pytest.raises(errors.UserError, match='whole runs of rows'):
    for process in (0, 1):
      mesh.share(owners, process)


def test_one_process_reads_all_rows():
  made = mesh.make(mesh.MeshConfig(preset='fsdp_tp'), data())
  assert mesh.share_of_rows(made) == (0, 1)
