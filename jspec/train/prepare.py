# SPDX-License-Identifier: MIT
"""Before the first step: documents, split, drafter and the store of taps."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jspec import errors
from jspec.data import dropping, examples, features, mixture, sources
from jspec.drafters import vocab
from jspec.train import build, capture, initial, mesh, placing, settings


def documents(
  config: settings.TrainConfig,
  loaded: Any,
  on_message: Callable[[str], None] = print,
) -> list[examples.Document]:
  """Reads the training answers and says what was left out.

  Args:
    config: of the run.
    loaded: the target, or what `opening.open_target` knows of it.
    on_message: takes what a person should read.

  Raises:
    UserError: a source cannot be read, holds no document, or holds more bad
      records than `data.max_bad_records`.
  """
  render = None
  if loaded.template is not None:
    render = functools.partial(
      examples.render,
      loaded.tokenizer,
      loaded.template,
      config.data.chat_template_kwargs or {},
    )
  vocab_size = getattr(loaded, 'model', loaded).config.vocab_size
  found, dropped = [], dropping.Dropped(config.data.max_bad_records)
  for domain, spec in config.data.all_sources:
    num_bad = dropped.num
    read = examples.Examples(
      sources.located(spec, dropped),
      max_len=config.data.max_len,
      vocab_size=vocab_size,
      render=render,
      domain=domain,
      on_bad=dropped,
    )
    limit = config.data.max_documents or None
    some = list(itertools.islice(read, limit))
    counts = [f'{num} {reason}' for reason, num in read.counts.items()]
    if dropped.num > num_bad:
      counts.append(f'{dropped.num - num_bad} bad')
    said = ', '.join(counts)
    on_message(f'data: {spec}: {said}')
    if not some:
      raise errors.UserError(f'{spec} holds no document to train on ({said})')
    found += some
  if dropped.num:
    on_message(
      f'data: {dropped.num} bad records were dropped, the first: '
      f'{dropped.first}'
    )
  return found


def split(
  found: Sequence[examples.Document],
  held_out: float,
  domains: Sequence[str] | None = None,
  weights: Mapping[str, float] | None = None,
) -> tuple[list[int], list[int]]:
  """Numbers of the training and of the held-out documents.

  Args:
    found: all documents.
    held_out: share that is not trained on.
    domains: only documents of these; None takes all.
    weights: of the domains; one of weight 0 is neither trained on nor held out.

  Raises:
    UserError: a domain that is not there, weights that do not fit the domains,
      or nothing on one of the two sides.
  """
  missing = set(domains or ()) - {document.domain for document in found}
  if missing:
    there = sorted({document.domain for document in found})
    raise errors.UserError(
      f'data.domains names `{min(missing)}`, of which there is no document;'
      f' there are {there}'
    )
  if weights:
    there = {document.domain for document in found}
    there &= set(domains or there)
    domains = mixture.drawn_domains(there, weights)
  train, held = [], []
  for number, document in enumerate(found):
    if domains is not None and document.domain not in domains:
      continue
    is_held = examples.is_held_out(document.group or document.id, held_out)
    (held if is_held else train).append(number)
  if not train or not held:
    raise errors.UserError(
      f'{len(found)} documents split into {len(train)} to train on and '
      f'{len(held)} held out: give more answers or raise eval.held_out'
    )
  return train, held


def drafter(
  config: settings.TrainConfig,
  loaded: Any,
  train_documents: Sequence[examples.Document],
) -> Any:
  """Builds the drafter, with fresh weights or those of `drafter.init`.

  A reduced vocabulary is counted anew from the training answers of this very
  run, so no map of another run can be picked up.

  Raises:
    UserError: the target caps its logits, which no teacher here does.
  """
  if loaded.model.config.logit_cap is not None:
    raise errors.UserError(
      f'{loaded.name} caps its logits (final_logit_softcapping): training for'
      ' such a target is not supported'
    )
  make = build.resolve(config.drafter.build)
  if config.drafter.init:
    return initial.drafter(config, loaded, make)
  draft_token_ids = None
  if config.drafter.draft_vocab_size is not None:
    draft_token_ids = vocab.choose_by_frequency(
      examples.answer_counts(train_documents, loaded.model.vocab_size),
      config.drafter.draft_vocab_size,
      always=tuple(loaded.stop_ids),
    )
  return make(
    loaded,
    config.drafter.options,
    draft_token_ids,
    jax.random.key(config.seed),
  )


def fill(
  config: settings.TrainConfig,
  loaded: Any,
  found: Sequence[examples.Document],
  taps: Sequence[int],
  on_message: Callable[[str], None] = print,
) -> capture.Cost:
  """Captures what is missing in the store, and says what that took.

  Args:
    config: of the run; it names the store, its layers and its dtype.
    loaded: the target.
    found: all documents.
    taps: layers that the drafter wants.
    on_message: takes what a person should read.

  Raises:
    UserError: the store is of something else or cannot be written, sizes of the
      mesh do not fit the devices, or several processes would fill it.
  """
  if features.exists(config.data.store):
    return capture.Cost()
  if jax.process_count() > 1:
    raise errors.UserError(
      f'{config.data.store} is not filled, which one process must do: run'
      ' `jspec capture` with this config first'
    )
  sizes = mesh.sizes(config.mesh, jax.device_count())
  shares = math.prod(sizes[axis] for axis in mesh.ROWS)
  # As many rows as share out: how many changes nothing but the time.
  num_rows = -(-config.data.num_rows // shares) * shares
  data = dataclasses.replace(config.data, num_rows=num_rows)
  model, devices = loaded.model, mesh.make(config.mesh, data)
  if devices.size == 1:
    devices = None
  else:
    model = placing.target_of(loaded, devices, 'float32')
  return capture.capture(
    model,
    found,
    config.data.store,
    _wanted(config, loaded, found, taps),
    row_len=config.data.row_len,
    num_rows=num_rows,
    mesh=devices,
    on_progress=on_message,
  )


def store(
  config: settings.TrainConfig,
  loaded: Any,
  found: Sequence[examples.Document],
  taps: Sequence[int],
  on_message: Callable[[str], None] = print,
) -> features.Store:
  """Opens the store of taps; takes what `fill` does, and calls it first.

  Raises:
    UserError: the store is of something else.
  """
  fill(config, loaded, found, taps, on_message)
  wanted = _wanted(config, loaded, found, taps)
  opened = features.Store(
    config.data.store,
    target=loaded.label,
    fingerprint=loaded.fingerprint,
    taps=taps,
    template=wanted.template,
    on_message=on_message,
  )
  if opened.settings.documents != wanted.documents:
    raise errors.UserError(
      f'{config.data.store} holds the taps of other documents than '
      f'{config.data.named}: use another data.store'
    )
  if opened.settings.dtype != wanted.dtype:
    raise errors.UserError(
      f'{config.data.store} holds taps as {opened.settings.dtype} but '
      f'data.store_dtype is {wanted.dtype}: change one of them'
    )
  return opened


def _wanted(config, loaded, found, taps):
  return capture.settings_for(
    loaded,
    found,
    taps=config.data.store_taps or taps,
    dtype=config.data.store_dtype,
  )
