# SPDX-License-Identifier: MIT
"""Texts differ where programs might, and nowhere else; or there is none."""

import dataclasses
import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec.decode import prefill
from jspec.depth import dcut, static
from jspec.drafters import mixed, ngram
from jspec.serve import described, packed
from jspec.testing import toy
from tests.evals import unchecked


def shape(*sizes, dtype=jnp.float32, **named):
  return jax.ShapeDtypeStruct(sizes, dtype, **named)


@dataclasses.dataclass(frozen=True)
class Outside:
  """Of no package that a key knows of."""


def test_equal_values_have_one_text_and_others_others():
  def values():
    layout = packed.layout({'row': shape(dtype=jnp.int32)})
    return [
      None,
      0,
      0.0,
      False,
      '0',
      b'0',
      (0,),
      [0],
      (0, 1),
      (1, 0),
      ((0,), 1),
      {'a': 0},
      {'a': 1},
      {'b': 0},
      frozenset({'a', 'b'}),
      np.float32(1),
      np.float64(1),
      np.arange(3),
      np.arange(3)[::-1],
      np.dtype('float32'),
      np.dtype('bfloat16'),
      int,
      float,
      dcut.DCut(),
      static.Static(depth=2),
      static.Static(depth=3),
      prefill.start,
      functools.partial(prefill.start, epoch=1),
      functools.partial(prefill.start, epoch=2),
      PartitionSpec('model'),
      PartitionSpec(None, 'model'),
      jax.tree.structure((0, 1)),
      jax.tree.structure((0, (1,))),
      layout,
    ]

  first, second = (list(map(described.value, values())) for _ in range(2))
  assert first == second
  assert len(set(first)) == len(first)
  assert not any(' at 0x' in text for text in first)


@pytest.mark.parametrize(
  'value',
  [
    lambda x: x,
    functools.partial(lambda x: x),
    (0, [{'deep': lambda x: x}]),
    object(),
    Outside(),
    Outside,
    shape,
    enum.Enum('Odd', 'A').A,
    np.array([object()], object),
    np.random.default_rng(0),
  ],
)
def test_what_no_text_says_whole_is_refused(value):
  with pytest.raises(described.Indescribable):
    described.value(value)


def test_function_that_took_anothers_name_is_refused():
  def start():
    pass

  start.__module__, start.__qualname__ = prefill.__name__, 'start'
  with pytest.raises(described.Indescribable):
    described.value(start)


def arguments():
  """What some program might be compiled for, each another."""
  target = toy.target()
  devices = np.array(jax.devices())
  by_two, by_four = (
    NamedSharding(Mesh(devices[:size], ('model',)), PartitionSpec('model'))
    for size in (2, 4)
  )
  with unchecked.constructors():
    drafters = [
      toy.drafter(target),
      toy.drafter(target, num_draft_tokens=2),
      toy.drafter(target, tree_size=3),
      ngram.NGram(3),
      ngram.NGram(4),
      mixed.Mixed({'a': ngram.NGram(3)}),
      mixed.Mixed({'b': ngram.NGram(3)}),
    ]
  return [
    None,
    target,
    toy.target(num_layers=2),
    *drafters,
    shape(2),
    shape(3),
    shape(2, dtype=jnp.int32),
    shape(2, dtype=jnp.bfloat16),
    (shape(2), shape(2)),
    [shape(2), shape(2)],
    {'a': shape(2)},
    shape(2, sharding=by_two),
    shape(4, sharding=by_four),
    shape(4, sharding=by_two),
    jnp.zeros(2),
    jax.device_put(np.zeros(2, np.float32), devices[1]),
    jax.device_put(np.zeros(2, np.float32), by_two),
  ]


def test_arguments_are_told_apart_by_all_but_their_values():
  first = list(map(described.argument, arguments()))
  assert len(set(first)) == len(first)
  assert list(map(described.argument, arguments())) == first
  assert not any(' at 0x' in text for text in first)
  # Other weights of the same shapes run the same program.
  target = toy.target(seed=3)
  assert described.argument(target) == described.argument(toy.target())


def test_static_field_that_cannot_be_said_refuses_the_argument():
  with unchecked.constructors():
    drafter = ngram.NGram(3)
  drafter.confidence_depends = lambda: 'prefix'
  with pytest.raises(described.Indescribable):
    described.argument((shape(2), drafter))
