# SPDX-License-Identifier: MIT
"""The arithmetic of slices and what they refuse, with numbers made up."""

import importlib.util
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import errors, slices

CHIP = slices.Chip(hbm_bytes=1000, bytes_per_s=10.0, flops_per_s=100.0)
MAKEFILE = pathlib.Path(__file__).parents[1] / 'Makefile'


class Lowered:
  """Fails to compile, saying why."""

  def __init__(self, why):
    self._why = why

  def compile(self):
    raise jax.errors.JaxRuntimeError(self._why)


def test_the_slower_of_the_two_bounds_a_program():
  moving = slices.Cost(flops=100.0, bytes=30.0)
  assert (moving.seconds(CHIP), moving.bound(CHIP)) == (3.0, 'bytes')
  computing = slices.Cost(flops=500.0, bytes=30.0)
  assert (computing.seconds(CHIP), computing.bound(CHIP)) == (5.0, 'FLOPs')


def test_a_loop_counts_as_often_as_it_turns():
  once, outside = (
    types.SimpleNamespace(cost_analysis=lambda n=n: {'flops': n})
    for n in (12.0, 2.0)
  )
  assert slices.whole_flops(once, outside, num_turns=4) == 42.0
  # Parts may cost more than the whole, a turn never less than 0.
  assert slices.whole_flops(outside, once, num_turns=4) == 12.0


def test_what_just_fits_is_not_refused():
  held = {'weights': 600, 'cache': 400}
  slices.check('a target', 'v5e:2x2', CHIP, held)
  with pytest.raises(errors.UserError) as refused:
    slices.check('a target', 'v5e:2x2', CHIP, held | {'cache': 10**9})
  text = str(refused.value)
  assert 'a target needs 1.00 GB on every device of v5e:2x2' in text
  assert 'cache 1.00 GB' in text
  assert '\n' not in text


def test_memory_that_the_compiler_misses_is_told_in_one_line():
  why = (
    'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of'
    ' 15.75G hbm. Exceeded hbm capacity by 4.75G.\n\nTotal hbm usage: ...'
  )
  with pytest.raises(errors.UserError) as refused:
    slices.compiled(Lowered(why), 'decode', 'v5e:2x2')
  text = str(refused.value)
  assert 'decode needs 22.01 GB on every device of v5e:2x2' in text
  assert 'which has 16.91 GB' in text
  assert '\n' not in text


@pytest.mark.parametrize(
  'why', ['RESOURCE_EXHAUSTED: space=vmem', 'INTERNAL: a defect']
)
def test_other_faults_of_the_compiler_stay_what_they_are(why):
  with pytest.raises(jax.errors.JaxRuntimeError, match=why):
    slices.compiled(Lowered(why), 'decode', 'v5e:2x2')


def test_results_that_take_an_arguments_place_are_no_more_memory():
  program = types.SimpleNamespace(
    memory_analysis=lambda: types.SimpleNamespace(
      argument_size_in_bytes=70,
      output_size_in_bytes=50,
      alias_size_in_bytes=45,
      temp_size_in_bytes=8,
      generated_code_size_in_bytes=2,
    ),
    cost_analysis=lambda: {'flops': 3.0},
  )
  assert slices.memory(program).total == 70 + 8 + 5 + 2
  assert slices.cost(program) == slices.Cost(flops=3.0, bytes=0.0)


def test_bytes_of_a_device_follow_how_arrays_lie():
  mesh = Mesh(np.array(jax.devices()[:4]), ('model',))

  def shape(*spec):
    return jax.ShapeDtypeStruct(
      (8, 4), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec))
    )

  held = [shape('model'), shape(), jax.ShapeDtypeStruct((3,), jnp.float32)]
  assert slices.bytes_on_device(held) == 16 + 64 + 12


@pytest.mark.parametrize(
  'name', ['v5e', 'v9:2x2', '4x4', 'v5e:4', 'v5e:4x4x4x4', 'v5e:axb', '']
)
def test_a_name_that_is_no_slice_is_refused(name):
  with pytest.raises(errors.UserError, match='v5e:4x4 or v5p:4x4x4'):
    slices.chip_of(name)


def test_generations_are_found_by_name():
  assert slices.chip_of('v5p:4x4x4') is slices.CHIPS['v5p']
  assert slices.chip_of('tpu7x:2x2x1') is slices.CHIPS['tpu7x']


def test_without_the_compiler_it_is_named_as_the_makefile_has_it(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match=f"pip install '{slices.LIBTPU}'"):
    slices.variables()
  assert f'LIBTPU := {slices.LIBTPU}\n' in MAKEFILE.read_text(encoding='utf-8')
