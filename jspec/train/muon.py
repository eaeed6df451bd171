# SPDX-License-Identifier: MIT
"""Muon for the matrices of a drafter, another optimiser for the rest.

Muon steps along the momentum with its singular values set to about one (Jordan
et al. 2024), scaled so that the root mean square of the entries is that of an
AdamW step (arXiv 2502.16982, section 2.2). What it does so depends on what
counts as one matrix, and weights lie here stacked and fused:

  down             [L, F, D]       L matrices, [in, out] each
  experts_down     [L, E, F, D]    L x E matrices: experts are not coupled
  kv, gate_up      [.., D, 2 F]    two matrices each: their columns are parted
  qkv              [.., D, (N + 2 K) H]    three, of widths N H, K H, K H

Parts of a fused weight are orthogonalised one by one, as if they were stored
apart: fusing them is for speed, and must not change what is learnt. N H is the
height of `out` beside `qkv`.
"""

import re

import jax.numpy as jnp
import optax

from jspec import errors
from jspec.typing import Array

# Fused in two equal halves; `qkv` is parted by the width of its queries.
_HALVES = re.compile(r'(^|\.)(\w+_)?(kv|gate_up)$')
_QKV = re.compile(r'(^|\.)qkv$')


def is_matrix(path: str, value: Array, others: str) -> bool:
  """Whether Muon is for this parameter.

  Args:
    path: of the parameter.
    value: the parameter; only the last two axes make matrices.
    others: regex of paths that are not: tables, heads, routers.
  """
  return (
    value.ndim > 1
    and min(value.shape[-2:]) > 1
    and re.search(others, path) is None
  )


def ends(path: str, params: dict[str, Array]) -> list[int]:
  """Columns at which a weight parts into matrices; empty if it is one."""
  num_columns = params[path].shape[-1]
  if _HALVES.search(path):
    return [num_columns // 2]
  if not _QKV.search(path):
    return []
  beside = path.removesuffix('qkv') + 'out'
  if beside not in params:
    raise errors.UserError(
      f'optim.name=muon: {path} has no {beside} beside it that says how wide'
      ' its queries are: add it to optim.others'
    )
  queries = params[beside].shape[-2]
  return [queries, (queries + num_columns) // 2]


def optimizer(
  matrices: optax.GradientTransformation,
  rest: optax.GradientTransformation,
  others: str,
) -> optax.GradientTransformation:
  """Joins two optimisers of flat dicts, path to array.

  Args:
    matrices: sees `PATH.0`, `PATH.1`, .. for the parts of a fused weight, and
      `PATH` for any other, in one dict.
    rest: sees what is no matrix.
    others: see `is_matrix`.
  """

  def split(tree, cuts):
    apart, left = {}, {}
    for path, value in tree.items():
      if path not in cuts:
        left[path] = value
      elif not cuts[path]:
        apart[path] = value
      else:
        for number, part in enumerate(jnp.split(value, cuts[path], axis=-1)):
          apart[f'{path}.{number}'] = part
    return apart, left

  def join(apart, left, cuts):
    joined = dict(left)
    for path, at in cuts.items():
      parts = [apart[f'{path}.{n}'] for n in range(len(at) + 1)] if at else []
      joined[path] = jnp.concatenate(parts, -1) if at else apart[path]
    return joined

  def cuts_of(params):
    return {
      path: ends(path, params)
      for path, value in params.items()
      if is_matrix(path, value, others)
    }

  def init(params):
    apart, left = split(params, cuts_of(params))
    return {'matrices': matrices.init(apart), 'rest': rest.init(left)}

  def update(grads, state, params):
    cuts = cuts_of(params)
    apart, left = split(grads, cuts)
    old_apart, old_left = split(params, cuts)
    apart, of_matrices = matrices.update(apart, state['matrices'], old_apart)
    left, of_rest = rest.update(left, state['rest'], old_left)
    joined = join(apart, left, cuts)
    return joined, {'matrices': of_matrices, 'rest': of_rest}

  return optax.GradientTransformation(init, update)


def dimension_numbers(
  params: dict[str, Array],
) -> dict[str, optax.contrib.MuonDimensionNumbers]:
  """The last two axes are [in, out]; those before them count matrices."""
  numbers = optax.contrib.MuonDimensionNumbers(-2, -1)
  return dict.fromkeys(params, numbers)
