# SPDX-License-Identifier: MIT
"""Random schedules: arrivals, cancellations, small pools, shared prefixes.

  python -m tests.serve.schedules 400

runs so many and prints what happened in them.
"""

import json
import sys

import numpy as np

from jspec.serve import config as config_lib
from jspec.serve import requests, scheduler
from tests.serve import fake_device


def random_config(rng, **changes):
  page_size = int(rng.choice([1, 2, 4, 8]))
  sizes = [(4,), (2, 8), (3, 5, 16)][rng.integers(3)]
  settings = dict(
    num_pages=int(rng.integers(12, 60)) // page_size + 1,
    page_size=page_size,
    max_rows=int(rng.integers(2, 7)),
    max_len=int(rng.integers(16, 80)),
    max_drafts=int(rng.integers(0, 4)),
    num_rounds=int(rng.integers(1, 3)),
    chunk_sizes=sizes,
    max_prefill_tokens=int(rng.integers(sizes[0], 24)),
  )
  return config_lib.SchedulerConfig(**(settings | changes))


def random_request(rng, name, limit, stems):
  """A prompt that shares some stem with others, of any length that fits."""
  stem = stems[rng.integers(len(stems))]
  own = tuple(int(t) for t in rng.integers(0, 3, rng.integers(1, 8)))
  prompt = (stem[: rng.integers(0, len(stem) + 1)] + own)[: limit - 1]
  return requests.Request(
    id=name,
    prompt=prompt,
    max_tokens=int(rng.integers(1, 60)),
    priority=int(rng.integers(0, 3)),
    namespace=int(rng.integers(0, 2)),
  )


def run(seed, make=scheduler.Scheduler, is_cancelling=True, **changes):
  """One random schedule, checked after every step."""
  rng = np.random.default_rng(seed)
  config = random_config(rng, **changes)
  device = fake_device.Device(config, rng)
  server = fake_device.Server(make(config), device, int(rng.integers(0, 3)))
  stems = [tuple(int(t) for t in rng.integers(0, 3, 40)) for _ in range(2)]
  cancelled, work = set(), 0
  for name in range(int(rng.integers(3, 11))):
    request = random_request(rng, name, config.limit, stems)
    progress = server.submit(request)
    work += len(request.prompt) + progress.max_tokens
    for _ in range(int(rng.integers(0, 4))):
      server.step()
      if is_cancelling and rng.random() < 0.1:
        victim = int(rng.integers(0, name + 1))
        if server.scheduler.cancel(victim):
          cancelled.add(victim)
        server.scheduler.check()
  steps = server.drain(most=2 * work + 50)
  server.check_answers(cancelled)
  server.check_balance()
  return {
    'preempted': server.scheduler.num_preemptions,
    'dropped': server.scheduler.num_dropped,
    'cancelled': len(cancelled),
    'hit_tokens': server.scheduler.ledger.trie.num_hit_tokens,
    'launches_per_token': steps / work,
  }


def run_all(num_schedules):
  """What happened in all schedules: sums, and the most launches a token."""
  found = [run(seed) for seed in range(num_schedules)]
  totals = {name: sum(one[name] for one in found) for name in found[0]}
  most = max(one['launches_per_token'] for one in found)
  return totals | {'launches_per_token': most}


if __name__ == '__main__':
  print(json.dumps(run_all(int(sys.argv[1]))))
