# SPDX-License-Identifier: MIT
"""One training step of a tiny run, on one device or spread over several."""

import functools
import types

import jax
import numpy as np
import optax
from flax import nnx

from jspec.nn import moe
from jspec.train import build, build_plain, mesh, placing, programs, step
from tests.train import tiny

ROWS, LENGTH = 8, 24
EVEN = dict(num_heads=4, num_kv_heads=2)
# A layer of a gated MLP among layers of experts.
SPARSE = dict(
  experts=moe.MoeConfig(
    width=16,
    num_experts=8,
    top_k=2,
    ff_width=12,
    shared_ff_width=8,
    score='sigmoid',
    has_bias=True,
  ),
  dense_layers=(1,),
)
# Where all tokens are anchors nothing depends on what portions draw.
BLOCK = dict(
  num_layers=2, taps=(0, 2), mask_token_id=3, block_size=4, num_draft_tokens=3
)
CASES = {
  'dfly': (
    build.dfly,
    dict(
      **BLOCK,
      loss=dict(
        num_anchors=LENGTH, mix=dict(weights='dpace', ce=1.0, e2e_tv=0.5)
      ),
    ),
  ),
  'eagle3': (
    build_plain.eagle3,
    dict(taps=(0, 1, 2), loss=dict(ttt_length=2, ce=0.3)),
  ),
  'mtp': (
    build_plain.mtp,
    dict(loss=dict(ttt_length=2, lk=0.7, e2e_direct=0.2, on_policy=False)),
  ),
  'mtp_moe': (
    build_plain.mtp,
    dict(
      loss=dict(ttt_length=2, lk=0.7, on_policy=False),
      num_experts=8,
      experts_per_token=2,
      expert_ff_width=12,
      num_shared_experts=1,
    ),
  ),
}


def rows():
  """Answers of unequal length in one or two documents; row 5 has none."""
  rng = np.random.default_rng(0)
  lengths = np.array([24, 3, 7, 12, 5, 0, 18, 9])
  at = np.broadcast_to(np.arange(LENGTH), (ROWS, LENGTH))
  ends = np.maximum(lengths, 2)[:, None]
  second = (at >= 10) & (lengths > 14)[:, None]
  return {
    'tokens': rng.integers(4, 60, (ROWS, LENGTH)).astype(np.int32),
    'positions': np.where(second, at - 10, at).astype(np.int32),
    'segments': ((at < ends) * (1 + second)).astype(np.int32),
    'is_answer': ((at >= 2) & (at < lengths[:, None])).astype(np.int32),
  }


@functools.cache
def drafter(name, is_sparse=False):
  """The target, with all that belongs to it, and a fresh drafter for it."""
  make, options = CASES[name]
  loaded = tiny.loaded(**EVEN, **(SPARSE if is_sparse else {}))
  return loaded, make(loaded, options, None, jax.random.key(0))


def mesh_of(num_devices=8, num_portions=1, **values):
  """A mesh for these rows."""
  return mesh.make(
    mesh.MeshConfig(**values),
    types.SimpleNamespace(num_rows=ROWS, row_len=LENGTH),
    num_portions,
    jax.devices()[:num_devices],
  )


def one_step(
  name,
  devices,
  *,
  is_sparse=False,
  optimizer=None,
  batch=None,
  num_micro_batches=1,
  compute_dtype='float32',
  **settings,
):
  """State before and after a step (of gradient descent), and metrics.

  The state before is on the host, as the step takes its arrays.
  """
  loaded, made = drafter(name, is_sparse)
  parts = step.split(made)
  optimizer = optimizer or optax.sgd(1.0)
  model = placing.target(loaded.model, devices, compute_dtype)
  together = placing.together(model, devices)
  graphdef, target = nnx.split(model)
  state = placing.state(
    parts, optimizer, jax.random.key(1), devices, has_average=False
  )
  # Not of the state: a view of its buffers would keep them from donation.
  before = jax.tree.map(np.asarray, parts.params)
  taps_of = step.online_taps(
    graphdef, tuple(made.taps), needs_last=made.needs_last
  )
  run = programs.build(
    parts,
    taps_of,
    None,
    optimizer,
    state,
    devices,
    together=together,
    num_micro_batches=num_micro_batches,
    compute_dtype=compute_dtype,
    **settings,
  ).train
  after, metrics = run(
    state,
    placing.tree(parts.frozen, devices),
    target,
    placing.batch(batch or rows(), devices),
  )
  return before, state, after, jax.device_get(metrics)
