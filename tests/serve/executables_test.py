# SPDX-License-Identifier: MIT
"""A kept program is the program; whatever else lies there is compiled again."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec.decode import thresholds
from jspec.drafters import mixed, ngram
from jspec.serve import (
  asks,
  described,
  empty,
  executables,
  offline,
  program_key,
  programs,
  settings,
)
from jspec.testing import toy
from tests.evals import unchecked
from tests.serve import compiles, small


@pytest.fixture(autouse=True)
def sources_of_before(monkeypatch):
  """Whoever edits jspec while the tests run is not to break them."""
  monkeypatch.setattr(program_key, 'has_changed', lambda: False)


@pytest.fixture
def kept(tmp_path):
  return executables.Folder(tmp_path / 'executables')


def source(size=8, function=jax.lax.add, dtype=jnp.float32):
  """A program as those of an engine: its first argument is donated."""
  shape = jax.ShapeDtypeStruct((size,), dtype)
  return programs.Source(function, (), (shape, shape), 0, None)


def run(program, size=8):
  """What it gives, and what is left of the donated argument."""
  given = jax.device_put(np.arange(size, dtype=np.float32))
  return np.asarray(program(given, np.ones(size, np.float32))), given


def start(kept, source):
  """Loads or compiles; what came, whether from disk, how much was compiled."""
  with compiles.counted() as found:
    program, is_loaded = kept.load_or_compile('a program', source)
  assert bool(found) != is_loaded
  return program, is_loaded


def one_of(kept):
  """A name of the one program that is kept; it has two."""
  first, second = kept.path.iterdir()
  assert first.samefile(second)
  return first


def num_files(kept):
  """Files, whatever their names."""
  return len({path.stat().st_ino for path in kept.path.iterdir()})


def test_second_start_loads_what_the_first_compiled(kept):
  first, was_loaded = start(kept, source())
  second, is_loaded = start(executables.Folder(kept.path), source())
  assert (was_loaded, is_loaded) == (False, True)
  path = one_of(kept)
  assert path.name.startswith('a-program-')
  assert kept.path.stat().st_mode & 0o777 == 0o700
  for program in (first, second):
    found, given = run(program)
    np.testing.assert_array_equal(found, np.arange(8) + 1)
    assert given.is_deleted()
  sizes = [
    (of.temp_size_in_bytes, of.output_size_in_bytes, of.alias_size_in_bytes)
    for of in (first.memory_analysis(), second.memory_analysis())
  ]
  assert sizes[0] == sizes[1] and sizes[0][-1] == 32
  with pytest.raises(TypeError):
    second(np.ones(3, np.float32), np.ones(3, np.float32))


def test_program_is_found_by_its_text_where_jspec_was_edited(kept, monkeypatch):
  start(kept, source())
  lower = programs.Source.lower
  for text in ('edited', 'edited again'):
    monkeypatch.setattr(program_key, 'source', lambda text=text: text)
    for num_traced in (1, 0):  # The second time by its name.
      traced = []
      with monkeypatch.context() as patch:
        patch.setattr(
          programs.Source,
          'lower',
          lambda self, traced=traced: traced.append(self) or lower(self),
        )
        program, is_loaded = start(executables.Folder(kept.path), source())
      assert is_loaded and len(traced) == num_traced
      np.testing.assert_array_equal(run(program)[0], np.arange(8) + 1)
  assert num_files(kept) == 1


def test_program_from_the_cache_of_jax_is_not_kept(kept, monkeypatch):
  # What is written of it would load, and fail when it runs.
  lowered = source().lower()
  hits = executables._hits()

  class Hit:
    def compile(self):
      jax.monitoring.record_event(executables._HIT)
      return lowered.compile()

  assert executables._compiled(lowered)[1]
  assert not executables._compiled(Hit())[1]
  assert sum(hits.values()) >= 1
  monkeypatch.setattr(
    programs.Source, 'lower', lambda self: both(Hit(), lowered)
  )
  assert not kept.load_or_compile('any', source())[1]
  assert not kept.path.exists()


def both(hit, lowered):
  hit.as_text, hit.out_tree = lowered.as_text, lowered.out_tree
  return hit


@pytest.mark.parametrize(
  'other',
  [
    source(size=9),
    source(function=jax.lax.sub),
    source(dtype=jnp.int32),
    source()._replace(donated=()),
    source()._replace(donated=1),
    source(function=functools.partial(jax.lax.add)),
  ],
)
def test_another_program_is_not_taken_for_it(kept, other):
  start(kept, source())
  assert not start(kept, other)[1]
  assert start(kept, other)[1] and start(kept, source())[1]


def test_another_environment_is_another_key(kept, monkeypatch):
  start(kept, source())
  monkeypatch.setenv('XLA_FLAGS', '--xla_something_else')
  assert not start(executables.Folder(kept.path), source())[1]


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: b'',
    lambda text: text[:20],
    lambda text: text[:-1],
    lambda text: text[: len(text) // 2],
    lambda text: text[:200] + bytes([text[200] ^ 1]) + text[201:],
    lambda text: text.replace(b'executable 1', b'executable 0'),
    lambda text: b'no such thing' * 100,
  ],
  ids=['empty', 'head', 'short', 'half', 'bit', 'version', 'other'],
)
def test_damaged_file_is_told_in_one_line_and_replaced(kept, damage, capsys):
  start(kept, source())
  path = one_of(kept)
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  program, is_loaded = start(kept, source())
  np.testing.assert_array_equal(run(program)[0], np.arange(8) + 1)
  (line,) = capsys.readouterr().err.splitlines()
  assert not is_loaded and line.startswith('warning: ') and 'a-program' in line
  assert start(kept, source())[1]
  assert path in kept.path.iterdir() and num_files(kept) == 1


def test_file_that_does_not_load_is_told_and_replaced(kept, capsys):
  start(kept, source())
  path = one_of(kept)
  body = b'no pickle'
  path.write_bytes(executables._head(body) + body)
  assert not start(kept, source())[1]
  (line,) = capsys.readouterr().err.splitlines()
  assert 'compiling again' in line
  assert start(kept, source())[1]


def test_program_that_no_key_says_is_compiled_every_time(kept, capsys):
  odd = source(function=lambda x, y: x + y)
  assert not start(kept, odd)[1]
  assert not start(kept, odd)[1]
  (line,) = capsys.readouterr().err.splitlines()
  assert 'compiled at every start' in line and '<lambda>' in line
  assert not kept.path.exists()


def test_folder_that_others_can_write_to_is_not_used(kept, capsys):
  start(kept, source())
  kept.path.chmod(0o777)
  before = {path: path.stat().st_mtime_ns for path in kept.path.iterdir()}
  assert not start(kept, source())[1]
  (line,) = capsys.readouterr().err.splitlines()
  assert 'others can write' in line
  after = {path: path.stat().st_mtime_ns for path in kept.path.iterdir()}
  assert after == before
  kept.path.chmod(0o755)
  assert start(kept, source())[1]


def test_folder_that_cannot_be_made_does_not_stop_the_start(kept, capsys):
  kept.path.write_text('a file where the folder should be')
  for size in (8, 9):
    program, is_loaded = kept.load_or_compile('any', source(size))
    assert not is_loaded and run(program, size)[0].size == size
  (line,) = capsys.readouterr().err.splitlines()
  assert 'cannot keep' in line


def test_process_older_than_its_source_keeps_a_program_by_its_text_alone(
  kept, monkeypatch, capsys
):
  monkeypatch.setattr(program_key, 'has_changed', lambda: True)
  assert not start(kept, source())[1]
  (path,) = kept.path.iterdir()
  assert 'younger' in capsys.readouterr().err
  monkeypatch.setattr(program_key, 'has_changed', lambda: False)
  assert start(kept, source())[1]  # Traced, and named now.
  assert path.samefile(one_of(kept))


def test_compilation_that_fails_leaves_nothing(kept):
  with pytest.raises(TypeError):
    kept.load_or_compile('any', source(function=thresholds.top_k_top_p))
  assert not kept.path.exists()


def test_least_recently_used_go_first(kept):
  start(kept, source())
  first = one_of(kept)
  size = first.stat().st_size
  narrow = executables.Folder(kept.path, max_bytes=int(2.2 * size))
  start(narrow, source(9))
  second = next(p for p in kept.path.iterdir() if not p.samefile(first))
  os.utime(first, (1, 1))
  os.utime(second, (2, 2))
  assert start(narrow, source())[1]  # Used, hence the youngest.
  start(narrow, source(10))
  assert first.exists() and not second.exists() and num_files(kept) == 2
  # The newest stays, however little room there is.
  start(executables.Folder(kept.path, max_bytes=1), source(11))
  assert not first.exists() and num_files(kept) == 1


def test_programs_of_other_devices_run_where_they_ran(kept):
  devices = jax.devices()
  mesh = Mesh(np.array(devices[:4]), ('model',))
  spread = NamedSharding(mesh, PartitionSpec('model'))
  whole = NamedSharding(mesh, PartitionSpec())
  alone = jax.sharding.SingleDeviceSharding(devices[3])
  for lies, gives in ((spread, spread), (spread, whole), (alone, alone)):
    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=lies)
    donated = 0 if lies == gives else ()
    of = programs.Source(jax.lax.add, (), (shape, shape), donated, gives)
    found = []
    for is_loaded in (False, True):
      program, was_loaded = start(kept, of)
      assert was_loaded == is_loaded, lies
      given = [
        jax.device_put(np.arange(8, dtype=np.float32), lies) for _ in range(2)
      ]
      found.append(program(*given))
      assert found[-1].sharding.is_equivalent_to(gives, 1)
    np.testing.assert_array_equal(*map(np.asarray, found))
    np.testing.assert_array_equal(found[0], 2 * np.arange(8))


@pytest.mark.parametrize('home, is_on', [('', True), ('gs://x', True)])
def test_nothing_is_kept_where_jax_keeps_nothing_nearby(home, is_on):
  assert with_options(home, is_on) is None


def test_programs_lie_beside_those_that_jax_keeps(tmp_path):
  found = with_options(str(tmp_path), True)
  assert found.path.parent == tmp_path
  assert with_options(str(tmp_path), False) is None


def with_options(home, is_on):
  names = 'jax_compilation_cache_dir', 'jax_enable_compilation_cache'
  before = [jax.config.values[name] for name in names]
  try:
    for name, option in zip(names, (home, is_on), strict=True):
      jax.config.update(name, option)
    return executables.folder()
  finally:
    for name, option in zip(names, before, strict=True):
      jax.config.update(name, option)


def test_every_program_of_an_engine_has_a_name(kept):
  target = toy.target(max_len=small.MAX_LEN)
  with unchecked.constructors():
    drafter = mixed.Mixed({'a': toy.drafter(target), 'b': ngram.NGram(3)})
    sizes = settings.resolve(small.SETTINGS, target, drafter)
    state = jax.eval_shape(
      functools.partial(
        empty.init_state,
        num_rows=4,
        num_pages=8,
        page_size=8,
        capacity=sizes.capacity,
      ),
      target,
      drafter,
    )
    shapes = programs.Shapes(
      row_buckets=(4,),
      chunk_sizes=(16,),
      num_rounds=2,
      num_budgets=3,
      policies=sizes.policies,
      rule=sizes.rule,
      is_split=True,
    )
    found, odd = (
      programs.sources(target, drafter, state, shapes, small.MAX_LEN)
      for shapes in (shapes, shapes._replace(policies=(Odd(),)))
    )
  assert len(found) == 6
  assert len({kept._made_of(source) for source in found.values()}) == 6
  with pytest.raises(described.Indescribable, match='from outside jspec'):
    kept._made_of(odd[programs.Key(programs.PLAIN, 4)])


class Odd:
  """A policy of somebody else."""


@pytest.mark.slow
@pytest.mark.parametrize('num_devices', [1, 8])
def test_engine_from_disk_compiles_nothing_and_says_the_same(
  kept, num_devices, capsys
):
  target = toy.target(
    max_len=small.MAX_LEN, num_heads=8, num_kv_heads=8, ff_width=64
  )
  drafter = toy.drafter(target)
  mesh = None
  if num_devices > 1:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ('model',))
  wanted = [asks.Ask(params=params) for params in small.requests()]
  answers, num_compiled = [], []
  for is_second in (False, True):
    with compiles.counted() as found:
      engine = small.make(target, drafter, mesh=mesh, kept=kept)
    num_compiled.append(len(found))
    assert engine.programs.num_loaded == is_second * len(engine.programs)
    answers.append(offline.generate(engine, small.prompts(), wanted))
  assert answers[0] == answers[1]
  assert num_compiled[0] - num_compiled[1] == len(engine.programs)
  assert capsys.readouterr().err == ''
