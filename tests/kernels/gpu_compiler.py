# SPDX-License-Identifier: MIT
"""Compiles block-tree attention for an H100 on a machine that has no GPU.

A program of its own, since loading the CUDA plugin changes a process:

  python -m tests.kernels.gpu_compiler FOLDER [CASE ...]

XLA, Mosaic and ptxas run; only the device is missing. FOLDER holds the plugin
and the assembler:

  pip install --no-deps --target FOLDER jax-cuda12-plugin==0.10.2 \
    jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12

Prints a JSON object for each case: what ptxas and XLA say of it.
"""

import functools
import json
import os
import pathlib
import re
import sys
import tempfile

# What XLA asks of a device when it compiles for an H100 (SXM).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 3 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def main(folder: str, *names: str):
  """Compiles the cases named, or all that the kernel takes."""
  root = pathlib.Path(folder, 'nvidia', 'cuda_nvcc')
  dump = tempfile.mkdtemp()
  os.environ.update(
    JAX_PLATFORMS='cpu',
    XLA_FLAGS=f'--xla_gpu_cuda_data_dir={root}',
    MOSAIC_GPU_DUMP_PTXAS='1',
    MOSAIC_GPU_DUMP_TO=dump,
  )
  sys.path.append(folder)
  import jax
  import jax.numpy as jnp
  from jax.experimental import topologies

  from jspec.kernels.block_tree_attention import cases, gpu
  from tests.kernels import attention_problem

  os.environ['MOSAIC_GPU_CUDA_ROOT'] = str(root)
  topology = topologies.get_topology_desc(
    'h100', 'cuda', target_config=H100, topology='1x1x1'
  )
  sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])

  def shape(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  for case in cases.CASES:
    if case.page_size == 24 or (names and case.name not in names):
      continue
    arrays, named = attention_problem.make(case, dtype=jnp.bfloat16)
    window = named.pop('window')
    run = functools.partial(
      gpu.block_tree_attention, window=window, scale=0.125
    )
    arrays, named = jax.tree.map(shape, (arrays, named))
    compiled = (
      jax.jit(run)
      .trace(*arrays, **named)
      .lower(lowering_platforms=('cuda',))
      .compile()
    )
    memory = compiled.memory_analysis()
    said = newest(dump, '*.ptxas')
    ptx = newest(dump, '*.ptx')
    report = {
      'case': case.name,
      'device': topology.devices[0].device_kind,
      'registers': int(re.search(r'Used (\d+) registers', said)[1]),
      'spill_bytes': int(re.search(r'(\d+) bytes spill stores', said)[1]),
      'wgmma': ptx.count('wgmma.mma_async'),
      'tma': ptx.count('cp.async.bulk.tensor'),
      'argument_bytes': memory.argument_size_in_bytes,
      'temp_bytes': memory.temp_size_in_bytes,
    }
    print(json.dumps(report))


def newest(folder: str, pattern: str) -> str:
  """Text of the file that was written last."""
  paths = pathlib.Path(folder).glob(pattern)
  return max(paths, key=lambda path: path.stat().st_mtime_ns).read_text()


if __name__ == '__main__':
  main(*sys.argv[1:])
