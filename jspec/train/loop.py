# SPDX-License-Identifier: MIT
"""The training run, top to bottom.

WORKDIR/config.json       what this run is; the same config resumes it
WORKDIR/provenance.json   command, commit, versions, device
WORKDIR/metrics.jsonl     one row a step
WORKDIR/checkpoints/      newest and best
WORKDIR/export/           the best drafter in the interchange format
WORKDIR/profile/          a trace of some steps, if the config wants one
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from jspec import config as config_lib
from jspec import errors, provenance, supervised
from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory, orbax
from jspec.data import pipeline, retried
from jspec.train import (
  agreement,
  build,
  disk,
  export,
  goodput,
  initial,
  layout,
  mesh,
  optim,
  placing,
  preemption,
  prepare,
  programs,
  settings,
  step,
  trace,
  workdir,
)


def run(
  config: Any,
  folder: pathlib.Path | str,
  *,
  loaded: Any,
  must_resume: bool = False,
  evaluate: Callable[[Any], dict[str, Any]] | None = None,
  on_progress: Callable[[int, dict[str, Any]], None] | None = None,
  on_message: Callable[[str], None] = print,
) -> pathlib.Path:
  """Trains a drafter, or goes on where the folder's run stopped.

  Args:
    config: a ConfigDict or a `settings.TrainConfig`.
    folder: the workdir; empty, absent, or of a run with the same config.
    loaded: the target as `jspec.loading.load_target` returns it.
    must_resume: refuse to start where there is no checkpoint to go on from.
    evaluate: called with the drafter at every evaluation; what it returns
      (numbers, lists of them) is logged as `evaluate/NAME`: real decoding, for
      one, of which this package knows nothing (`jspec.evals.online`).
    on_progress: called with the step and its metrics.
    on_message: takes what a person should read.

  Returns:
    The folder of the exported drafter.

  Raises:
    UserError: the config, the data or the folder do not fit.
    SystemExit: a SIGTERM asked for it; the step in hand is saved.
  """
  with disk.explained(folder), contextlib.ExitStack() as cleanup:
    return _run(
      cleanup,
      config,
      folder,
      loaded,
      must_resume,
      evaluate,
      on_progress,
      on_message,
    )


def _run(
  cleanup,
  config,
  folder,
  loaded,
  must_resume,
  evaluate,
  on_progress,
  on_message,
):
  """Does what `run` says; `cleanup` closes what was opened, come what may."""
  started = time.monotonic()
  clock = goodput.Clock()
  cleanup.callback(clock.close)

  # --- config -------------------------------------------------------------
  if not isinstance(config, settings.TrainConfig):
    config = config_lib.build(settings.TrainConfig, config)
  folder = pathlib.Path(folder).absolute()
  is_first, on_message = agreement.is_first(), agreement.told(on_message)
  if must_resume and not inventory.read(folder, settings.BEST):
    raise errors.UserError(
      f'{folder} has no checkpoint to go on from: name another --workdir, or'
      ' start without --resume'
    )
  owner = supervised.Owner()  # Of all that runs in the background.
  num_micro_batches = config.optim.num_micro_batches
  devices = mesh.make(config.mesh, config.data, num_micro_batches)

  # --- data ---------------------------------------------------------------
  found = prepare.documents(config, loaded, on_message)
  train_numbers, held_numbers = prepare.split(
    found, config.eval.held_out, config.data.domains, config.data.weights
  )
  ours = workdir.check(folder, config, loaded, found)
  agreement.check_same(ours)

  # --- drafter ------------------------------------------------------------
  write_export = build.resolve(config.drafter.save)
  drafter = prepare.drafter(config, loaded, [found[n] for n in train_numbers])

  # --- taps: from the store, or from the target in the step ----------------
  if config.data.mode == 'store':
    num_layers = loaded.model.num_layers
    layers = step.captured(drafter, num_layers)
    source = prepare.store(config, loaded, found, layers, on_message)
    last_layer = num_layers - 1 if drafter.needs_last else None
    taps_of = step.stored_taps(tuple(drafter.taps), last_layer)
    target, judge, together = (), None, frozenset()
  else:
    source = pipeline.Documents(found)
    placed = placing.target_of(loaded, devices, config.compute_dtype)
    together = placing.together(placed, devices)
    graphdef, target = nnx.split(placed)
    taps_of = step.online_taps(
      graphdef, tuple(drafter.taps), needs_last=drafter.needs_last
    )
    needs_judge = getattr(drafter, 'needs_judge', False)
    judge = step.judge_of(graphdef) if needs_judge else None
  source = retried.Retried(source, config.data.max_retries)
  shape = {'row_len': config.data.row_len, 'num_rows': config.data.num_rows}
  batches = pipeline.training(
    source,
    train_numbers,
    seed=config.seed,
    domains=[found[n].domain for n in train_numbers],
    weights=config.data.weights,
    process=mesh.share_of_rows(devices),
    owner=owner,
    starving_s=config.data.starving_s,
    on_message=on_message,
    **shape,
  )
  cleanup.callback(batches.close)  # Its thread reads ahead.
  held_batches = pipeline.held_out(
    source, held_numbers, max_batches=config.eval.max_batches, **shape
  )

  # --- input scales, from the same few documents in every start ------------
  first = pipeline.held_out(source, train_numbers, max_batches=1, **shape)[0]
  drafter.calibrate(
    programs.draft_batch(taps_of, target, first, devices, together)
  )
  if config.drafter.init:
    initial.take_out_scales(drafter)
  parts = step.split(drafter)
  layout.check(devices, parts.params, target)
  frozen = placing.cast(parts.frozen, config.compute_dtype)
  frozen = placing.tree(frozen, devices)

  # --- state --------------------------------------------------------------
  optimizer = optim.optimizer(config.optim, config.num_steps)
  # Nothing was refused: from here on the folder is this run's.
  if is_first:
    workdir.claim(folder, ours)
  ema_decay = config.optim.ema_decay
  key = jax.random.key(config.seed)
  state = placing.state(
    parts, optimizer, key, devices, has_average=ema_decay > 0
  )
  train_step, eval_step = programs.build(
    parts,
    taps_of,
    judge,
    optimizer,
    state,
    devices,
    together=together,
    compute_dtype=config.compute_dtype,
    policy=config.remat,
    ema_decay=ema_decay,
    num_micro_batches=num_micro_batches,
  )
  num_params = sum(x.size for x in parts.params.values())
  on_message(
    f'train: {num_params / 1e6:.1f} M parameters on {devices.size} '
    f'{jax.devices()[0].device_kind}, {len(train_numbers)} documents, '
    f'{len(held_numbers)} held out'
  )

  # --- restore ------------------------------------------------------------
  checkpoints = orbax.Checkpoints(
    folder / 'checkpoints',
    metric=settings.BEST,
    keep_latest=config.checkpoint.keep_latest,
    keep_best=config.checkpoint.keep_best,
    on_message=on_message,
    owner=owner,
  )
  cleanup.callback(checkpoints.close)
  restored = checkpoints.latest(state)
  start = 0
  if restored is not None:
    state, start = restored.state, restored.step
    batches.set_state(restored.extra['batches'])
    on_message(f'train: resumed from step {start}')
  clock.resume(metrics_lib.read(folder / 'metrics.jsonl'), start)
  if is_first:
    metrics = metrics_lib.Metrics(
      folder,
      resume_step=start,
      tensorboard=config.tensorboard,
      print_every=config.print_every,
      show=on_message,
    )
    cleanup.callback(metrics.close)
    provenance.write(folder / 'provenance.json', resumed_from=start)

  # --- loop ---------------------------------------------------------------
  def drafter_of(state):
    return parts.merge(placing.local(state.result, devices), parts.frozen)

  def measure():
    values = _held_out(eval_step, state, frozen, target, held_batches, devices)
    if settings.BEST not in values:
      raise errors.UserError(
        f'the loss of {config.drafter.build} reports no `{settings.BEST}`: the'
        ' best checkpoint is chosen by it'
      )
    found = {f'held_out/{name}': x for name, x in values.items()}
    if evaluate is not None:
      whole = drafter_of(state)  # All processes bring it together.
      decoded = evaluate(whole) if is_first else {}
      found |= {f'evaluate/{name}': x for name, x in decoded.items()}
    return values, found

  traced = trace.Trace(config.profile, folder, on_message=on_message)
  cleanup.callback(traced.close)
  pending, num_in_a_row, last_time = None, 0, time.monotonic()
  preempted = preemption.Watch()
  cleanup.callback(preempted.stop)
  preempted.start()
  votes = agreement.Votes(devices)

  def flush(measured):
    """Writes the row of the step before, which is done by now."""
    nonlocal pending, num_in_a_row, last_time
    number, values = pending
    row = {name: np.asarray(x) for name, x in values.items()}
    row |= {'seconds': time.monotonic() - last_time, **measured}
    row['tokens_per_s'] = row['num_tokens'] / max(row['seconds'], 1e-9)
    last_time, pending = time.monotonic(), None
    num_in_a_row = num_in_a_row + 1 if row['skipped'] else 0
    if is_first:
      metrics.write(number, row)
    if on_progress is not None:
      on_progress(number, row)
    if num_in_a_row >= config.max_skipped:
      raise errors.UserError(
        f'{num_in_a_row} steps in a row had a loss or gradient that is not '
        'finite: lower optim.learning_rate'
      )

  clock.enter('steps')
  for number in range(start + 1, config.num_steps + 1):
    batch = clock.take(batches, pending and pending[1]['loss'])
    batch = placing.batch(batch, devices)
    owner.check()
    with traced.step(number, state):
      state, values = train_step(state, frozen, target, batch)
    values['data/wait_seconds'] = batches.wait_seconds
    values['data/num_retries'] = source.num_retries
    # The device works on this step while the host finishes the last one.
    if pending is not None:
      flush({})
    pending = number, values
    seconds = time.monotonic() - started
    is_asked, is_out_of_time = votes.count(
      preempted.is_asked, 0 < config.time_limit_s <= seconds
    )
    is_last = number == config.num_steps or is_out_of_time

    # --- checkpoint -------------------------------------------------------
    if is_last or number % config.eval.every == 0:
      jax.block_until_ready(state)
      seconds = time.monotonic() - last_time  # Of the step alone.
      with clock.during('evaluate'):
        held_out, measured = measure()
      # So a kill loses one row at most: that of the step being saved.
      with clock.during('save'):
        checkpoints.wait()
      flush({**measured, 'seconds': seconds, **clock.row()})
      num_skipped = int(state.num_skipped)
      if is_last and num_skipped == number:
        raise errors.UserError(
          f'not one of {number} steps had a loss and a gradient that are'
          ' finite, so nothing was learnt: lower optim.learning_rate'
        )
      # The row comes first: a kill in between repeats it, never loses it.
      with clock.during('save'):
        checkpoints.save(
          number, state, {'batches': batches.get_state()}, _scalars(held_out)
        )
      last_time = time.monotonic()
    elif is_asked:
      # No time to evaluate: NaN is never the best.
      flush({})
      unknown = {settings.BEST: float('nan')}
      checkpoints.save(number, state, {'batches': batches.get_state()}, unknown)
    if is_asked and not is_last:
      checkpoints.wait()
      on_message(
        f'train: SIGTERM: step {number} is saved; the same command goes on'
      )
      raise SystemExit(preemption.EXIT_CODE)
    if is_out_of_time:
      on_message(f'train: time limit after {number} steps')
      break

  if int(state.num_skipped):
    on_message(
      f'train: {int(state.num_skipped)} of {int(state.step)} steps were'
      ' skipped: loss or gradient not finite'
    )

  # --- export of the best -------------------------------------------------
  clock.enter('save')
  best = checkpoints.best_step()
  best_state = checkpoints.restore(best, state).state
  out, best_drafter = folder / 'export', drafter_of(best_state)
  if is_first:
    export.save(
      write_export,
      best_drafter,
      out,
      loaded,
      best,
      config.data.chat_template_kwargs or {},
    )
  score = checkpoints.metrics(best)[settings.BEST]
  on_message(
    f'train: step {best} is best, {settings.BEST} {score:.3f}, saved in {out}'
  )
  on_message(clock.line())
  return out


def _held_out(eval_step, state, frozen, target, batches, devices):
  """Averages over the held-out batches, each weighted by its blocks."""
  totals: dict[str, Any] = {}
  total_weight = 0.0
  for index, batch in enumerate(batches):
    values = eval_step(
      state.result,
      frozen,
      target,
      placing.batch(batch, devices, is_whole=True),
      # The same in every evaluation: anchors must not move the metric.
      placing.key(0, index, devices),
    )
    values = {name: np.asarray(x, np.float64) for name, x in values.items()}
    weight = float(values.get('num_blocks', 1.0))
    total_weight += weight
    for name, value in values.items():
      share = value if name.startswith('num_') else value * weight
      totals[name] = totals.get(name, 0) + share
  return {
    name: value if name.startswith('num_') else value / max(total_weight, 1e-9)
    for name, value in totals.items()
  }


def _scalars(values):
  return {name: float(x) for name, x in values.items() if np.ndim(x) == 0}
