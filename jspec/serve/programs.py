# SPDX-License-Identifier: MIT
"""Every program the engine runs, listed once and compiled before traffic.

  key                       runs
  admit                     a row is given to a request
  prefill, chunk            one row reads so many prompt tokens
  start                     the row takes part in the rounds from now on
  fused, rows               rounds of so many rows: draft, plan, verify, commit
  plain, rows               the same without drafting
  propose, rows             drafts alone, for the host to judge; the round that
                            verifies them is a fused one

Context, sampling parameters, policies, depths, costs and temperatures of
confidence are inputs. What is not in the list is not run: a missing key is an
error, never a compilation.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jspec import tree
from jspec.decode import given as given_lib
from jspec.decode import grammar, prefill, scoring
from jspec.decode import round as round_lib
from jspec.depth import base as depth_lib
from jspec.depth import costs as costs_lib
from jspec.serve import (
  bare,
  executables,
  launch,
  leaves,
  packed,
  placement,
  reading,
)

NUM_STOP_IDS = 8
ADMIT, PREFILL, START = 'admit', 'prefill', 'start'
FUSED, PLAIN, PROPOSE = 'fused', 'plain', 'propose'


class Key(NamedTuple):
  """Names a program: what it does, and the one size it is compiled for."""

  form: str
  size: int = 0

  def __str__(self):
    return f'{self.form} {self.size}' if self.size else self.form


class MissingProgram(RuntimeError):
  """A program was asked for that was not compiled; a defect of the engine."""


class Shapes(NamedTuple):
  """What the programs are compiled for.

  Attributes:
    row_buckets: rows of a launch, ascending.
    chunk_sizes: tokens of a prefill chunk, ascending.
    num_rounds: most rounds of a launch.
    num_budgets: most budgets of a round.
    policies: what plans.
    rule: how drafts are verified.
    is_split: whether the host may judge a round before it is verified.
  """

  row_buckets: tuple[int, ...]
  chunk_sizes: tuple[int, ...]
  num_rounds: int
  num_budgets: int
  policies: tuple[depth_lib.DepthPolicy, ...]
  rule: str
  is_split: bool

  def sizes(self, num_rows: int, num_drafts: int) -> tuple[int, ...]:
    """Budgets of a round of so many rows."""
    return scoring.budgets(num_rows, num_drafts + 1, self.num_budgets)


class Source(NamedTuple):
  """What a program is compiled from.

  Attributes:
    function: what it does.
    models: its first arguments, which it is given by their leaves.
    args: the others, as they are compiled for.
    donated: which of all it may overwrite.
    gives: how what comes out lies; None where that is left open.
  """

  function: Callable[..., Any]
  models: tuple[Any, ...]
  args: tuple[Any, ...]
  donated: int | tuple[int, ...]
  gives: Any

  @property
  def taken(self) -> tuple[Any, ...]:
    """What it is called with."""
    return (*map(leaves.of, self.models), *self.args)

  def lower(self) -> Any:
    """Traces and lowers it."""
    placed = {} if self.gives is None else {'out_shardings': self.gives}
    function = leaves.taking(self.function, *self.models)
    jitted = jax.jit(function, donate_argnums=self.donated, **placed)
    # Float32 must mean float32, or one node and several round differently by
    # more than a tie; TPUs and GPUs multiply in less by default. The setting
    # belongs to a thread.
    with jax.default_matmul_precision('highest'):
      return jitted.lower(*self.taken)


class Programs:
  """The compiled programs by key.

  Attributes:
    num_missing: how often one was asked for that is not there.
    num_loaded: how many were not compiled but read from disk.
  """

  def __init__(self, compiled: dict[Key, Any], num_loaded: int = 0):
    self._compiled = compiled
    self.num_missing = 0
    self.num_loaded = num_loaded

  def __getitem__(self, key: Key) -> Any:
    if key not in self._compiled:
      self.num_missing += 1
      names = ', '.join(map(str, self._compiled))
      raise MissingProgram(f'no program {key}; compiled are {names}')
    return self._compiled[key]

  def __iter__(self) -> Iterator[Key]:
    return iter(self._compiled)

  def __len__(self) -> int:
    return len(self._compiled)


def sources(
  target,
  drafter,
  state: round_lib.State,
  shapes: Shapes,
  max_len: int,
  mesh: Mesh | None = None,
) -> dict[Key, Source]:
  """All programs; nothing is traced yet.

  They take target and drafter by their leaves (`leaves`).
  On a mesh, models and state lie there already (`placement`).
  """
  scalar = jax.ShapeDtypeStruct((), jnp.int32)
  capacity = state.cache.table.page_ids.shape[1]
  flag = jax.ShapeDtypeStruct((), jnp.bool_)
  of_start = start(max_len, capacity)
  num_whole, num_real = of_start.sizes()

  # How what comes out lies: a state, or anything else.
  lies, whole = None, None
  if mesh is not None:
    lies, whole = placement.shardings(state), placement.whole(mesh)

  def source(function, models, donated, gives, *args):
    if mesh is not None:
      models, args = placement.described((models, args), mesh)
    return Source(function, models, args, donated, gives)

  found = {
    Key(ADMIT): source(
      functools.partial(reading.admit_packed, of=of_start),
      (drafter,),
      1,
      lies,
      state,
      jax.ShapeDtypeStruct((num_whole,), jnp.int32),
      jax.ShapeDtypeStruct((num_real,), jnp.float32),
    ),
    Key(START): source(prefill.start, (), 0, lies, state, scalar, scalar),
  }
  for chunk in shapes.chunk_sizes:
    tokens = jax.ShapeDtypeStruct((chunk,), jnp.int32)
    found[Key(PREFILL, chunk)] = source(
      reading.prefill,
      (target, drafter),
      2,
      (lies, whole),
      state,
      scalar,
      tokens,
      scalar,
      scalar,
      flag,
    )
  for rows in shapes.row_buckets:
    if shapes.is_split and drafter is not None:
      found[Key(PROPOSE, rows)] = source(
        functools.partial(launch.propose, rule=shapes.rule),
        (drafter,),
        (),
        whole,
        state,
        *places(rows, capacity),
      )
    for form in (PLAIN,) if drafter is None else (FUSED, PLAIN):
      num_drafts = drafter.num_draft_tokens if form == FUSED else 0
      sizes = shapes.sizes(rows, num_drafts)
      function = functools.partial(
        bare.run,
        policies=shapes.policies,
        rule=shapes.rule,
        sizes=sizes,
        width=shapes.num_rounds * (num_drafts + 1),
        is_plain=form == PLAIN,
      )
      found[Key(form, rows)] = source(
        function,
        (target, drafter),
        2,
        (lies, whole),
        state,
        bare.of(
          inputs(
            rows,
            capacity,
            len(sizes),
            state.stats.num_drafted.shape[1],
            given(target, drafter, state, rows, form, shapes),
          )
        ),
      )
  return found


def start(max_len: int, capacity: int) -> packed.Layout:
  """How a row's start travels to the device."""
  return reading.layout(max_len, capacity, NUM_STOP_IDS)


def places(
  rows: int, capacity: int
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
  """The shapes of a launch's rows and of their pages."""
  whole = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  return whole((rows,)), whole((rows, capacity))


def given(
  target, drafter, state: round_lib.State, rows: int, form: str, shapes: Shapes
) -> given_lib.Given | None:
  """The shapes of what the host says of a round, where it may."""
  if not shapes.is_split:
    return None
  whole = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  if form == FUSED:
    capacity = state.cache.table.page_ids.shape[1]
    draft = jax.eval_shape(
      functools.partial(launch.propose, rule=shapes.rule),
      drafter,
      state,
      *places(rows, capacity),
    )
  else:
    draft = jax.eval_shape(tree.plain, whole((rows,)))
  num_nodes = draft.tokens.shape[1]
  num_words = grammar.num_words(target.vocab_size)
  return given_lib.Given(
    is_given=jax.ShapeDtypeStruct((), jnp.bool_),
    draft=draft,
    nodes=whole((rows, num_nodes)),
    parents=whole((rows, num_nodes)),
    num_nodes=whole((rows,)),
    words=jax.ShapeDtypeStruct((rows, num_nodes, num_words), jnp.uint32),
    has_mask=jax.ShapeDtypeStruct((rows,), jnp.bool_),
  )


def inputs(
  rows: int,
  capacity: int,
  num_budgets: int,
  num_drafts: int,
  of_host: given_lib.Given | None,
) -> launch.Inputs:
  """The shapes of a launch's inputs."""
  row_ids, page_ids = places(rows, capacity)
  whole = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
  real = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
  return launch.Inputs(
    rows=row_ids,
    page_ids=page_ids,
    num_rounds=whole(()),
    wants_rows=jax.ShapeDtypeStruct((), jnp.bool_),
    policy=whole(()),
    budget=whole(()),
    is_measuring=jax.ShapeDtypeStruct((), jnp.bool_),
    wants_lessons=jax.ShapeDtypeStruct((), jnp.bool_),
    costs=costs_lib.Costs(
      nodes=whole((num_budgets,)),
      verify_s=real((num_budgets,)),
      draft_s=real(()),
    ),
    given=of_host,
    temperatures=real((rows, num_drafts)),
  )


def compile_all(
  found: dict[Key, Source],
  on_progress: Callable[[int, int, str], None] | None = None,
  kept: executables.Folder | None = None,
) -> Programs:
  """Compiles every program, or loads it; several at a time.

  Args:
    found: of `sources`.
    on_progress: called with (programs done, all of them, the key just done).
    kept: where they are kept between starts; None: nowhere.
  """

  def ready(key):
    source = found[key]
    if kept is None:
      return source.lower().compile(), False
    return kept.load_or_compile(str(key), source)

  compiled = {}
  workers = min(len(found), os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    # The largest first, so that no one is left alone with it at the end.
    order = sorted(found, key=lambda key: (key.form == FUSED, key.size))[::-1]
    running = {pool.submit(ready, key): key for key in order}
    for done in concurrent.futures.as_completed(running):
      key = running[done]
      compiled[key] = done.result()
      if on_progress is not None:
        on_progress(len(compiled), len(found), str(key))
  return Programs(
    {key: compiled[key][0] for key in found},
    num_loaded=sum(is_loaded for _, is_loaded in compiled.values()),
  )
