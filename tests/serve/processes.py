# SPDX-License-Identifier: MIT
"""Processes that serve a toy target together, for `followers_run_test`.

  python -m tests.serve.processes COORDINATOR PROCESSES ID [WHAT ...]

Process 0 prints one JSON line: the answers, or what it failed with.
"""

import json
import os
import pathlib
import signal
import sys
import time

from tests import starting

TIMEOUT_S = 300


def start(num_processes, *what, devices=2, of=None):
  """Starts processes; `of` gives words to some alone, by id."""
  coordinator = starting.coordinator()
  arguments = [
    [
      coordinator,
      str(num_processes),
      str(process),
      *what,
      *(of or {}).get(process, ()),
    ]
    for process in range(num_processes)
  ]
  return starting.start('tests.serve.processes', arguments, devices)


def ended(started):
  """As `starting.ended`."""
  return starting.ended(started, TIMEOUT_S)


def said(text):
  """The JSON line of a process."""
  (line,) = (line for line in text.splitlines() if line.startswith('{'))
  return json.loads(line)


# --- in a process


def models(what):
  """Target, drafter, settings, compiler and what is asked."""
  from jspec.drafters import ngram
  from jspec.serve import asks, settings, structured
  from jspec.testing import toy
  from tests.serve import constrained, small

  has_grammars = 'grammars' in what
  target = toy.target(
    max_len=small.MAX_LEN,
    num_heads=8,
    num_kv_heads=8,
    ff_width=64,
    vocab_size=constrained.VOCAB_SIZE if has_grammars else 64,
    seed=1 if 'other-weights' in what else 0,
  )
  drafter = None if 'plain' in what else ngram.NGram(num_draft_tokens=4)
  rounds = 3 if 'other-settings' in what else 2
  # Too few pages for all rows, so that some are preempted.
  chosen = settings.Settings(
    **{**vars(small.SETTINGS), 'num_rounds': rounds, 'num_pages': 10}
  )
  limit = structured.Constraint('regex', '(ab|cd){12,14}')
  asked = [
    asks.Ask(
      params=params,
      constraint=limit if has_grammars and params.seed % 3 == 0 else None,
    )
    for params in small.requests()
  ]
  return (
    target,
    drafter,
    chosen,
    constrained.compiler() if has_grammars else None,
    asked,
  )


def answers(engine, asked):
  """Of greedy and sampled requests, one of them cancelled on the way."""
  from tests.serve import small

  found = {}
  for i, (prompt, ask) in enumerate(zip(small.prompts(), asked, strict=True)):
    engine.submit(prompt, ask, request_id=i)
    found[i] = []
  steps = 0
  while engine.has_work:
    for event in engine.step():
      found[event.request_id] += event.tokens
    steps += 1
    if steps == 3:
      engine.cancel(2)
      found[2] = []
  return list(found.values())


def _main(coordinator, num_processes, process, *what):
  from jspec import distributed, errors

  num_processes, process = int(num_processes), int(process)
  code = 0
  try:
    distributed.start(coordinator, num_processes, process)
    _serve(distributed.host_of(coordinator), process, what)
  except errors.UserError as error:
    print(json.dumps({'error': str(error)}), flush=True)
    code = 2
  except RuntimeError as error:
    print(json.dumps({type(error).__name__: str(error)}), flush=True)
    code = 1
  if code:
    os._exit(code)  # Others are gone: there is nobody to leave together with.


def _serve(host, process, what):
  import jax
  import numpy as np
  from jax.sharding import Mesh

  from jspec.serve import engine as engine_lib
  from jspec.serve import following, meeting

  link = meeting.meet(host)
  mesh = Mesh(np.array(jax.devices()), ('model',))
  target, drafter, chosen, compiler, asked = models(what)
  if process:
    has_compiler = compiler is not None
    following.follow(
      target, drafter, chosen, mesh, link, has_compiler=has_compiler
    )
    return
  engine = engine_lib.Engine(
    target, drafter, chosen, mesh, link=link, compiler=compiler
  )
  found = answers(engine, asked)
  if 'kill' in what:
    os.kill(int(pathlib.Path(what[-1]).read_text()), signal.SIGKILL)
    answers(engine, asked)
  if 'time' in what:
    _time(engine, asked)
  counts = engine.metrics
  print(
    json.dumps(
      {
        'answers': found,
        'preemptions': engine._scheduler.num_preemptions,
        'split': int(counts.num_split),
        'accepted': int(counts.num_accepted.sum()),
      }
    ),
    flush=True,
  )
  engine.close()


def _time(engine, asked):
  """Seconds of telling the followers, of all that a visit takes."""
  leader, spent = engine._device._calls._leader, []
  send = leader.send

  def timed(*of):
    began = time.perf_counter()
    send(*of)
    spent.append(time.perf_counter() - began)

  leader.send = timed
  began = time.perf_counter()
  answers(engine, asked)
  seconds = time.perf_counter() - began
  spent.sort()
  print(
    'sends',
    len(spent),
    'median us',
    1e6 * spent[len(spent) // 2],
    'share',
    sum(spent) / seconds,
    flush=True,
  )


if __name__ == '__main__':
  _main(*sys.argv[1:])
