# SPDX-License-Identifier: MIT
"""Answers conversations: every user turn in order, through the chat template.

All first turns are decoded together, then all second turns with the answers
before them, and so on; a turn does not depend on the other conversations.
"""

import dataclasses
from collections.abc import Callable, Sequence

from jspec import errors, loading
from jspec.data import sources
from jspec.decode import generate, sampling

_ROUND_LEN_TO = 128
# Role names and turn ends of a chat template, generously.
_TEMPLATE_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Reply:
  """The answer to one user turn.

  Attributes:
    id: the prompt's id.
    turn: 0 for the first user turn.
    prompt: what the user said.
    text: what the target answered, special tokens left out.
    prompt_tokens: ids the answer was decoded from.
    output: tokens, finish reason and counts of the rounds.
  """

  id: str
  turn: int
  prompt: str
  text: str
  prompt_tokens: list[int]
  output: generate.Output


def encode(
  loaded: loading.LoadedTarget, messages: Sequence[dict[str, str]]
) -> list[int]:
  """The ids of a conversation up to where the assistant speaks.

  A target without a chat template is given the user's text as it is.
  """
  if loaded.template is not None:
    text = loaded.template.render(messages, add_generation_prompt=True)
    return loaded.tokenizer.encode(text)
  if len(messages) > 1:
    raise _no_template(loaded, messages[0]['content'])
  return loaded.tokenizer.encode(messages[0]['content'], add_special=True)


def needed_len(
  loaded: loading.LoadedTarget,
  prompts: Sequence[sources.Prompt],
  max_tokens: int,
) -> int:
  """A context long enough for every conversation, within the target's own.

  Raises:
    UserError: a conversation cannot even begin in the target's context.
  """
  for prompt in prompts:
    if len(prompt.turns) > 1 and loaded.template is None:
      raise _no_template(loaded, prompt.id)
    first = [{'role': 'user', 'content': prompt.turns[0]}]
    _check_len(loaded, prompt.id, 0, encode(loaded, first))
  longest = max(
    sum(
      len(loaded.tokenizer.encode(turn)) + max_tokens + _TEMPLATE_TOKENS
      for turn in prompt.turns
    )
    for prompt in prompts
  )
  rounded = -(-longest // _ROUND_LEN_TO) * _ROUND_LEN_TO
  return min(rounded, loaded.model.max_len)


def seeded(
  params: sampling.SamplingParams, num: int
) -> list[sampling.SamplingParams]:
  """Parameters for `num` prompts, so that no two share their random draws."""
  return [dataclasses.replace(params, seed=params.seed + i) for i in range(num)]


def answer(
  loaded: loading.LoadedTarget,
  decoder: generate.Decoder,
  prompts: Sequence[sources.Prompt],
  params: Sequence[sampling.SamplingParams],
  *,
  on_progress: Callable[[int, int], None] | None = None,
) -> list[Reply]:
  """Answers all turns of all prompts, in the order of the prompts.

  Args:
    loaded: the target with its tokenizer and template.
    decoder: made for this target; its `max_len` bounds a conversation.
    prompts: what users say.
    params: one for each prompt, all its turns alike; see `seeded`.
    on_progress: called with (turns answered, turns in all).
  """
  total = sum(len(prompt.turns) for prompt in prompts)
  talks = [[] for _ in prompts]
  replies = []
  for turn in range(max(len(prompt.turns) for prompt in prompts)):
    live = [i for i, prompt in enumerate(prompts) if turn < len(prompt.turns)]
    for i in live:
      said = prompts[i].turns[turn]
      talks[i].append({'role': 'user', 'content': said})
    ids = [encode(loaded, talks[i]) for i in live]
    for i, prompt_tokens in zip(live, ids, strict=True):
      _check_len(loaded, prompts[i].id, turn, prompt_tokens)
    before = len(replies)
    outputs = decoder.generate(
      ids,
      [params[i] for i in live],
      on_progress=on_progress
      and (lambda done, _, base=before: on_progress(base + done, total)),
    )
    for i, prompt_tokens, output in zip(live, ids, outputs, strict=True):
      text = loaded.tokenizer.decode(output.tokens)
      talks[i].append({'role': 'assistant', 'content': text})
      reply = Reply(
        id=prompts[i].id,
        turn=turn,
        prompt=prompts[i].turns[turn],
        text=text,
        prompt_tokens=prompt_tokens,
        output=output,
      )
      replies.append((i, reply))
  replies.sort(key=lambda pair: (pair[0], pair[1].turn))
  return [reply for _, reply in replies]


def summary(
  replies: Sequence[Reply], timing: generate.Timing
) -> dict[str, float]:
  """Totals of a run; `tokens_per_s` leaves prefill and compilation out."""
  num_tokens = sum(len(reply.output.tokens) for reply in replies)
  num_rounds = sum(reply.output.num_rounds for reply in replies)
  return {
    'num_replies': len(replies),
    'num_tokens': num_tokens,
    'num_rounds': num_rounds,
    'tokens_per_round': num_tokens / max(num_rounds, 1),
    'tokens_per_s': num_tokens / max(timing.decode_s, 1e-9),
    'compile_s': timing.compile_s,
    'prefill_s': timing.prefill_s,
    'decode_s': timing.decode_s,
  }


def _check_len(loaded, name, turn, prompt_tokens):
  """Refuses what leaves no room for an answer, by the name its user gave."""
  if not prompt_tokens:
    raise errors.UserError(
      f'prompt {name!r}, turn {turn + 1}, has no token for target'
      f' {loaded.name}: write a text that its tokenizer knows'
    )
  if len(prompt_tokens) >= loaded.model.max_len:
    raise errors.UserError(
      f'prompt {name!r}, turn {turn + 1}, has {len(prompt_tokens)} tokens with'
      f' all before it but the context of target {loaded.name} is'
      f' {loaded.model.max_len}: shorten it'
    )


def _no_template(loaded, name):
  return errors.UserError(
    f'target {loaded.name} has no chat template, so it answers prompts of one'
    f' turn only: split prompt {name!r:.40}'
  )
