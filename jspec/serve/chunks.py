# SPDX-License-Identifier: MIT
"""How much of a prompt one launch prefills.

Chunks run in compiled lengths. The smallest that holds the rest of the prompt
is taken, or the largest that the launch has room for; room is counted in
compiled lengths, since that is what decoding rows wait for:

  sizes 16, 64; room 100; prompts of 150 and 20 to go  ->  64 of 150, 16 of 20
"""

from collections.abc import Iterable, Sequence

from jspec.serve import plan as plan_lib
from jspec.serve import requests


def plan(
  rows: Iterable[requests.Progress], room: int, sizes: Sequence[int]
) -> list[plan_lib.Chunk]:
  """The prefill of a launch, at most one chunk a row, the first rows first.

  Rows that got a chunk know it when this returns.

  Args:
    rows: all rows in their order of service.
    room: tokens that the launch may prefill.
    sizes: compiled lengths, ascending.
  """
  chunks = []
  for progress in rows:
    if not progress.is_prefilling:
      continue
    start = progress.num_prefilled
    left = progress.prefill_len - start
    size = choose(left, room, sizes)
    if size is None:
      break
    room -= size
    end = start + min(size, left)
    progress.prefill(end - start)
    chunks.append(
      plan_lib.Chunk(
        row=progress.row,
        epoch=progress.epoch,
        start=start,
        tokens=tuple(progress.tokens[start:end]),
        size=size,
        next_token=progress.tokens[end],
        is_last=progress.is_decoding,
      )
    )
  return chunks


def choose(num_tokens: int, room: int, sizes: Sequence[int]) -> int | None:
  """The compiled length for a prompt's next chunk; None if there is no room.

  Args:
    num_tokens: prompt tokens to go, at least 1.
    room: tokens the launch can still prefill.
    sizes: compiled lengths, ascending.
  """
  fitting = [size for size in sizes if size <= room]
  if not fitting:
    return None
  return next((size for size in fitting if size >= num_tokens), fitting[-1])
