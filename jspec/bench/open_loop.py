# SPDX-License-Identifier: MIT
"""Requests that come when they come: latencies of an engine, policy by policy.

Every name replays the same arrivals against the clock, so names cannot take
turns launch by launch. The trace is cut into windows instead, each is replayed
by all names, and every other window in the opposite order:

  window 1   plain  full  dcut        time passed before a name's turn, summed
  window 2   dcut   full  plain       over both: the same for all

A machine that slows down or speeds up steadily thus does the same to all of
them; one that is disturbed for less than a window is not cancelled, and the
ratios of single windows (`over_plain_by_window`) show by how much. A window
begins with nothing running and an empty prefix cache, and ends when all of its
answers have.

  time to first token     from the arrival, waiting included
  time per output token   from the first token to the last, over those behind it
  goodput                 tokens a second of requests within both limits; unless
                          they are given, what nine of ten requests of plain
                          decoding (or the first name) keep

Tokens arrive in launches of several rounds. While requests come more slowly
than they are answered, tokens a second are those of the trace, whoever answers;
`tokens_per_busy_second` leaves out the time when nothing was to do.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jspec.bench import contenders
from jspec.bench import recorder as recorder_lib
from jspec.bench import traffic as traffic_lib
from jspec.decode import sampling
from jspec.serve import asks, warm_up
from jspec.serve import engine as engine_lib

NUM_WINDOWS = 4
PERCENTILES = (50, 90, 99)


@dataclasses.dataclass
class Replay:
  """One name's answers to some requests.

  Attributes:
    first_s: from arrival to the first token, [N]; NaN until then.
    end_s: from arrival to the last.
    num_tokens: [N].
    seconds: from the first arrival to the last token.
    busy_s: of them with a request in the engine.
  """

  first_s: np.ndarray
  end_s: np.ndarray
  num_tokens: np.ndarray
  seconds: float = 0.0
  busy_s: float = 0.0

  def per_token_s(self) -> np.ndarray:
    """Seconds per token behind the first, of answers that have two."""
    has_two = self.num_tokens > 1
    return ((self.end_s - self.first_s)[has_two]) / (
      self.num_tokens[has_two] - 1
    )


def run(
  engine: engine_lib.Engine,
  names: Sequence[str],
  traffic: traffic_lib.Traffic,
  params: sampling.SamplingParams,
  *,
  drafters: Sequence[str | None] = (None,),
  limits: tuple[float, float] | None = None,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Replays the requests under every name.

  Args:
    engine: has nothing else to do; its policies are those of `names`, in order.
    names: policies, and any of plain, full, guarded.
    traffic: N requests.
    params: of all requests, but for seeds and the number of tokens.
    drafters: whom requests name in turn; None: nobody.
    limits: most seconds to the first token, and per token behind it, of a
      request that counts for goodput.
    on_progress: called with (requests answered, all of them).

  Returns:
    JSON values; `table` shows them.

  Raises:
    UserError: as `contenders.policies`.
  """
  contenders.policies(names)
  windows = windows_of(len(traffic.prompts))
  replays = {name: [] for name in names}
  recorders = {name: recorder_lib.Recorder(engine) for name in names}
  total, done = len(names) * len(traffic.prompts), 0
  for i, (begin, end) in enumerate(windows):
    for name in names if i % 2 == 0 else reversed(names):
      engine.forget_prefixes()
      contenders.put(engine, names, name)
      requests = [
        (
          traffic.prompts[k],
          asks.Ask(
            params=dataclasses.replace(
              params,
              seed=(params.seed + k) % 2**32,
              max_tokens=int(traffic.max_tokens[k]),
            ),
            drafter=drafters[k % len(drafters)],
          ),
        )
        for k in range(begin, end)
      ]
      arrival_s = traffic.arrival_s[begin:end] - traffic.arrival_s[begin]
      recorder = recorders[name]
      replays[name].append(
        replay(
          engine,
          arrival_s,
          requests,
          lambda recorder=recorder, name=name: recorder.visit(name),
        )
      )
      done += end - begin
      if on_progress is not None:
        on_progress(done, total)
  contenders.leave(engine)
  if limits is None:
    first = contenders.PLAIN if contenders.PLAIN in names else names[0]
    limits = _kept_by_nine_of_ten(replays[first])
  results = {
    name: figures(replays[name], limits) | _rows(recorders[name].sums[name])
    for name in names
  }
  for name, found in results.items():
    found |= _over_plain(results, replays, name)
  return {
    'benchmark': 'trace',
    'names': list(names),
    'num_windows': len(windows),
    'limits': {
      'first_token_s': _finite(limits[0]),
      'per_token_s': _finite(limits[1]),
    },
    'trace': traffic_lib.about(traffic),
    'results': results,
  }


def _finite(value):
  return float(value) if np.isfinite(value) else None


def plain_rate(engine: engine_lib.Engine) -> float:
  """Tokens a second of plain decoding with all rows, by the cost table."""
  rows = engine.sizes.row_buckets[-1]
  return rows / engine.costs.seconds(rows, rows, warm_up.CONTEXT)


def windows_of(num_requests: int) -> list[tuple[int, int]]:
  """First and end of each window, an even number of them where there can be."""
  number = NUM_WINDOWS if num_requests >= NUM_WINDOWS else 1
  ends = [num_requests * i // number for i in range(number + 1)]
  return list(zip(ends, ends[1:], strict=False))


def replay(
  engine: engine_lib.Engine,
  arrival_s: np.ndarray,
  requests: Sequence[tuple[Sequence[int], asks.Ask]],
  visit: Callable[[], list[asks.Event]],
  *,
  clock: Callable[[], float] = time.perf_counter,
  sleep: Callable[[float], None] = time.sleep,
) -> Replay:
  """Sends requests when they arrive, until all are answered.

  Args:
    engine: has nothing to do.
    arrival_s: [N], ascending from 0.
    requests: N of them.
    visit: does one step of the engine.
    clock: seconds.
    sleep: waits for seconds.
  """
  number = len(requests)
  found = Replay(
    np.full(number, np.nan), np.full(number, np.nan), np.zeros(number, int)
  )
  places, sent = {}, 0
  began = clock()
  while sent < number or engine.has_work:
    now = clock() - began
    while sent < number and arrival_s[sent] <= now:
      places[engine.submit(*requests[sent])] = sent
      sent += 1
    if not engine.has_work:
      sleep(arrival_s[sent] - now)
      continue
    for event in visit():
      _take(found, places[event.request_id], event, clock() - began, arrival_s)
    found.busy_s += clock() - began - now
  found.seconds = clock() - began
  return found


def _take(found, place, event, now, arrival_s):
  since = now - arrival_s[place]
  if event.tokens and not found.num_tokens[place]:
    found.first_s[place] = since
  found.num_tokens[place] += len(event.tokens)
  if event.finish_reason is not None:
    found.end_s[place] = since


def figures(
  replays: Sequence[Replay], limits: tuple[float, float]
) -> dict[str, Any]:
  """What windows come to, for JSON.

  Args:
    replays: of one name.
    limits: seconds to the first token and per token.
  """
  seconds = sum(one.seconds for one in replays)
  busy_s = sum(one.busy_s for one in replays)
  first_s = np.concatenate([one.first_s for one in replays])
  per_token_s = np.concatenate([one.per_token_s() for one in replays])
  tokens = sum(int(one.num_tokens.sum()) for one in replays)
  good = sum(_good_tokens(one, limits) for one in replays)
  return {
    'tokens_per_second': tokens / seconds,
    'tokens_per_busy_second': tokens / busy_s,
    'goodput': good / seconds,
    'first_token_s': percentiles(first_s),
    'per_token_s': percentiles(per_token_s),
    'busy_share': busy_s / seconds,
    'num_tokens': tokens,
  }


def _good_tokens(one, limits):
  behind = np.maximum(one.num_tokens - 1, 1)
  is_good = (one.first_s <= limits[0]) & (
    one.end_s - one.first_s <= limits[1] * behind
  )
  return int(one.num_tokens[is_good].sum())


def percentiles(seconds: np.ndarray) -> dict[str, float] | None:
  """`PERCENTILES` by name, of what is known; None of nothing."""
  known = seconds[np.isfinite(seconds)]
  if not known.size:
    return None
  return {f'p{p}': float(np.percentile(known, p)) for p in PERCENTILES}


def _kept_by_nine_of_ten(replays):
  first_s = percentiles(np.concatenate([one.first_s for one in replays]))
  per_token_s = percentiles(
    np.concatenate([one.per_token_s() for one in replays])
  )
  return (
    np.inf if first_s is None else first_s['p90'],
    np.inf if per_token_s is None else per_token_s['p90'],
  )


def _rows(sums):
  """Of the launches that did nothing but rounds."""
  if not sums.num_launches:
    return {'num_launches': 0}
  found = recorder_lib.figures(sums)
  names = ('mean_rows', 'tokens_per_round', 'rounds_by_depth', 'host_share')
  return {name: found[name] for name in (*names, 'num_launches')}


def _over_plain(results, replays, name):
  """Ratios to plain decoding; a window's are of tokens a busy second."""
  if contenders.PLAIN not in results:
    return {'over_plain': None, 'over_plain_by_window': None}
  plain, mine = results[contenders.PLAIN], results[name]
  by_window = [
    (a.num_tokens.sum() / a.busy_s) / (b.num_tokens.sum() / b.busy_s)
    for a, b in zip(replays[name], replays[contenders.PLAIN], strict=True)
  ]
  ratios = {
    key: mine[key] / plain[key]
    for key in ('tokens_per_second', 'tokens_per_busy_second')
  }
  for key in ('first_token_s', 'per_token_s'):
    for p in mine[key] or {}:
      if plain[key][p]:
        ratios[f'{key}_{p}'] = mine[key][p] / plain[key][p]
  return {
    'over_plain': ratios,
    'over_plain_by_window': [float(ratio) for ratio in by_window],
  }
