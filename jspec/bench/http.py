# SPDX-License-Identifier: MIT
"""What HTTP costs: one engine, called directly and behind its server, in turns.

  direct  the engine's own thread submits, steps and counts
  http    clients in another process stream the same answers over 127.0.0.1

Both are closed loops over the same requests: so many are in flight, who has an
answer sends the next. The turns alternate, so what slows the machine for a
while slows both, and ratios hold where times do not. The prefix cache is
emptied before every turn. Answers have fixed lengths, the same both ways, and
each its own: if all ended together, so would all begin, and nobody would decode
meanwhile.

The clients' own work is not the server's. Where the target runs on the cores
that the clients run on too, it slows the target; `without_clients` takes their
CPU seconds, spread over all cores, off the time of the http turns.

At one request at a time the first token is compared as well, with that of the
engine called directly, and with a bare prefill: the same prompt, one token,
nothing drafted.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jspec import conversation, errors, loading
from jspec.bench import processes
from jspec.decode import sampling
from jspec.serve import asks
from jspec.server import driver
from jspec.server import served as served_lib

Progress = Callable[[int, int], None] | None
DIRECT, HTTP, PREFILL = 'direct', 'http', 'prefill'
# Requests of a turn, for each that is in flight.
_LAPS = 4
# Lengths of answers are spread by it: its multiples never meet again, modulo 1.
_GOLDEN = (5**0.5 - 1) / 2


class Request(NamedTuple):
  """The same request in both languages.

  Attributes:
    prompt: token ids.
    ask: for the engine.
    path: of the endpoint.
    body: for it; it streams and has usage.
  """

  prompt: Sequence[int]
  ask: asks.Ask
  path: str
  body: dict[str, Any]


def requests(
  loaded: loading.LoadedTarget,
  texts: Sequence[str],
  params: sampling.SamplingParams,
) -> list[Request]:
  """Turns of a user, or texts to go on with if there is no chat template.

  Args:
    loaded: the target.
    texts: what the user says.
    params: without stop ids; answers have from half of its `max_tokens` to all.
  """
  found = []
  for number, text in enumerate(texts):
    share = 0.5 + 0.5 * (number * _GOLDEN % 1)
    length = max(1, round(params.max_tokens * share))
    found.append(
      _request(loaded, text, dataclasses.replace(params, max_tokens=length))
    )
  return found


def _request(loaded, text, params):
  messages = [{'role': 'user', 'content': text}]
  if loaded.template is None:
    path, said = '/v1/completions', {'prompt': text}
  else:
    path, said = '/v1/chat/completions', {'messages': messages}
  body = {
    **said,
    'temperature': params.temperature,
    'seed': params.seed,
    'max_tokens': params.max_tokens,
    'ignore_eos': True,
    'stream': True,
    'stream_options': {'include_usage': True},
  }
  prompt = conversation.encode(loaded, messages)
  return Request(prompt, asks.Ask(params=params), path, body)


@dataclasses.dataclass(frozen=True)
class Turn:
  """What one turn did.

  Attributes:
    seconds: it took.
    num_tokens: of all answers.
    first_s: seconds to each first token.
    client_cpu_s: that clients worked.
    loop_cpu_s: that the event loop worked.
  """

  seconds: float
  num_tokens: int
  first_s: list[float]
  client_cpu_s: float = 0.0
  loop_cpu_s: float = 0.0

  @property
  def rate(self) -> float:
    """Tokens a second."""
    return self.num_tokens / self.seconds

  def without_clients(self, num_cores: int) -> float:
    """Tokens a second if the clients had worked elsewhere."""
    return self.num_tokens / (self.seconds - self.client_cpu_s / num_cores)


def served(engine: Any, loaded: loading.LoadedTarget) -> served_lib.Served:
  """An engine as `run` takes it."""
  rows = engine.sizes.scheduler.max_rows
  return served_lib.Served(
    driver=driver.Driver(lambda: engine, max_open=2 * rows),
    target=loaded,
    names=(loaded.name,),
    vocab_size=loaded.model.vocab_size,
    context_len=engine.sizes.scheduler.limit,
  )


def run(
  served: served_lib.Served,
  requests: Sequence[Request],
  *,
  concurrencies: Sequence[int],
  num_turns: int,
  on_progress: Progress = None,
) -> dict[str, Any]:
  """Measures every concurrency.

  Args:
    served: nobody else uses it; its driver is not started.
    requests: at least one; each turn has four times as many as are in flight,
      of these, over and over.
    concurrencies: requests in flight.
    num_turns: of each way.
    on_progress: called with (turns done, turns in all).

  Returns:
    JSON values; `http_report` shows them.

  Raises:
    UserError: the server did not answer.
  """
  found = []
  total = len(concurrencies) * (num_turns + 1)
  with processes.serving(served) as server, processes.clients() as ask:
    for place, concurrency in enumerate(concurrencies):
      turns = {DIRECT: [], HTTP: []}
      if concurrency == 1:
        turns[PREFILL] = []
      for number in range(num_turns + 1):
        for name in _order(turns, number):
          turn = _turn(server, ask, name, requests, concurrency)
          if number:  # The first warms up.
            turns[name].append(turn)
        if on_progress is not None:
          on_progress(place * (num_turns + 1) + number + 1, total)
      found.append({'concurrency': concurrency, **_compared(turns)})
  return {
    'benchmark': 'serve',
    'num_turns': num_turns,
    'num_cores': os.cpu_count() or 1,
    'shares_cores': jax.default_backend() == 'cpu',
    'concurrencies': found,
  }


def direct(engine: Any, requests: Sequence[Request], concurrency: int) -> Turn:
  """One turn without HTTP; the engine has nothing else to do."""
  waiting = iter(enumerate(requests))
  sent_s, first_s = {}, {}
  num_tokens = 0
  began = time.perf_counter()

  def send():
    number, request = next(waiting, (None, None))
    if request is not None:
      sent_s[number] = time.perf_counter()
      engine.submit(request.prompt, request.ask, request_id=number)

  for _ in range(concurrency):
    send()
  while engine.has_work:
    for event in engine.step():
      num_tokens += len(event.tokens)
      if event.tokens and event.request_id not in first_s:
        now = time.perf_counter()
        first_s[event.request_id] = now - sent_s[event.request_id]
      if event.finish_reason is not None:
        send()
  return Turn(time.perf_counter() - began, num_tokens, list(first_s.values()))


def bare(requests: Sequence[Request]) -> list[Request]:
  """The same prompts, of which one token is wanted and nothing drafted."""
  return [
    request._replace(
      ask=dataclasses.replace(
        request.ask,
        params=dataclasses.replace(request.ask.params, max_tokens=1),
        max_drafts=0,
      )
    )
    for request in requests
  ]


def _order(names, number):
  """Who goes first changes, so that neither is always behind the other."""
  return list(names) if number % 2 else reversed(names)


def _turn(server, ask, name, requests, concurrency):
  num = _LAPS * concurrency
  chosen = [requests[i % len(requests)] for i in range(num)]
  server.call(lambda engine: engine.forget_prefixes())
  if name == HTTP:
    return _http(server, ask, chosen, concurrency)
  if name == PREFILL:
    chosen = bare(chosen)
  return server.call(lambda engine: direct(engine, chosen, concurrency))


def _http(server, ask, requests, concurrency):
  worked = server.loop_cpu_s()
  found = ask(
    host=processes.HOST,
    port=server.port,
    path=requests[0].path,
    bodies=[request.body for request in requests],
    concurrency=concurrency,
  )
  wanted = sum(request.ask.params.max_tokens for request in requests)
  if sum(found['num_tokens']) != wanted:
    raise errors.UserError(
      f'{wanted} tokens were asked for and {sum(found["num_tokens"])} came:'
      ' lower --max-tokens, or shorten the prompts'
    )
  return Turn(
    found['seconds'],
    wanted,
    found['first_s'],
    client_cpu_s=found['cpu_s'],
    loop_cpu_s=server.loop_cpu_s() - worked,
  )


def _compared(turns):
  """Figures of both ways, and ratios of turns that stood side by side."""
  num_cores = os.cpu_count() or 1
  pairs = list(zip(turns[DIRECT], turns[HTTP], strict=True))
  ratios = [http.rate / direct.rate for direct, http in pairs]
  found = {
    'results': {name: _figures(turns[name]) for name in (DIRECT, HTTP)},
    'over_direct': float(np.median(ratios)),
    'over_direct_range': [min(ratios), max(ratios)],
    'without_clients': float(
      np.median([h.without_clients(num_cores) / d.rate for d, h in pairs])
    ),
  }
  if PREFILL in turns:
    first = {
      name: float(np.median([s for turn in of for s in turn.first_s]))
      for name, of in turns.items()
    }
    found['first_token'] = {
      **{f'{name}_s': value for name, value in first.items()},
      'over_direct': first[HTTP] / first[DIRECT],
      'over_prefill': first[HTTP] / first[PREFILL],
    }
  return found


def _figures(turns):
  seconds = sum(turn.seconds for turn in turns)
  num_tokens = sum(turn.num_tokens for turn in turns)
  return {
    'num_tokens': num_tokens,
    'tokens_per_second': num_tokens / seconds,
    'client_share': sum(turn.client_cpu_s for turn in turns) / seconds,
    'loop_share': sum(turn.loop_cpu_s for turn in turns) / seconds,
  }
