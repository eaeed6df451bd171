# SPDX-License-Identifier: MIT
"""Copies of the target's embedding and head that some layouts carry.

They are the target's and frozen, so a drafter here has none of its own: on the
way in they are compared with the target, if there is one, and dropped; on the
way out they are written from the target.
"""

import dataclasses
from collections.abc import Collection

import numpy as np
from flax import nnx

from jspec import errors

EMBEDDING, HEAD = 'embed_tokens.weight', 'lm_head.weight'
# A copy may be rounded to bfloat16: 8 bits of mantissa.
_RTOL, _ATOL = 2.0**-7, 1e-6


@dataclasses.dataclass(frozen=True)
class Target:
  """What checkpoints copy of their target, or say about it.

  Attributes:
    embedding: [V, D].
    head: [V, D].
    num_layers: depth.
  """

  embedding: np.ndarray
  head: np.ndarray
  num_layers: int

  def facts(self) -> dict[str, int]:
    """What the config keys about the target must say."""
    return {
      'vocab_size': self.embedding.shape[0],
      'target_hidden_size': self.embedding.shape[1],
      'target_num_hidden_layers': self.num_layers,
    }


def of_model(model: nnx.Module) -> Target:
  """Reads a loaded target; files have its embedding unscaled."""
  embedding, scale = (
    np.asarray(model.embedding[...]),
    model.config.embedding_scale,
  )
  return Target(
    embedding=embedding if scale == 1 else embedding / scale,
    head=np.asarray(model.head[...]).T,
    num_layers=model.config.num_layers,
  )


def left_out(before: Collection[str], after: Collection[str]) -> list[str]:
  """Copies of the target that a conversion has not kept."""
  has_head = any('lm_head' in name for name in after)
  return sorted(
    name
    for name in before
    if 'embed_tokens' in name or ('lm_head' in name and not has_head)
  )


def take(
  tensors: dict[str, np.ndarray], names: tuple[str, ...] = (EMBEDDING, HEAD)
) -> dict[str, np.ndarray]:
  """Takes the copies out of the tensors."""
  return {name: tensors.pop(name) for name in names if name in tensors}


def check(
  copied: dict[str, np.ndarray],
  target: Target | None,
  *,
  vocab_size: int,
  width: int,
  ids: np.ndarray | None = None,
) -> None:
  """Compares copies with the config and, if it is known, with the target.

  Args:
    copied: by name; one with `lm_head` in it is of the head.
    target: None where it is not known.
    vocab_size: V by the config.
    width: D by the config.
    ids: the reduced draft vocabulary; a copy of the head has its rows only.

  Raises:
    UserError: a copy is not the target's, or not of that shape.
  """
  for name, copy in copied.items():
    is_reduced = 'lm_head' in name and ids is not None
    rows = ids.size if is_reduced else vocab_size
    if copy.shape != (rows, width):
      key = 'draft_vocab_size' if is_reduced else 'vocab_size'
      raise errors.UserError(
        f'{name} is {list(copy.shape)}, but {key}={rows} and width {width} want'
        f' {[rows, width]}; one of them is of another checkpoint'
      )
    if target is not None:
      own = target.head if 'lm_head' in name else target.embedding
      _compare(name, copy, own[ids] if is_reduced else own)


def _compare(name, copy, own):
  if copy.shape != own.shape:
    raise errors.UserError(
      f'{name} is {list(copy.shape)}, the target has {list(own.shape)}; give'
      ' the target it was made for'
    )
  # Row blocks: float32 of a whole vocabulary twice over is gigabytes.
  for start in range(0, copy.shape[0], 8192):
    rows = slice(start, start + 8192)
    ours, theirs = own[rows], copy[rows].astype(np.float32)
    if not np.allclose(theirs, ours, _RTOL, _ATOL):
      worst = np.abs(theirs - ours).max()
      raise errors.UserError(
        f"{name} is not this target's (they differ by up to {worst:.3g}); give"
        ' the target it was made for'
      )


def add(
  tensors: dict[str, np.ndarray],
  target: Target | None,
  names: tuple[str, ...],
  ids: np.ndarray | None = None,
) -> None:
  """Writes copies of the target, in the dtype of the other tensors.

  Args:
    tensors: gets them.
    target: of the drafter.
    names: one with `lm_head` in it is of the head.
    ids: the reduced draft vocabulary, whose rows alone a head gets.

  Raises:
    UserError: there is no target.
  """
  if target is None:
    raise errors.UserError(
      f"this layout carries the target's {' and '.join(names)}; give --target"
    )
  dtype = next(t.dtype for t in tensors.values() if t.dtype.kind not in 'biu')
  for name in names:
    own = target.embedding
    if 'lm_head' in name:
      own = target.head if ids is None else target.head[ids]
    tensors[name] = own.astype(dtype)
