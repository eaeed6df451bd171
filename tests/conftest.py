# SPDX-License-Identifier: MIT
"""What every test runs under.

Eight fake CPU devices, shape annotations that are executed,
and the random seed printed with a failure. Tests for an accelerator are
skipped where there is none; JSPEC_TEST_PLATFORM=gpu (or tpu) runs the
suite on one.
"""

import collections
import gc
import importlib.metadata
import os
import random
import threading
import time

PLATFORM = os.environ.get('JSPEC_TEST_PLATFORM', 'cpu')
NUM_FAKE_DEVICES = 8

os.environ['JAX_PLATFORMS'] = {'gpu': 'cuda'}.get(PLATFORM, PLATFORM)
# Most of a test is compiling, and LLVM takes most of that; the passes of XLA
# stay. JAX_DISABLE_MOST_OPTIMIZATIONS=0 tests the code that users run.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
# No test reads what another run compiled.
os.environ['JAX_COMPILATION_CACHE_DIR'] = ''
# What halves the time XLA:CPU takes to compile, by the jaxlib that knows it: an
# unknown flag ends the process.
_COMPILE_FAST = {
  '0.10': (
    '--xla_cpu_use_fusion_emitters=false',
    '--xla_cpu_parallel_codegen_split_count=1',
    '--xla_cpu_prefer_vector_width=128',
  )
}
_JAXLIB = '.'.join(importlib.metadata.version('jaxlib').split('.')[:2])
# Read when the CPU client starts, so this must come before jax does.
os.environ['XLA_FLAGS'] = ' '.join(
  (
    os.environ.get('XLA_FLAGS', ''),
    f'--xla_force_host_platform_device_count={NUM_FAKE_DEVICES}',
    *_COMPILE_FAST.get(_JAXLIB, ()),
  )
)

import jaxtyping  # noqa: E402

# Instruments every module of jspec imported after this line.
jaxtyping.install_import_hook('jspec', 'beartype.beartype')

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from jspec import supervised  # noqa: E402
from tests import deadline, few  # noqa: E402

SEED = int(os.environ.get('JSPEC_TEST_SEED', '0'))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
  """Skips what has no time left, before its fixtures take some."""
  reason = deadline.why_not(item.get_closest_marker('slow') is not None)
  if reason is not None:
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def fixed_seed():
  """Seeds the global generators, for tests that do not bring their own."""
  random.seed(SEED)
  np.random.seed(SEED)


def pytest_collection_finish():
  """Spares every later collection what lives as long as the process.

  Thousands of tests and all modules: looking through them takes a second.
  """
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True, scope='module')
def no_old_programs():
  """Drops a file's compiled programs.

  Every one maps memory; a process may hold 65,530 maps on Linux, and one file
  can make thousands.
  """
  yield
  jax.clear_caches()
  gc.collect()


def tasks_running():
  """Names of the threads that owners have started and that have not ended."""
  targets = (
    (t.name, getattr(t, '_target', None)) for t in threading.enumerate()
  )
  return [
    name
    for name, target in targets
    if isinstance(getattr(target, '__self__', None), supervised.Task)
  ]


@pytest.fixture(autouse=True, scope='module')
def no_tasks_left():
  """Fails a file that leaves a background task running for the next one."""
  yield
  # One that was told to end may still be on its way.
  deadline = time.monotonic() + 5
  while tasks_running() and time.monotonic() < deadline:
    time.sleep(0.01)
  assert tasks_running() == []


@pytest.fixture(scope='module')
def optimised():
  """Compiles as for users: for files that run longer than they compile."""
  before = jax.config.values['jax_disable_most_optimizations']
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  outcome = yield
  report = outcome.get_result()
  if report.when == 'call' and report.failed:
    report.sections.append(
      ('seed', f'JSPEC_TEST_SEED={SEED} JSPEC_TEST_PLATFORM={PLATFORM}')
    )


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items):
  with_few = collections.defaultdict(list)
  for item in items:
    mark = item.get_closest_marker('few')
    if mark is not None and item.get_closest_marker('slow') is None:
      name = item.nodeid.partition('[')[0]
      with_few[name, *mark.args].append(item)
  for (_, num), cases in with_few.items():
    for item in few.others(cases, num):
      item.add_marker(pytest.mark.slow)
  for item in items:
    for platform in ('gpu', 'tpu'):
      if item.get_closest_marker(platform) and PLATFORM != platform:
        item.add_marker(
          pytest.mark.skip(reason=f'set JSPEC_TEST_PLATFORM={platform}')
        )
