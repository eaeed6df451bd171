# SPDX-License-Identifier: MIT
"""What has to be set before jax starts, so that libtpu compiles only.

libtpu would look for chips and for the metadata server of a cloud machine; it
is told where it is and that the program itself runs on the CPU.
"""

import importlib.util
import pathlib

TOPOLOGIES = ('v5e:2x2', 'v5p:2x2x1', 'v6e:2x2', 'tpu7x:2x2x1')


def variables() -> dict[str, str]:
  """Environment variables of a process that compiles.

  Raises:
    FileNotFoundError: libtpu is not installed.
  """
  spec = importlib.util.find_spec('libtpu')
  if spec is None:
    raise FileNotFoundError(
      "libtpu is not installed: run 'make test-tpu-compile', which installs it"
    )
  return {
    'JAX_PLATFORMS': 'cpu',
    'TPU_LIBRARY_PATH': str(pathlib.Path(spec.origin).parent / 'libtpu.so'),
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    # No chip is held, so two processes may compile at the same time.
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_STDERR_LOG_LEVEL': '3',
    'TPU_MIN_LOG_LEVEL': '3',
  }
