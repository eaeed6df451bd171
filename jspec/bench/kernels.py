# SPDX-License-Identifier: MIT
"""What `jspec bench kernels` measures: every operation against its floor.

The floor of a problem is the longer of two times: its bytes at the rate this
machine reads memory, its FLOPs at the rate of a large matmul. Both rates are
measured first. Comparisons take turns, and carry the bound they should keep.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec.bench import attention, timing, training
from jspec.kernels.block_tree_attention import cases
from jspec.kernels.kv_commit import api as kv_commit
from jspec.nn import tiles

# Comparisons: name, what is measured, what with, and the most their ratio may
# be. Names are those of `cases.TIMED`, `/reference` is dense attention.
COMPARISONS = (
  ('8 nodes: dense at 256', '8_nodes_256', '8_nodes_256/reference', 1.0),
  ('8 nodes: dense at 2048', '8_nodes_2048', '8_nodes_2048/reference', 1.0),
  ('8 nodes: dense at 8192', '8_nodes_8192', '8_nodes_8192/reference', 1.0),
  ('capacity 8192 : 512', '1_node_256_of_8192', '1_node_256_of_512', 1.15),
  ('one long row : its pages', '64_rows_one_long', '64_rows_equal', 1.3),
  ('one prefix : five', 'cascade_shared', 'cascade_expanded', 1.0),
)
TILED_ROWS = (1, 2, 4, 8, 12, 16)


def run(
  *,
  repeats: int,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Times all problems; see the module docstring.

  Args:
    repeats: timed repetitions of each figure.
    on_progress: called with (figures done, figures in all).
  """
  rate = timing.read_rate([np.ones((4096, 16384), np.float32)])
  flops = timing.flop_rate()
  timed = [*cases.TIMED]
  total = len(timed) + 3 + len(COMPARISONS)
  done = 0

  def tick():
    nonlocal done
    done += 1
    if on_progress is not None:
      on_progress(done, total)

  problems, entries = {}, []
  for case in timed:
    problem = attention.make(case)
    problems[case.name] = problem
    seconds = timing.seconds(problem.run, repeats)
    entries.append(
      _entry(
        f'attention {case.name}',
        seconds,
        problem.num_bytes,
        problem.num_flops,
        rate,
        flops,
      )
    )
    tick()
  entries.append(_commit(repeats, rate, flops))
  tick()
  matmuls = _tiles(repeats)
  tick()
  trained = _training(max(3, repeats // 4))
  tick()
  compared = []
  for name, ours, theirs, bound in COMPARISONS:
    compared.append(_compare(name, problems, ours, theirs, bound, repeats))
    tick()
  return {
    'device': jax.devices()[0].device_kind,
    'read_gb_per_s': rate / 1e9,
    'gflop_per_s': flops / 1e9,
    'operations': entries,
    'comparisons': compared,
    'tiled_matmul': matmuls,
    'training': trained,
  }


def table(result: dict[str, Any]) -> str:
  """Renders the result for a terminal."""
  lines = [
    f'{result["device"]}: reads {result["read_gb_per_s"]:.1f} GB/s, multiplies'
    f' {result["gflop_per_s"]:.0f} GFLOP/s',
    f'{"":34}{"ms":>9}{"MB":>9}{"MFLOP":>9}{"floor ms":>10}{"ratio":>8}',
  ]
  for e in result['operations']:
    lines.append(
      f'{e["name"]:34}{e["ms"]:9.2f}{e["bytes"] / 1e6:9.1f}'
      f'{e["flops"] / 1e6:9.0f}{e["floor_ms"]:10.2f}{e["ratio"]:8.2f}'
    )
  lines.append(f'\n{"in turns":34}{"ratio":>9}{"bound":>9}')
  for c in result['comparisons']:
    mark = '' if c['ratio'] <= c['bound'] else '  over'
    lines.append(f'{c["name"]:34}{c["ratio"]:9.2f}{c["bound"]:9.2f}{mark}')
  lines.append(f'\n{"matmul of rows, ms":34}{"plain":>9}{"tiled":>9}')
  for m in result['tiled_matmul']:
    lines.append(
      f'{m["rows"]:>4} rows{"":25}{m["plain_ms"]:9.2f}{m["tiled_ms"]:9.2f}'
    )
  lines.append(f'\n{"value and gradient, in turns":34}{"ms":>9}{"MB":>9}')
  for t in result['training']:
    lines.append(f'{t["name"]:34}{t["ms"]:9.1f}{t["scratch_bytes"] / 1e6:9.1f}')
  return '\n'.join(lines)


def _entry(name, seconds, num_bytes, num_flops, rate, flops):
  floor = max(num_bytes / rate, num_flops / flops)
  return dict(
    name=name,
    ms=seconds * 1e3,
    bytes=num_bytes,
    flops=num_flops,
    floor_ms=floor * 1e3,
    ratio=seconds / floor,
  )


def _compare(name, problems, ours, theirs, bound, repeats):
  """The ratio of two problems, for each byte where their pages differ."""
  case, _, implementation = theirs.partition('/')
  mine, other = problems[ours], problems[case]
  seconds = timing.in_turns(
    {
      'ours': mine.run,
      'theirs': functools.partial(other.run, implementation or None),
    },
    repeats,
  )
  ratio = seconds['ours'] / seconds['theirs']
  if ours == '64_rows_one_long':
    ratio *= other.num_bytes / mine.num_bytes
  return dict(name=name, ratio=ratio, bound=bound)


def _training(repeats):
  """Milliseconds and scratch memory of the operations of training."""
  programs = training.programs()
  seconds = timing.in_turns(
    {name: run for name, (run, _) in programs.items()}, repeats
  )
  return [
    dict(name=name, ms=seconds[name] * 1e3, scratch_bytes=scratch)
    for name, (_, scratch) in programs.items()
  ]


def _commit(repeats, rate, flops):
  """Appends 4 rows to each of 16, across a page border, in place."""
  layers, rows, nodes, heads, width, size = 30, 16, 8, 3, 64, 32
  pool = jnp.zeros((layers, rows * 16, heads, size, width))
  nodes_kv = jnp.ones((layers, rows, nodes, heads, width))
  page_ids = jnp.arange(rows * 16, dtype=jnp.int32).reshape(rows, 16)
  path = jnp.tile(jnp.arange(nodes, dtype=jnp.int32), (rows, 1))
  counts = jnp.full((rows,), 4, jnp.int32)
  lengths = jnp.full((rows,), 254, jnp.int32)
  write = jax.jit(kv_commit.kv_commit, donate_argnums=(0, 1))
  pools = (pool, pool + 1)

  def once():
    nonlocal pools
    *pools, dropped = write(
      *pools, nodes_kv, nodes_kv, path, page_ids, lengths, counts
    )
    return dropped

  num_bytes = 2 * 2 * layers * rows * 4 * heads * width * 4
  seconds = timing.seconds(once, repeats)
  return _entry(
    'kv_commit 16 rows, 4 tokens', seconds, num_bytes, 0, rate, flops
  )


def _tiles(repeats):
  """One layer's matmuls of SmolLM2 and as many more as leave the caches."""
  shapes = [(576, 960), (576, 576), (576, 3072), (1536, 576)] * 8
  rng = np.random.default_rng(0)
  plain = [jnp.asarray(rng.standard_normal(s, np.float32)) for s in shapes]
  forms = {'plain': plain, 'tiled': [tiles.cut(w) for w in plain]}

  @jax.jit
  def multiply(x, weights):
    for weight in weights:
      depth = weight.shape[-2]
      wide = jnp.tile(x, (1, -(-depth // x.shape[1])))[:, :depth]
      x = x + tiles.matmul(wide, weight)[:, :576] * 1e-3
    return x

  found = []
  for rows in TILED_ROWS:
    x = jnp.ones((rows, 576))
    seconds = timing.in_turns(
      {
        name: functools.partial(multiply, x, weights)
        for name, weights in forms.items()
      },
      repeats,
    )
    found.append(
      dict(
        rows=rows,
        plain_ms=seconds['plain'] * 1e3,
        tiled_ms=seconds['tiled'] * 1e3,
      )
    )
  return found
