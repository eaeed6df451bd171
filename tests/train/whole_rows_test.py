# SPDX-License-Identifier: MIT
"""Where tokens are shared out no device holds a long row whole."""

import jax
import numpy as np
import pytest

from jspec import config as config_lib
from jspec.kernels.draft_block_attention import blockwise
from jspec.train import compile_only, mesh, settings
from tests.nn import meshes
from tests.train import tiny

LENGTH, WIDTH, HEADS, HEAD_WIDTH = 1024, 48, 8, 8
CASES = {
  'eagle3': dict(taps=(0, 1, 2), loss=dict(ttt_length=3, ce=0.3, chunk=2)),
  'mtp': dict(loss=dict(ttt_length=3, lk=0.7, on_policy=False, chunk=4)),
}


def largest(folder, name):
  """Shape of the largest array that a compiled step has on a device."""
  values = tiny.config(folder)
  values.drafter = dict(
    build=f'jspec.train.build_plain:{name}', options=CASES[name]
  )
  values.data.update(row_len=LENGTH, max_len=LENGTH, num_rows=1, mode='store')
  values.mesh = dict(preset='sp', sequence=8)
  config = config_lib.build(settings.TrainConfig, values)
  target = tiny.loaded(
    width=WIDTH, num_heads=HEADS, num_kv_heads=HEADS, max_len=LENGTH
  ).model.config
  devices = mesh.make(config.mesh, config.data, devices=jax.devices())
  step = compile_only.traceable_of(config, target, devices)
  compiled = step.function.trace(*step.arguments).lower().compile()
  return max(meshes.shapes(compiled.as_text()), key=np.prod)


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_a_step_holds_no_states_and_no_keys_of_a_row(name, tmp_path):
  """What it holds most of are scores, a tile of rows by a block of keys."""
  scores = blockwise.TILE_ROWS * blockwise.BLOCK_LEN
  assert scores < LENGTH * min(WIDTH, HEADS * HEAD_WIDTH)
  assert np.prod(largest(tmp_path, name)) <= scores
