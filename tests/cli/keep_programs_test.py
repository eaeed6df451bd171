# SPDX-License-Identifier: MIT
"""Compiled programs are kept between starts, where the user wants them."""

import os
import subprocess
import sys

_PROGRAM = """
from jspec.cli import options
options.keep_programs()
import jax, jax.numpy as jnp
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
hits = []
jax.monitoring.register_event_listener(
  lambda name, **_: hits.append(name.endswith('cache_hits'))
)
first = jnp.ones(3)  # An array before anything else must not turn it off.
jax.jit(lambda x: jnp.sin(x) * 2)(first).block_until_ready()
print(sum(hits))
"""


def start(**environment):
  env = {k: v for k, v in os.environ.items() if 'COMPILATION' not in k}
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    env=env | environment,
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


def test_a_second_start_finds_the_programs_of_the_first(tmp_path):
  home = {'XDG_CACHE_HOME': str(tmp_path)}
  assert start(**home) == 0
  assert any((tmp_path / 'jspec' / 'programs').iterdir())
  assert start(**home) >= 1


def test_a_place_of_the_users_own_wins(tmp_path):
  own = tmp_path / 'own'
  start(XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(own))
  assert any(own.iterdir())
  assert not (tmp_path / 'jspec').exists()
