# SPDX-License-Identifier: MIT
"""A step by shapes alone is the step of the run, and says what it needs."""

import dataclasses

import jax
import pytest

from jspec import config as config_lib
from jspec import errors, flops, slices
from jspec.train import compile_only, mesh, settings
from tests.train import tiny

CHIP = slices.Chip(hbm_bytes=10**9, bytes_per_s=1e9, flops_per_s=1e9)


@pytest.fixture
def config(tmp_path):
  def make(**changes):
    """Of a run; keys of `changes` have `__` for a dot."""
    values = tiny.config(tmp_path)
    with values.unlocked():
      values.data.mode = 'online'
      for name, value in changes.items():
        values.update_from_flattened_dict({name.replace('__', '.'): value})
    return config_lib.build(settings.TrainConfig, values)

  return make


@pytest.fixture
def traceable(config):
  def make(num_devices=8, **changes):
    made = config(**changes)
    devices = jax.devices()[:num_devices]
    over = mesh.make(made.mesh, made.data, devices=devices)
    return compile_only.traceable_of(made, tiny.loaded().model.config, over)

  return make


@pytest.fixture
def compiled(config, monkeypatch):
  """Compiles for CPU devices that stand for those of a slice."""

  def run(chip=CHIP, **changes):
    there = slices.Slice('v5e:2x4', chip, tuple(jax.devices()))
    monkeypatch.setattr(slices, 'find', lambda name: there)
    target = tiny.loaded().model.config
    return compile_only.run(config(**changes), target, 'v5e:2x4')

  return run


def test_what_a_device_holds_is_told_apart(traceable):
  step = traceable()
  held = compile_only.held_bytes(step)
  # AdamW keeps two numbers for every parameter, and counts.
  assert held['drafter'] == 4 * step.num_params
  assert 0 < held['optimiser'] - 2 * held['drafter'] < 100
  # Four arrays of a row for every device.
  assert held['batch'] == 32 * (3 * 4 + 1)


def test_shared_out_state_is_smaller(traceable):
  whole = compile_only.held_bytes(traceable())
  spread = compile_only.held_bytes(traceable(mesh__preset='fsdp'))
  assert spread['target'] < whole['target'] / 4
  assert spread['optimiser'] < whole['optimiser'] / 4
  assert spread['batch'] == whole['batch']


def test_stored_taps_need_no_target(traceable):
  held = compile_only.held_bytes(traceable(data__mode='store'))
  assert held['target'] == 0
  # Two layers of 16 numbers a token, as bfloat16.
  assert held['batch'] == 32 * (3 * 4 + 1 + 2 * 16 * 2)


def test_flops_follow_the_tokens(traceable):
  def counted(**changes):
    step = traceable(num_devices=1, **changes)
    return flops.of_jaxpr(step.function.trace(*step.arguments).jaxpr.jaxpr)

  assert counted(data__num_rows=16) == pytest.approx(2 * counted(), rel=0.02)


def test_a_slice_that_is_too_small_is_refused_before_it_compiles(
  compiled, monkeypatch
):
  monkeypatch.setattr(slices, 'compiled', lambda *args: pytest.fail('compiles'))
  small = dataclasses.replace(CHIP, hbm_bytes=1000)
  with pytest.raises(errors.UserError) as refused:
    compiled(small)
  text = str(refused.value)
  assert 'the train step of jspec.train.build:dflash for tiny needs' in text
  assert 'on every device of v5e:2x4' in text
  assert 'optimiser' in text


def test_rows_that_do_not_share_out_are_refused(compiled):
  with pytest.raises(errors.UserError, match='num_rows'):
    compiled(data__num_rows=3)


@pytest.mark.slow
def test_a_compiled_step_is_told_in_five_lines(compiled):
  found = compiled(mesh__preset='fsdp')
  assert found['total_bytes'] > sum(found['held_bytes'].values())
  assert found['bound'] in ('FLOPs', 'bytes')
  lines = compile_only.table(found).splitlines()
  assert len(lines) == 5
  assert lines[1] == 'v5e:2x4: 8 devices of 1.00 GB (fsdp 8)'
