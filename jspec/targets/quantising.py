# SPDX-License-Identifier: MIT
"""An array of a target in eight bits, straight from its files.

A scale is of all numbers that a product sums over, so pieces are read which
have all of them, and of as few other rows and columns as make 1 MB in floats:

  down [F, D] on 4 devices     a piece, F rows of some columns of D
                               -> its scales, which every device holds
                               -> F / 4 rows of values for each device

So files are read once, and the host holds pieces in floats, one a thread,
beside the values of one shard; of all shards of one array where, as above, they
have scales in common.
"""

import concurrent.futures
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from jspec.checkpoints import conversions, host_memory
from jspec.nn import qarray
from jspec.targets import quantised, variables

# Stays in a cache through the operations that follow.
PIECE_BYTES = 1 << 20


def read(variable: variables.Variable, form: str) -> qarray.QArray:
  """Reads an array of `quantised.AXES`; the same as `quantised.arrays` makes.

  Args:
    variable: which, and where it lies.
    form: one of `qarray.FORMS`.
  """
  shape = variable.shape
  axis = len(shape) + quantised.AXES[variable.name]
  of_scale = tuple(1 if i == axis else n for i, n in enumerate(shape))
  lies, scale_lies = variable.lies(shape), variable.lies(of_scale)
  values, scales = [], []
  for whole, places in _groups(variables.places(shape, lies), axis, shape):
    parts, scale = _quantised(variable, form, axis, whole, places)
    for part, (_, devices) in zip(parts, places, strict=True):
      values += variables.put(part, devices)
    every = [device for _, devices in places for device in devices]
    scales += variables.put(scale, every)
  return qarray.QArray(
    variables.assembled(shape, lies, values),
    variables.assembled(of_scale, scale_lies, scales),
  )


def _groups(places, axis, shape):
  """Places by what they are a part of along the axis, which has one scale."""
  found = {}
  for box, devices in places:
    whole = (*box[:axis], slice(0, shape[axis]), *box[axis + 1 :])
    ends = tuple((part.start, part.stop) for part in whole)
    found.setdefault(ends, (whole, []))[1].append((box, devices))
  return found.values()


def _quantised(variable, form, axis, whole, places):
  """The values of each place of a group, and its scale."""
  parts = [
    variable.empty(variables.sizes(box), qarray.DTYPES[form])
    for box, _ in places
  ]
  sizes = list(variables.sizes(whole))
  sizes[axis] = 1
  scale = variable.empty(tuple(sizes), np.float32)
  own = dataclasses.replace(variable, num_threads=1)

  def quantise(piece):
    floats = np.empty(variables.sizes(piece), np.float32)
    own.read(piece, floats)
    one = qarray.quantise(floats, form, axis - floats.ndim)
    at = [
      slice(part.start - all_.start, part.stop - all_.start)
      for part, all_ in zip(piece, whole, strict=True)
    ]
    at[axis] = slice(None)
    scale[tuple(at)] = one.scale
    for part, (box, _) in zip(parts, places, strict=True):
      part[tuple(at)] = one.values[(slice(None),) * axis + (box[axis],)]

  workers = variable.num_threads or host_memory.threads()
  if workers == 1:
    for piece in _pieces(whole, axis):
      quantise(piece)
  else:
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
      for _ in pool.map(quantise, _pieces(whole, axis)):
        pass
  return parts, scale


def _pieces(box: conversions.Box, axis: int) -> Iterator[conversions.Box]:
  """Parts of a part that have all of the axis and, if it can be, few bytes."""
  sizes = variables.sizes(box)
  num_bytes = math.prod(sizes) * np.dtype(np.float32).itemsize
  others = (i for i, size in enumerate(sizes) if i != axis and size > 1)
  cut = next(others, None)
  if num_bytes <= PIECE_BYTES or cut is None:
    yield box
    return
  step = max(1, PIECE_BYTES * sizes[cut] // num_bytes)
  for start in range(box[cut].start, box[cut].stop, step):
    part = slice(start, min(start + step, box[cut].stop))
    yield from _pieces((*box[:cut], part, *box[cut + 1 :]), axis)
