# SPDX-License-Identifier: MIT
"""The frozen form of a training config; field names are the config's keys."""

import dataclasses
import operator
from typing import Any

from jspec import errors
from jspec.data import places
from jspec.nn import remat
from jspec.train import mesh as mesh_lib
from jspec.train import optim as optim_lib

MODES = ('store', 'online')
DTYPES = ('float32', 'bfloat16')
# Held-out metric of the best checkpoint: 1 + mean length of the joint prefix.
BEST = 'tokens_per_round'


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig:
  """Which drafter to build.

  Attributes:
    build: `module:attr` of a function like `jspec.train.build:dflash`.
    save: `module:attr` of a function like `jspec.drafters.interchange:save`.
    draft_vocab_size: the head scores only this many tokens, the most frequent
      in the training answers; None scores all.
    init: a drafter's folder whose weights training begins with; '' for fresh
      ones. The config must describe that very drafter.
    options: what `build` reads; it refuses what it does not know.
  """

  build: str
  save: str = 'jspec.drafters.interchange:save'
  draft_vocab_size: int | None = None
  init: str = ''
  options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
  """What to train on and how it is packed.

  Attributes:
    answers: what the target wrote: a source as `data.sources` reads it; '' if
      there are `sources`.
    sources: several sources by name; its name is the domain of a source.
    weights: how often a document of each domain is drawn, relative to the other
      domains; None draws every document equally often. 0 leaves a domain out.
    chat_template_kwargs: what the chat template is rendered with, such as
      `enable_thinking`; a record's own go before them.
    max_bad_records: so many unreadable or unusable records are dropped.
    max_retries: so often a read of the store that failed is tried again.
    starving_s: seconds without a batch after which it is said.
    mode: 'store' reads captured taps, 'online' runs the target in the step.
    store: folder of the captured taps ('store' mode), here or in object storage
      (`data.places`).
    store_taps: target layers to capture; None captures what this drafter wants.
      Give the union where several drafters are to share a store.
    store_dtype: how captured taps are stored: float32, bfloat16 or int8.
    domains: train only on documents of these domains (the `domain` of an
      answer); None takes all. The store holds all, whatever is trained on.
    max_documents: use only the first ones of a source; 0 uses all.
    max_len: longer documents are cut to it.
    row_len: tokens in a packed row.
    num_rows: rows in a batch.
  """

  answers: str = ''
  sources: dict[str, str] | None = None
  weights: dict[str, float] | None = None
  chat_template_kwargs: dict[str, Any] | None = None
  max_bad_records: int = 0
  max_retries: int = 3
  starving_s: float = 30.0
  mode: str = 'store'
  store: str = ''
  store_taps: tuple[int, ...] | None = None
  store_dtype: str = 'bfloat16'
  domains: tuple[str, ...] | None = None
  max_documents: int = 0
  max_len: int = 512
  row_len: int = 512
  num_rows: int = 4

  @property
  def all_sources(self) -> list[tuple[str, str]]:
    """Domain and source; the domain of `answers` is '', what records say."""
    return list((self.sources or {'': self.answers}).items())

  @property
  def named(self) -> str:
    """The sources, for messages."""
    return ', '.join(spec for _, spec in self.all_sources)

  def check(self) -> None:
    """Refuses values that fit no run."""
    if bool(self.answers) == bool(self.sources):
      raise errors.UserError(
        'data.answers and data.sources: give exactly one of them, the other as'
        " '' or none"
      )
    if '' in (self.sources or {}) or '' in (self.sources or {}).values():
      raise errors.UserError(
        'data.sources: every source needs a name and a file, as in math=a.jsonl'
      )
    if self.max_bad_records < 0:
      raise errors.UserError(
        f'data.max_bad_records is {self.max_bad_records}: 0 drops none'
      )
    if self.max_retries < 0 or not self.starving_s > 0:
      raise errors.UserError(
        f'data.max_retries is {self.max_retries} and data.starving_s is'
        f' {self.starving_s}: give a count from 0 and seconds above it'
      )
    values = list((self.weights or {}).values())
    if any(not 0 <= x < float('inf') for x in values) or (
      values and not any(values)
    ):
      raise errors.UserError(
        f'data.weights are {values}: give numbers from 0, one above it'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
  """How the best checkpoint is found.

  Attributes:
    held_out: share of documents never trained on, chosen by a hash of the id.
    every: steps between evaluations; each ends in a checkpoint.
    max_batches: batches of held-out rows, the same each time.
    prompts: a source of prompts that are decoded at every evaluation, as
      `--prompts` reads it; '' for none. None of them may be trained on.
    num_prompts: only the first ones; 0 takes all.
    max_tokens: of an answer.
  """

  held_out: float = 0.02
  every: int = 100
  max_batches: int = 8
  prompts: str = ''
  num_prompts: int = 16
  max_tokens: int = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """How many checkpoints stay: the newest and, besides, the best."""

  keep_latest: int = 2
  keep_best: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileConfig:
  """Which steps are traced for xprof, into the workdir.

  Attributes:
    start: number of the first one; the first steps of a run compile.
    num_steps: how many; 0 for none.
  """

  start: int = 10
  num_steps: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """A whole training run.

  Attributes:
    target: what `jspec.loading.load_target` reads.
    mesh: how devices share the work.
    remat: what a layer of the drafter keeps for its gradient (`nn.remat`).
    compute_dtype: float32, or bfloat16 for matmuls and activations of drafter
      and target, with parameters, optimiser state and losses in float32.
    seed: of weights, order, anchors.
    num_steps: optimiser steps.
    time_limit_s: stop after so many seconds of wall clock; 0 for no limit.
    max_skipped: give up after so many steps in a row that were not finite.
    tensorboard: also write TensorBoard events.
    print_every: steps between lines on stdout; 0 for evaluations only.
    profile: a trace of some steps.
  """

  target: str
  drafter: DrafterConfig
  data: DataConfig
  mesh: mesh_lib.MeshConfig = mesh_lib.MeshConfig()
  optim: optim_lib.OptimConfig = optim_lib.OptimConfig()
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  remat: str = 'none'
  compute_dtype: str = 'float32'
  seed: int = 0
  num_steps: int = 1000
  time_limit_s: float = 0.0
  max_skipped: int = 20
  tensorboard: bool = False
  print_every: int = 10
  profile: ProfileConfig = ProfileConfig()

  def __post_init__(self):
    self.data.check()
    if self.data.mode not in MODES:
      raise errors.UserError(
        f'data.mode is {self.data.mode}: choose one of {MODES}'
      )
    for name, known in (
      ('remat', remat.POLICIES),
      ('compute_dtype', DTYPES),
    ):
      value = getattr(self, name)
      if value not in known:
        raise errors.UserError(
          f'{name} is {value}: choose one of {", ".join(known)}'
        )
    if self.data.mode == 'store' and not self.data.store:
      raise errors.UserError('data.store is empty: name the folder of the taps')
    if self.data.mode == 'store':
      places.folder(self.data.store)
    if not 0 < self.eval.held_out < 1:
      raise errors.UserError(
        f'eval.held_out is {self.eval.held_out}: give a share between 0 and 1'
      )
    least = {
      **dict.fromkeys(('num_steps', 'data.num_rows', 'data.row_len'), 1),
      **{'eval.every': 1, 'eval.max_tokens': 1, 'eval.num_prompts': 0},
      **{'profile.start': 1, 'profile.num_steps': 0, 'print_every': 0},
    }
    for name, bound in least.items():
      value = operator.attrgetter(name)(self)
      if value < bound:
        raise errors.UserError(
          f'{name} is {value}: it must be at least {bound}'
        )
    optim_lib.schedule(self.optim, self.num_steps)  # It refuses what is odd.
    last = self.profile.start + self.profile.num_steps - 1
    if self.profile.num_steps and last > self.num_steps:
      raise errors.UserError(
        f'profile.start and profile.num_steps end with step {last}, but the run'
        f' has {self.num_steps} steps: lower one of them'
      )
