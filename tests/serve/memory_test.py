# SPDX-License-Identifier: MIT
"""Too little memory is told before it is taken, with the pages that fit."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import mixed, ngram
from jspec.serve import container, empty, memory, settings
from jspec.testing import toy
from tests.evals import unchecked
from tests.serve import small

PAGE, REST = 1000, 300


def state(num_pages):
  """A pool, and what does not grow with it."""
  return dict(
    pool=jnp.zeros((2, num_pages, PAGE // 8), jnp.float32),
    rest=jnp.zeros((REST,), jnp.int8),
  )


def refusal(monkeypatch, free):
  """The one line that is said when so many bytes are free."""
  monkeypatch.setattr(memory, 'free', lambda model: free)
  with pytest.raises(errors.UserError) as caught:
    memory.allocated(state, 20, None)
  (line,) = str(caught.value).splitlines()
  return line


@pytest.mark.parametrize(
  ('free', 'fit'), [(20_299, 19), (1300, 1), (1299, 0), (10, 0)]
)
def test_what_does_not_fit_is_refused_with_what_does(monkeypatch, free, fit):
  line = refusal(monkeypatch, free)
  assert line.startswith('20 pages of 1.0 kB and 300 B beside them')
  assert f': {fit} pages fit; ' in line
  assert (f'num_pages={fit} or less' in line) == (fit > 0)


def test_number_that_is_said_to_fit_fits(monkeypatch):
  monkeypatch.setattr(memory, 'free', lambda model: 20_299)
  made, needs = memory.allocated(state, 19, None)
  assert made['pool'].shape[1] == 19
  assert (needs.page_bytes, needs.rest_bytes) == (PAGE, REST)
  needs.check(more_bytes=999)
  with pytest.raises(errors.UserError, match='1.3 kB beside.*: 18 pages fit'):
    needs.check(more_bytes=1000)


def test_nothing_is_refused_where_nobody_knows_what_is_free(monkeypatch):
  monkeypatch.setattr(memory, 'free', lambda model: None)
  assert memory.allocated(state, 20, None)[0]['pool'].size


def exhausted(num_pages, text):
  if isinstance(jnp.zeros(()), jax.core.Tracer):
    return state(num_pages)
  raise jax.errors.JaxRuntimeError(text)


@pytest.mark.parametrize('free', [None, 50_000])
def test_memory_that_runs_out_all_the_same_is_told_alike(monkeypatch, free):
  monkeypatch.setattr(memory, 'free', lambda model: free)
  text = 'RESOURCE_EXHAUSTED: Out of memory allocating 20000 bytes.\nmore'
  fails = functools.partial(exhausted, text=text)
  with pytest.raises(errors.UserError) as caught:
    memory.allocated(fails, 20, None)
  (line,) = str(caught.value).splitlines()
  assert line.startswith('20 pages of 1.0 kB') and 'lower' in line
  assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
  fails = functools.partial(exhausted, text='INTERNAL: something else')
  with pytest.raises(jax.errors.JaxRuntimeError):
    memory.allocated(fails, 20, None)


def test_backend_that_cannot_allocate_it_says_how_to_mend_it(monkeypatch):
  """No fake: the allocator of the device is asked for 562 terabytes."""
  monkeypatch.setattr(memory, 'free', lambda model: None)

  def huge(num_pages):
    return jnp.zeros((num_pages, 1 << 24, 1 << 22), jnp.float32)

  with pytest.raises(errors.UserError, match='^2 pages of .*lower num_pages'):
    memory.allocated(huge, 2, None)


def test_pages_of_target_and_drafter_count_and_rows_apart():
  target = toy.target()
  drafter = toy.drafter(target)

  def needs(drafter, **changes):
    chosen = settings.resolve(
      settings.Settings(max_rows=4, max_len=64, page_size=8), target, drafter
    )
    given = dict(num_rows=4, page_size=8, capacity=chosen.capacity) | changes
    make = functools.partial(empty.init_state, target, drafter, **given)
    with unchecked.constructors():
      return memory.allocated(make, 5, target)[1]

  alone, both = needs(None), needs(drafter)
  # Keys and values of 8 rows, 3 layers and 2 heads of 8 float32.
  assert alone.page_bytes == 2 * 8 * 3 * 2 * 8 * 4
  # The drafter has two such layers of its own.
  assert both.page_bytes - alone.page_bytes == 2 * 8 * 2 * 2 * 8 * 4
  assert needs(drafter, page_size=16).page_bytes == 2 * both.page_bytes
  wide = needs(drafter, num_rows=8)
  assert wide.page_bytes == both.page_bytes
  assert wide.rest_bytes > 1.9 * both.rest_bytes
  several = needs(mixed.Mixed({'a': drafter, 'b': ngram.NGram(2)}))
  assert several.page_bytes == both.page_bytes


def test_programs_count_by_the_hungriest():
  def compiled(size):
    x = jax.ShapeDtypeStruct((size,), jnp.float32)
    # Sorted twice, so that something lies between.
    run = jax.jit(lambda x: jnp.sort(jnp.sort(x)[::-1] * x))
    return run.lower(x).compile()

  small_one, large = compiled(1000), compiled(100_000)
  needed = memory.programs_bytes([small_one, large, small_one])
  assert needed >= 400_000 > memory.programs_bytes([small_one])
  silent = types.SimpleNamespace(memory_analysis=lambda: None)
  assert memory.programs_bytes([silent]) == memory.programs_bytes([]) == 0


class Chip:
  """A device that says what it has."""

  platform, process_index = 'tpu', 0

  def __init__(self, **stats):
    self.stats = stats

  def memory_stats(self):
    return self.stats or None


def test_free_memory_is_that_of_the_devices_of_the_model(monkeypatch, tmp_path):
  model = [np.zeros(3), jnp.zeros(3)]
  meminfo = tmp_path / 'meminfo'
  monkeypatch.setattr(memory, 'MEMINFO', meminfo)
  monkeypatch.setattr(container, 'room', lambda: None)
  assert memory.free(model) is None  # No Linux.
  meminfo.write_text('MemTotal:  9 kB\nMemAvailable:   7 kB\nSwapFree: 1 kB\n')
  assert memory.free(model) == 7 * 1024

  def on(*chips):
    found = jax.Array
    monkeypatch.setattr(jax, 'Array', types.SimpleNamespace)
    leaf = types.SimpleNamespace(devices=lambda: set(chips))
    monkeypatch.setattr(jax.tree, 'leaves', lambda model: [leaf])
    try:
      return memory.free(None)
    finally:
      monkeypatch.setattr(jax, 'Array', found)

  chip = Chip(bytes_limit=100, bytes_in_use=30)
  assert on(chip) == 70
  assert on(chip, Chip(bytes_limit=50, bytes_in_use=0)) == 120
  assert on(chip, Chip()) is None


def test_engine_refuses_before_it_allocates(monkeypatch):
  target = toy.target(max_len=small.MAX_LEN)
  monkeypatch.setattr(memory, 'free', lambda model: 200_000)
  init = empty.init_state
  made = []

  def counted(*args, **named):
    found = init(*args, **named)
    made.append(isinstance(found.anchor, jax.core.Tracer))
    return found

  monkeypatch.setattr(empty, 'init_state', counted)
  with pytest.raises(errors.UserError, match='^99999 pages of .* pages fit'):
    small.make(target, None, num_pages=99999)
  assert made == [True, True]
