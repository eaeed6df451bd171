# SPDX-License-Identifier: MIT
"""The shared part of a key changes with all that programs depend on."""

import os
import time

import jax
import pytest

import jspec
import jspec.kernels
from jspec.serve import program_key


def test_it_is_the_same_twice():
  assert program_key.environment() == program_key.environment()
  assert program_key.source() == program_key.source()
  assert jspec.__path__  # Else nothing would be hashed.
  names = program_key.sources()
  assert {'jspec/serve/program_key.py', 'jspec.kernels/__init__.py'} <= {*names}


@pytest.mark.parametrize('package', [jspec, jspec.kernels])
def test_every_source_file_counts(tmp_path, monkeypatch, package):
  monkeypatch.setattr(package, '__path__', [str(tmp_path)])
  path = tmp_path / 'deep' / 'module.py'
  path.parent.mkdir()
  found = []
  for text in ('x = 1', 'x = 2', 'x = 1'):
    path.write_text(text)
    found.append(program_key.source())
  path.rename(path.with_name('other.py'))
  found.append(program_key.source())
  assert found[0] == found[2]
  assert len(set(found)) == 3


def test_options_of_xla_count(monkeypatch):
  before = program_key.environment()
  monkeypatch.setenv('XLA_FLAGS', '--xla_cpu_enable_fast_math=true')
  assert program_key.environment() != before


@pytest.mark.parametrize(
  'name, option',
  [
    ('jax_default_matmul_precision', 'float32'),
    ('jax_threefry_partitionable', False),
    ('jax_disable_most_optimizations', None),
    ('jax_debug_nans', True),
  ],
)
def test_options_of_jax_count(name, option):
  before, kept = program_key.environment(), jax.config.values[name]
  try:
    jax.config.update(name, not kept if option is None else option)
    assert program_key.environment() != before
  finally:
    jax.config.update(name, kept)
  assert program_key.environment() == before


def test_where_programs_are_kept_does_not(tmp_path):
  before, kept = program_key.environment(), jax.config.jax_compilation_cache_dir
  try:
    jax.config.update('jax_compilation_cache_dir', str(tmp_path))
    assert program_key.environment() == before
  finally:
    jax.config.update('jax_compilation_cache_dir', kept)


def test_features_of_the_processor_count_and_its_clock_does_not(
  tmp_path, monkeypatch
):
  path = tmp_path / 'cpuinfo'
  monkeypatch.setattr(program_key, '_CPUINFO', path)
  core = 'model name\t: A CPU\ncpu MHz\t\t: {}\nflags\t\t: fpu {}\n\n'
  found = []
  for clock, flags in ((1, 'avx'), (2, 'avx'), (1, 'avx512f')):
    path.write_text(core.format(clock, flags) * 2)
    found.append(program_key.processor())
  assert found[0] == found[1] != found[2]
  assert 'avx512f' in found[2]
  path.unlink()
  assert program_key.processor()


def test_source_younger_than_the_process_is_seen(tmp_path, monkeypatch):
  monkeypatch.setattr(jspec, '__path__', [str(tmp_path)])
  monkeypatch.setattr(jspec.kernels, '__path__', [])
  path = tmp_path / 'module.py'
  path.write_text('')
  assert program_key.has_changed()
  an_hour_ago = time.time() - 3600 * 24 * 365
  os.utime(path, (an_hour_ago, an_hour_ago))
  assert not program_key.has_changed()
