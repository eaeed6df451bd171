# SPDX-License-Identifier: MIT
"""Messages between processes: what is said arrives, and nothing else does."""

import json
import socket
import struct

import numpy as np
import pytest

from jspec.serve import bare, frames

TREE = (
  {
    'rows': np.arange(4, dtype=np.int32),
    'flag': np.bool_(True),
    'given': bare.NOTHING,
    'costs': {'s': np.float32(0.5), 'empty': np.zeros((2, 0), np.float32)},
    'none': None,
  },
  (np.full((2, 3), 2**32 - 1, np.uint32), bare.PROPOSED),
)


@pytest.fixture
def ends():
  left, right = socket.socketpair()
  left.settimeout(5)
  right.settimeout(5)
  with left, right:
    yield left, right


def same(got, want):
  if isinstance(want, dict):
    assert got.keys() == want.keys()
    return all(same(got[key], want[key]) for key in want)
  if isinstance(want, tuple):
    assert isinstance(got, tuple) and len(got) == len(want)
    return all(map(same, got, want))
  if want is None or isinstance(want, bare.Held):
    return got == want
  assert got.dtype == want.dtype and got.shape == want.shape
  return np.array_equal(got, want)


def test_what_is_sent_arrives_message_by_message(ends):
  left, right = ends
  left.sendall(frames.encode(['fused', 4], TREE))
  left.sendall(frames.encode(['end']))
  head, tree = frames.receive(right)
  assert head == ['fused', 4]
  assert same(tree, TREE)
  assert frames.receive(right) == (['end'], None)


def test_random_arrays_arrive_however_the_bytes_are_cut(ends):
  left, right = ends
  rng = np.random.default_rng(0)
  for _ in range(20):
    tree = tuple(
      rng.integers(
        0, 2, size=rng.integers(0, 4, size=rng.integers(0, 4))
      ).astype(dtype)
      for dtype in rng.choice(frames.DTYPES, size=rng.integers(0, 5))
    )
    message = frames.encode('head', tree)
    while message:
      count = int(rng.integers(1, 40))
      left.sendall(message[:count])
      message = message[count:]
    assert same(frames.receive(right)[1], tree)


def test_an_end_is_told_apart_from_a_message_cut_short(ends):
  left, right = ends
  left.sendall(frames.encode('head', TREE)[:-1])
  left.close()
  with pytest.raises(frames.Closed):
    frames.receive(right)


def text(**changes):
  found = dict(head=1, tree=[0], arrays=[['int32', [2]]])
  return json.dumps({**found, **changes}).encode()


@pytest.mark.parametrize(
  'said, body',
  [
    (text(), 7),
    (text(), 9),
    (text(tree=[1]), 8),
    (text(tree=[-1]), 8),
    (text(tree=[True]), 8),
    (text(tree=[0.5]), 8),
    (text(arrays=[['object', [1]]]), 8),
    (text(arrays=[['float64', [1]]]), 8),
    (text(arrays=[['int32', [-2]]]), 8),
    (text(arrays=[['int32', ['2']]]), 8),
    (text(arrays=[['int32', [2**62, 4]]]), 8),
    (text(arrays=7), 8),
    (b'{"head": 1}', 0),
    (b'[' * 100_000, 0),
    (b'\xff\xfe', 0),
    (b'7', 0),
  ],
)
def test_garbage_is_refused(said, body):
  with pytest.raises(frames.Garbled):
    frames.decode(said, b'x' * body)
  frames.decode(text(), b'x' * 8)  # The control.


@pytest.mark.parametrize(
  'prefix',
  [
    b'GET / HTTP/1.1\r\n\r\n',
    struct.pack('>4sIQ', b'jsp1', frames.MOST_TEXT + 1, 0),
    struct.pack('>4sIQ', b'jsp1', 2, frames.MOST_BYTES + 1),
  ],
)
def test_strangers_and_sizes_are_refused_before_they_are_read(ends, prefix):
  left, right = ends
  left.sendall(prefix)
  with pytest.raises(frames.Garbled):
    frames.receive(right)


def test_what_no_program_takes_is_not_sent():
  with pytest.raises(frames.Garbled, match='float64'):
    frames.encode('head', np.zeros(2))
