# SPDX-License-Identifier: MIT
"""Fills a store of taps: the frozen target reads documents, packed in rows.

  documents -> rows of `row_len` -> target.encode -> taps of each document

Packing only saves time: segments keep documents apart, so the taps of a
document are those it has alone.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jspec.data import examples, features, packing
from jspec.text import chat
from jspec.train import layout, placing

# Of a batch, as the target takes them.
_ARRAYS = ('tokens', 'positions', 'segments')


@dataclasses.dataclass(frozen=True)
class Cost:
  """What one capture took; compiling is apart from it.

  Attributes:
    num_tokens: captured by it, without those of earlier ones.
    seconds: from the first batch to the last byte.
    target_seconds: of them, the target's forward passes with their copies to
      the host; training online pays these again in every step.
  """

  num_tokens: int = 0
  seconds: float = 0.0
  target_seconds: float = 0.0


def capture(
  target: Any,
  documents: Sequence[examples.Document],
  folder: pathlib.Path | str,
  settings: features.Settings,
  *,
  row_len: int = 512,
  num_rows: int = 4,
  mesh: Mesh | None = None,
  on_progress: Callable[[str], None] = print,
) -> Cost:
  """Writes the taps of all documents; resumes an unfinished store.

  Args:
    target: a `jspec.targets.base.Target`.
    documents: all documents, in the order of the store.
    folder: the store; made if absent.
    settings: what the store says about itself; see `settings_for`.
    row_len: tokens in a packed row, at least the longest document.
    num_rows: rows in a batch.
    mesh: devices that the target lies on (`placing.target`); None: one.
    on_progress: takes one line after each shard.

  Raises:
    UserError: the store is of something else or cannot be written, a document
      is longer than a row, or states are not finite.
  """
  writer = features.Writer(folder, settings)
  missing = writer.missing_shards()
  if not missing:
    writer.finish()
    return Cost()
  encode = _compiled(target, settings, row_len, num_rows, mesh)
  started, num_tokens, target_seconds = time.monotonic(), 0, 0.0
  for done, shard in enumerate(missing, start=1):
    start = shard * settings.shard_len
    members = documents[start : start + settings.shard_len]
    before = time.monotonic()
    taps = _capture_shard(encode, members, row_len, num_rows)
    target_seconds += time.monotonic() - before
    writer.write_shard(shard, members, taps)
    num_tokens += sum(map(len, members))
    rate = num_tokens / (time.monotonic() - started)
    on_progress(
      f'capture: shard {shard + 1}/{settings.num_shards}, {rate:.0f} tokens/s, '
      f'{(len(missing) - done) * settings.shard_len} documents to go'
    )
  writer.finish()
  return Cost(num_tokens, time.monotonic() - started, target_seconds)


def settings_for(
  loaded: Any,
  documents: Sequence[examples.Document],
  *,
  taps: Sequence[int],
  dtype: str,
  shard_len: int = 128,
) -> features.Settings:
  """Describes a store of these documents' taps from a loaded target."""
  return features.Settings(
    target=loaded.label,
    fingerprint=loaded.fingerprint,
    taps=tuple(taps),
    width=loaded.model.width,
    is_pre_norm=True,
    template=chat.fingerprint(loaded.template),
    dtype=dtype,
    documents=examples.fingerprint(documents),
    num_documents=len(documents),
    shard_len=shard_len,
  )


def _compiled(target, settings, row_len, num_rows, mesh):
  """The target's forward pass to taps, of rows of one shape."""
  graphdef, state = nnx.split(target)
  dtype = 'float32' if settings.dtype == 'int8' else settings.dtype
  encode, lies = (
    functools.partial(_encode, graphdef, settings.taps, dtype),
    None,
  )
  if mesh is not None:
    encode = layout.within(mesh, encode, placing.together(target, mesh))
    lies = layout.batch_sharding(mesh)
  rows = jax.ShapeDtypeStruct((num_rows, row_len), jnp.int32, sharding=lies)
  compiled = jax.jit(encode).lower(state, *[rows] * len(_ARRAYS)).compile()
  return lambda batch: compiled(
    state, *jax.device_put([batch[name] for name in _ARRAYS], lies)
  )


def _encode(graphdef, taps, dtype, state, *arrays):
  target = nnx.merge(graphdef, state)
  _, states = target.encode(*arrays, taps)
  return states.astype(jnp.dtype(dtype))


def _capture_shard(encode, documents, row_len, num_rows):
  """Returns the taps of each document, [S, C, D]."""
  rows = list(packing.first_fit(map(len, documents), row_len))
  tokens = [{'tokens': document.tokens} for document in documents]
  found: list[Any] = [None] * len(documents)
  for start in range(0, len(rows), num_rows):
    chunk = rows[start : start + num_rows]
    batch = packing.stack(
      [packing.fill_row([tokens[n] for n in row], row_len) for row in chunk],
      num_rows,
    )
    states = np.asarray(encode(batch))
    for row_idx, row in enumerate(chunk):
      offset = 0
      for number in row:
        length = len(documents[number])
        found[number] = states[row_idx, offset : offset + length]
        offset += length
  return found
