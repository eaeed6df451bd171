# SPDX-License-Identifier: MIT
"""`jspec bench fit` with the compiler for TPUs.

Only where JSPEC_TPU_COMPILE=1 says that it is installed (`make
test-tpu-compile`).
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
  os.environ.get('JSPEC_TPU_COMPILE') != '1',
  reason='needs libtpu: make test-tpu-compile',
)


def fit(*words):
  # Without what tests tell JAX about CPUs.
  ours = ('JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')
  env = {name: x for name, x in os.environ.items() if name not in ours}
  return subprocess.run(
    [sys.executable, '-m', 'jspec.bench', 'fit', *words],
    env=env,
    capture_output=True,
    text=True,
    check=False,
  )


def test_a_target_on_a_slice_that_holds_it(tmp_path):
  out = tmp_path / 'out.json'
  words = '--target qwen3_8b --topology v5e:2x2 --rows 2 --context 1024'
  done = fit(*words.split(), '--json', str(out))
  assert done.returncode == 0, done.stderr
  found = json.loads(out.read_text(encoding='utf-8'))
  decode, verify = (found['programs'][name] for name in ('decode', 'verify'))
  # 8.19 G weights of two bytes on four devices, but for norms and embedding.
  assert found['held_bytes']['weights'] == pytest.approx(4.1e9, rel=0.01)
  assert decode['total_bytes'] < found['hbm_bytes']
  assert decode['temporary_bytes'] < 0.1e9
  # Two FLOPs a weight and token, but for the embedding.
  assert verify['flops'] == pytest.approx(2 * 16 * 7.57e9 / 4, rel=0.1)


def test_a_target_on_a_slice_that_is_too_small():
  done = fit('--target', 'hy3_295b_a21b', '--topology', 'v5e:2x2')
  assert done.returncode == 2
  assert done.stderr.startswith('error: hy3_295b_a21b needs ')
  assert 'on every device of v5e:2x2, which has 16.91 GB' in done.stderr
  assert done.stderr.count('\n') == 1
