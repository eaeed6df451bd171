# SPDX-License-Identifier: MIT
"""What a compiled program depends on, besides what it is compiled for.

Tracing would find out, and takes most of a start from disk. So everything that
tracing could look at is hashed instead: every source file of jspec, versions,
devices, the processor, and the options of JAX and XLA. Values that a program
monkeypatches into jspec's modules are not seen.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import platform
import sys
import time

import jax

import jspec
import jspec.kernels

_PACKAGES = ('jax', 'jaxlib', 'flax', 'numpy', 'ml_dtypes')
_CPUINFO = pathlib.Path('/proc/cpuinfo')
_STAT = pathlib.Path('/proc/self/stat')
_IMPORTED = time.time()


def environment() -> str:
  """What programs of one source depend on, the same for all of this process."""
  device = jax.devices()[0]
  facts = {
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in _PACKAGES},
    'backend': f'{device.platform} {device.client.platform_version}',
    'kinds': [found.device_kind for found in jax.devices()],
    'cores': (os.cpu_count(), len(os.sched_getaffinity(0)))
    if hasattr(os, 'sched_getaffinity')
    else os.cpu_count(),
    'processor': processor(),
    'flags': {
      name: text
      for name, text in sorted(os.environ.items())
      if name.startswith(('XLA_', 'TF_XLA_', 'LIBTPU_', 'TPU_', 'NVIDIA_'))
    },
    'options': {
      name: str(option)
      for name, option in sorted(jax.config.values.items())
      if 'cache' not in name
    },
  }
  return repr(facts)


def sources() -> dict[str, pathlib.Path]:
  """Every source file of jspec, by package and name in it."""
  return {
    f'{package.__name__}/{path.relative_to(folder)}': path
    for package in (jspec, jspec.kernels)
    for folder in package.__path__
    for path in sorted(pathlib.Path(folder).rglob('*.py'))
  }


def source() -> str:
  """A digest of every source file of jspec."""
  digest = hashlib.sha256()
  for name, path in sources().items():
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    digest.update(f'{name} {content}\n'.encode())
  return digest.hexdigest()


def processor() -> str:
  """The processor by model and features, since programs use what it has."""
  try:
    text = _CPUINFO.read_text(encoding='utf-8')
  except OSError:
    return f'{platform.machine()} {platform.processor()}'
  names = ('vendor_id', 'cpu family', 'model', 'model name', 'stepping')
  names += ('flags', 'Features', 'CPU implementer', 'CPU part', 'CPU variant')
  lines = text.split('\n\n')[0].splitlines()
  kept = [line for line in lines if line.split('\t')[0].strip(' :') in names]
  return f'{platform.machine()} {" ".join(kept)}'


def has_changed() -> bool:
  """Whether a source file is younger than this process, which read it before.

  A program of such a process need not be what the files say.
  """
  times = (path.stat().st_mtime for path in sources().values())
  return max(times) >= _began()


def _began():
  """When this process began, in seconds since the epoch."""
  try:
    ticks = int(_STAT.read_text(encoding='utf-8').rsplit(')')[-1].split()[19])
  except (OSError, ValueError, IndexError):
    return _IMPORTED
  up = time.clock_gettime(time.CLOCK_BOOTTIME)
  return time.time() - up + ticks / os.sysconf('SC_CLK_TCK')


def of(*texts: str) -> str:
  """A short name for a key."""
  digest = hashlib.sha256('\n'.join((*texts, sys.platform)).encode())
  return digest.hexdigest()[:32]
