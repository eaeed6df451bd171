# SPDX-License-Identifier: MIT
"""The map of a reduced draft vocabulary, out of either convention in use.

  absolute   target id = d2t[i]
  offset     target id = i + d2t[i]    (SafeAILab, SpecForge, AngelSpec, vLLM)

Read with the wrong one, ids come out doubled or halved, and acceptance falls to
nothing without an error. A convention is accepted only if the other cannot be:
ids must be distinct, inside the vocabulary, and exactly those that `t2d` marks.
"""

import numpy as np

from jspec import errors

OFFSET, ABSOLUTE = 'offset', 'absolute'
NATIVE = 'draft_token_ids'


def read(
  d2t: np.ndarray,
  t2d: np.ndarray | None,
  vocab_size: int,
  convention: str | None = None,
) -> np.ndarray:
  """Returns target ids [Vd] int64 of the draft vocabulary, in its order.

  Args:
    d2t: the map [Vd].
    t2d: which of the V target tokens are in, if the checkpoint says.
    vocab_size: V.
    convention: OFFSET or ABSOLUTE where the map is ambiguous.

  Raises:
    UserError: no convention fits, both do, or the given one does not.
  """
  if convention not in (None, OFFSET, ABSOLUTE):
    raise errors.UserError(f'd2t={convention!r}: expected offset or absolute')
  if d2t.ndim != 1 or not np.issubdtype(d2t.dtype, np.integer) or not d2t.size:
    raise errors.UserError(
      f'd2t is {d2t.dtype} of shape {list(d2t.shape)}; expected whole numbers'
    )
  if t2d is not None and t2d.shape != (vocab_size,):
    raise errors.UserError(
      f't2d is {list(t2d.shape)}, vocab_size is {vocab_size}; one of them is of'
      ' another checkpoint'
    )
  stored = d2t.astype(np.int64)
  maps = {OFFSET: stored + np.arange(stored.size), ABSOLUTE: stored}
  faults = {
    name: _fault(ids, t2d, vocab_size)
    for name, ids in maps.items()
    if convention in (None, name)
  }
  good = [name for name, fault in faults.items() if not fault]
  if not good:
    why = '; '.join(f'as {name}: {fault}' for name, fault in faults.items())
    raise errors.UserError(
      f'd2t is no map into the vocabulary: {why}; export it again'
    )
  if len(good) > 1 and not np.array_equal(maps[OFFSET], maps[ABSOLUTE]):
    raise errors.UserError(
      'd2t could be offsets or absolute ids'
      f' (token 1: {maps[OFFSET][1]} or {maps[ABSOLUTE][1]}); say which:'
      ' --set d2t=offset or --set d2t=absolute'
    )
  return maps[good[0]]


def _fault(ids, t2d, vocab_size):
  """Why ids are no draft vocabulary, or nothing."""
  if ids.min() < 0 or ids.max() >= vocab_size:
    return f'ids {ids.min()}..{ids.max()} are not within 0..{vocab_size - 1}'
  distinct = np.unique(ids)
  if distinct.size != ids.size:
    return f'{ids.size} entries name {distinct.size} tokens'
  if t2d is None:
    return ''
  marked = np.flatnonzero(t2d)
  if not np.array_equal(distinct, marked):
    return f't2d marks {marked.size} tokens, d2t names {distinct.size} others'
  return ''


def offsets(draft_token_ids: np.ndarray) -> np.ndarray:
  """The map as offsets, int64 [Vd]."""
  ids = draft_token_ids.astype(np.int64)
  return ids - np.arange(ids.size)


def take(
  left: dict, tensors: dict[str, np.ndarray], sorted_rows: tuple[str, ...] = ()
) -> None:
  """Turns d2t and t2d of a checkpoint into `draft_token_ids`, in place.

  Ids are stored ascending; rows of `sorted_rows` follow them. A map of the
  whole vocabulary onto itself is dropped.

  Args:
    left: the config; takes d2t, reads vocab_size, writes draft_vocab_size.
    tensors: the checkpoint's.
    sorted_rows: tensors whose rows are the draft vocabulary.

  Raises:
    UserError: a reduced vocabulary without its map, or a map that does not fit.
  """
  vocab_size = left['vocab_size']
  size = left.get('draft_vocab_size')
  convention = left.pop('d2t', None)
  d2t, t2d = tensors.pop('d2t', None), tensors.pop('t2d', None)
  if d2t is None:
    if size not in (None, vocab_size):
      raise errors.UserError(
        f'draft_vocab_size is {size}, vocab_size {vocab_size}, but there is no'
        ' tensor d2t; a reduced draft vocabulary needs its map'
      )
    left['draft_vocab_size'] = None
    return
  if size not in (None, d2t.size):
    raise errors.UserError(
      f'draft_vocab_size is {size}, but d2t has {d2t.size} entries; one of them'
      ' is of another checkpoint'
    )
  ids = read(d2t, t2d, vocab_size, convention)
  order = np.argsort(ids, kind='stable')
  for name in sorted_rows:
    if tensors[name].shape[0] == ids.size:  # Else `shapes.check` says so.
      tensors[name] = tensors[name][order]
  left['draft_vocab_size'] = None
  if ids.size < vocab_size:
    left['draft_vocab_size'] = ids.size
    tensors[NATIVE] = ids[order].astype(np.int32)


def with_offsets(
  config: dict, tensors: dict[str, np.ndarray], out: dict
) -> dict[str, np.ndarray]:
  """The tensors with d2t (offsets) in place of `draft_token_ids`.

  Args:
    config: the native one.
    tensors: the native ones.
    out: the foreign config; gets draft_vocab_size if it is reduced.
  """
  if config['draft_vocab_size'] is None:
    return tensors
  out['draft_vocab_size'] = config['draft_vocab_size']
  rest = {name: values for name, values in tensors.items() if name != NATIVE}
  return rest | {'d2t': offsets(tensors[NATIVE])}


def marks_of(d2t: np.ndarray, vocab_size: int) -> np.ndarray:
  """`t2d` of a map of offsets: bool [V]."""
  inside = np.zeros(vocab_size, bool)
  inside[d2t + np.arange(d2t.size)] = True
  return inside


def size_key(config: dict) -> str:
  """The key that counts the rows of a drafter's own head."""
  is_whole = config['draft_vocab_size'] is None
  return 'vocab_size' if is_whole else 'draft_vocab_size'
