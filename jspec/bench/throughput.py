# SPDX-License-Identifier: MIT
"""Tokens a second of an engine, policy by policy, at several concurrencies.

One stream of requests runs through one engine, and the policies take turns,
launch by launch: whatever slows the machine for a while slows all of them, and
all see the same requests at the same places. So ratios hold where times do not.

The loop is closed: so many requests are in flight, and who has an answer sends
the next. From 8 requests on, an eighth of them may be missing before they are
sent together; else hardly a launch of many rows would do nothing but rounds,
and only those count: prefill is the same for all.

Policies (and the names of `contenders`) are also compared with what a fixed
depth and an oracle would have done in the rounds of `full` (`replay`), with the
costs that were measured. An oracle that may leave out drafting is the measure
of those that may (`plain`, `guarded`); one that always drafts, of the others.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jspec import errors
from jspec.bench import contenders, replay
from jspec.bench import recorder as recorder_lib
from jspec.depth import guard, static
from jspec.serve import asks
from jspec.serve import engine as engine_lib

Progress = Callable[[int, int], None] | None
MISSING = 8  # One of so many requests may be missing.
REPLAYED = ('share_of_oracle', 'of_best_fixed', 'kept_at_equal_nodes')
_PATIENCE = 50  # launches for each that must count


def run(
  engine: engine_lib.Engine,
  names: Sequence[str],
  requests: Sequence[tuple[Sequence[int], asks.Ask]],
  *,
  concurrencies: Sequence[int],
  num_launches: int,
  on_progress: Progress = None,
) -> dict[str, Any]:
  """Measures every name at every concurrency.

  Args:
    engine: has nothing else to do; its policies are those of `names`, in order.
    names: policies, and any of plain, full, guarded.
    requests: prompts and what is asked; used over and over, with other seeds.
    concurrencies: requests in flight.
    num_launches: counted launches of each name at each concurrency.
    on_progress: called with (launches done, launches in all).

  Returns:
    JSON values; `throughput_report` shows them.

  Raises:
    UserError: as `contenders.policies`; or hardly a launch reads no prompt.
  """
  contenders.policies(names)
  found = []
  total = len(concurrencies) * num_launches * len(names)
  for i, concurrency in enumerate(concurrencies):
    done = i * num_launches * len(names)
    recorder = recorder_lib.Recorder(engine, num_warm_up=1)
    began = time.perf_counter()
    _drive(
      engine,
      names,
      requests,
      recorder,
      concurrency=concurrency,
      num_launches=num_launches,
      on_progress=lambda n, done=done: (
        on_progress and on_progress(done + n, total)
      ),
    )
    seconds = time.perf_counter() - began
    found.append(
      {
        'concurrency': concurrency,
        'host_share': recorder.host_s / seconds,
        'idle_share_at_most': recorder.idle_s / seconds,
        **_compared(engine, recorder, names),
      }
    )
  return {
    'benchmark': 'throughput',
    'names': list(names),
    'concurrencies': found,
  }


def _drive(
  engine,
  names,
  requests,
  recorder,
  *,
  concurrency,
  num_launches,
  on_progress,
):
  """Keeps requests running until all names had their launches."""
  stream = _endless(requests)
  running = set()
  while True:
    counted = [recorder.sums[n].num_launches for n in names]
    on_progress(sum(min(n, num_launches) for n in counted))
    if min(counted) >= num_launches:
      break
    _check_patience(recorder, names, num_launches)
    began = time.perf_counter()
    if len(running) < concurrency - concurrency // MISSING:
      while len(running) < concurrency:
        running.add(engine.submit(*next(stream)))
    host_s = time.perf_counter() - began
    # In turns; who missed a turn, because a prompt was read, catches up.
    behind = [
      n + recorder.on_way(name) for n, name in zip(counted, names, strict=True)
    ]
    name = names[int(np.argmin(behind))]
    contenders.put(engine, names, name)
    for event in recorder.visit(name, host_s):
      if event.finish_reason is not None:
        running.discard(event.request_id)
  for request_id in running:
    engine.cancel(request_id)
  contenders.leave(engine)


def _check_patience(recorder, names, num_launches):
  for name in names:
    sums = recorder.sums[name]
    if sums.num_back > _PATIENCE * num_launches + 100:
      raise errors.UserError(
        f'{name}: of {sums.num_back} launches only {sums.num_launches} read no'
        ' prompt; raise --max-tokens'
      )


def _endless(requests):
  for lap in itertools.count():
    for i, (prompt, ask) in enumerate(requests):
      params = dataclasses.replace(
        ask.params, seed=(ask.params.seed + 7919 * lap + i) % 2**32
      )
      yield prompt, dataclasses.replace(ask, params=params)


def _compared(engine, recorder, names):
  """Figures of all names, and what they are measured by."""
  lines = {name: recorder_lib.figures(recorder.sums[name]) for name in names}
  for line in lines.values():
    for other in (contenders.PLAIN, contenders.FULL):
      ratio = None
      if other in lines:
        ratio = line['tokens_per_second'] / lines[other]['tokens_per_second']
      line[f'over_{other}'] = ratio
  own = contenders.policies(names)
  policies = dict(zip(own, engine.sizes.policies, strict=True)) if own else {}
  played = _played(recorder, lines, policies, engine.sizes.policies[0])
  return {'results': lines, **played}


def _played(recorder, lines, policies, first):
  """Adds what the replay says to the lines; returns what they are held to."""
  rounds = recorder.rounds
  for line in lines.values():
    line |= dict.fromkeys(REPLAYED)
  if not rounds:
    return {'best_fixed': None, 'oracle': None, 'num_replayed': 0}
  fixed = replay.fixed(rounds)
  depth = max(fixed, key=fixed.get)
  oracle = {
    name: replay.oracle(rounds, may_skip=may_skip)
    for name, may_skip in (('drafting', False), ('any', True))
  }
  totals = {
    guard.PLAIN: replay.plain(rounds),
    guard.FULL: replay.planned(rounds, static.Static()),
  }
  for name, line in lines.items():
    policy = policies.get(name, first)
    if guard.ADAPTIVE in line['rounds_by_form']:
      totals[guard.ADAPTIVE] = replay.planned(rounds, policy)
    rate = replay.mixed(totals, line['rounds_by_form']).rate
    may_skip = name in (contenders.PLAIN, contenders.GUARDED)
    line['share_of_oracle'] = rate / oracle['any' if may_skip else 'drafting']
    line['of_best_fixed'] = rate / fixed[depth]
    if name in policies:
      line['kept_at_equal_nodes'] = replay.over_uniform(rounds, policy)
  return {
    'best_fixed': {'depth': depth, 'tokens_per_second': fixed},
    'oracle': oracle,
    'num_replayed': len(rounds),
  }
