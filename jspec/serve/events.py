# SPDX-License-Identifier: MIT
"""Events of a request, made from what the device and the scheduler say."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from jspec.serve import asks, plan
from jspec.serve import device as device_lib
from jspec.serve import metrics as metrics_lib
from jspec.serve import scheduler as scheduler_lib
from jspec.serve import sent as sent_lib

# By `launch.PLAIN` and so on.
ORIGINS = (asks.PLAIN, asks.DRAFT, asks.BONUS)


def of_prompts(
  sent: sent_lib.Sent, alive: Mapping[Hashable, sent_lib.Alive]
) -> list[asks.Event]:
  """Log-probabilities of the prompts that a launch read; waits for them."""
  return [
    of_prompt(read)
    for read in sent.read
    if alive.get(read.request_id) is read.alive  # Not cancelled.
  ]


def of_answers(
  of: plan.Plan,
  answers: Sequence[device_lib.Answer],
  alive: dict[Hashable, sent_lib.Alive],
  scheduler: scheduler_lib.Scheduler,
  metrics: metrics_lib.Metrics,
) -> list[asks.Event]:
  """What the rows of a launch emitted, of requests that are still alive.

  Tells the scheduler and the metrics; requests that ended leave `alive`.
  """
  found, results, by_request = [], [], {}
  for decode, answer in zip(of.decodes, answers, strict=True):
    if scheduler.is_current(decode):
      answer = obeying(alive[decode.request_id], answer)
    by_request[decode.request_id] = answer
    results.append(result(decode, answer))
  for output in scheduler.observe(of.launch, results):
    # The rest came too late and never happened.
    answer = by_request[output.request_id]
    one = alive[output.request_id]
    metrics.answered(answer, one.drafter)
    found.append(of_answer(one, output, answer))
    if output.finish_reason is not None:
      del alive[output.request_id]
  return found


def of_prompt(read: sent_lib.Read) -> asks.Event:
  """Log-probabilities of a chunk of a prompt; waits for them."""
  return asks.Event(
    request_id=read.request_id,
    prompt_logprobs=asks.token_logprobs(
      # Cut on the host: on the device every cut is a program of its own.
      {
        name: np.asarray(x)[read.first : read.end]
        for name, x in read.logprobs.items()
      },
      read.end - read.first,
      read.alive.ask.num_prompt_logprobs,
    ),
  )


def result(decode: plan.Decode, answer: device_lib.Answer) -> plan.Result:
  """What the scheduler is told of a row."""
  return plan.Result(
    row=decode.row,
    epoch=decode.epoch,
    tokens=answer.tokens,
    is_stopped=answer.is_stopped,
    has_failed=answer.has_failed,
  )


def obeying(
  alive: sent_lib.Alive, answer: device_lib.Answer
) -> device_lib.Answer:
  """The answer of a launch, ended where its grammar ends it.

  Raises:
    ValueError: a token the grammar refuses; a defect of the engine.
  """
  if alive.matcher is None:
    return answer
  found = alive.matcher.commit(answer.tokens)
  if not found.is_finished:
    return answer
  return dataclasses.replace(
    answer,
    tokens=answer.tokens[: found.num_tokens],
    is_stopped=True,
    has_failed=False,
  )


def of_answer(
  alive: sent_lib.Alive, output: plan.Output, answer: device_lib.Answer
) -> asks.Event:
  """What a request emitted in a launch."""
  logprobs = problem = None
  if alive.ask.num_logprobs is not None:
    logprobs = asks.token_logprobs(
      answer.logprobs, len(output.tokens), alive.ask.num_logprobs
    )
  if output.finish_reason == 'failed':
    problem = 'the target gives no finite logit'
    if alive.matcher is not None:
      stuck = alive.matcher.problem
      problem += ' that the grammar and the options of the request allow'
      problem = f'the grammar is stuck: {stuck}' if stuck else problem
  return asks.Event(
    request_id=output.request_id,
    tokens=output.tokens,
    origins=tuple(ORIGINS[of] for of in answer.origins[: len(output.tokens)]),
    num_rounds=answer.num_rounds,
    num_drafted=int(answer.num_drafted.sum()),
    num_cached=output.num_cached,
    admitted_s=alive.admitted_s,
    finish_reason=output.finish_reason,
    logprobs=logprobs,
    problem=problem,
  )
