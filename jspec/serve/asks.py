# SPDX-License-Identifier: MIT
"""`Ask`: all that one request wants, and what it gets back.

What cannot be honoured is refused here, before the request waits.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from jspec import errors
from jspec.decode import asks as device_asks
from jspec.decode import options as options_lib
from jspec.decode import sampling
from jspec.drafters import mixed
from jspec.serve import programs, structured, structured_matcher

# How a token came: from a round without drafts, as a draft that the target
# agreed with, or from the target behind the drafts of its round.
PLAIN, DRAFT, BONUS = 'plain', 'draft', 'bonus'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
  """What a request wants beside its prompt.

  Attributes:
    params: how tokens are drawn, and when the answer ends.
    options: how logits are changed before.
    num_logprobs: log-probabilities of the emitted tokens, and of so many of the
      most likely ones; None: none.
    num_prompt_logprobs: the same of the prompt, from its second token on.
    drafter: which member of a mixture drafts; 'none': nobody, with every
      engine; None: the first.
    max_drafts: drafts of a round that are verified at most; 0 is like drafter
      'none'; None: what the policy plans.
    policy: which depth policy plans its rounds, one of the engine's
      (`Settings.policies`, as given there); launches with such a row draft by
      policy, whatever the guard thinks. None: as the engine does.
    constraint: what the text of the answer must be; None: anything. The answer
      ends where nothing may follow any more.
  """

  params: sampling.SamplingParams = sampling.SamplingParams()
  options: options_lib.LogitOptions = options_lib.LogitOptions()
  num_logprobs: int | None = None
  num_prompt_logprobs: int | None = None
  drafter: str | None = None
  max_drafts: int | None = None
  policy: str | None = None
  constraint: structured.Constraint | None = None

  @property
  def is_plain(self) -> bool:
    """Whether nothing is drafted for it."""
    return self.most_drafts == 0

  @property
  def most_drafts(self) -> int:
    """Drafts of a round, as a number in any case."""
    if self.drafter == mixed.NONE:
      return 0
    most = device_asks.UNLIMITED
    return most if self.max_drafts is None else min(self.max_drafts, most)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
  """Of one token, by the model's own law, before options and temperature.

  Attributes:
    logprob: of the token; -inf if the model gives it no probability.
    rank: 1 for the most likely one.
    top: the most likely tokens and their log-probabilities, in order.
  """

  logprob: float
  rank: int
  top: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """Something that happened to a request.

  Attributes:
    request_id: whose it is.
    tokens: emitted now.
    origins: how each of them came: `PLAIN`, `DRAFT` or `BONUS`.
    num_rounds: rounds it took.
    num_drafted: drafts that were verified for them.
    num_cached: tokens of the whole prompt that were found in the prefix cache,
      the same with all events that have tokens.
    admitted_s: when the request first got a row, by `time.monotonic`; likewise.
    finish_reason: 'stop', 'length' or 'failed' (the target gave no finite
      logit that was allowed); None while it goes on.
    logprobs: one for each token; None if they were not asked for.
    prompt_logprobs: of prompt tokens read now, in order; None likewise.
    problem: why it failed, in one line.
  """

  request_id: Hashable
  tokens: tuple[int, ...] = ()
  origins: tuple[str, ...] = ()
  num_rounds: int = 0
  num_drafted: int = 0
  num_cached: int = 0
  admitted_s: float | None = None
  finish_reason: str | None = None
  logprobs: tuple[TokenLogprobs, ...] | None = None
  prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
  problem: str | None = None

  @property
  def num_accepted(self) -> int:
    """Drafts among the tokens."""
    return self.origins.count(DRAFT)


def wishes(asks: Iterable[Ask]) -> dict[str, bool]:
  """What requests want of the launch they share, for `Forms.choose`."""
  drafting = [ask for ask in asks if not ask.is_plain]
  return {
    'wants_drafts': bool(drafting),
    'wants_policy': any(ask.policy is not None for ask in drafting),
  }


def check(
  request_id: Hashable,
  prompt: Sequence[int],
  ask: Ask,
  vocab_size: int,
  policies: Sequence[str],
) -> None:
  """Refuses what the engine cannot do.

  Args:
    request_id: names the request in errors.
    prompt: its tokens.
    ask: what it wants.
    vocab_size: of the target.
    policies: names of the engine's depth policies.

  Raises:
    UserError: token ids the target lacks, more stop ids or log-probabilities
      than there are places, a minimum above the maximum or beside a grammar,
      fewer drafts than none, a policy that is not there.
  """
  name = f'request {request_id!r}'
  if len(prompt) and not 0 <= min(prompt) <= max(prompt) < vocab_size:
    raise errors.UserError(
      f"{name}: the prompt holds token ids outside the target's vocabulary of"
      f" {vocab_size}; use the target's own tokenizer"
    )
  params, options = ask.params, ask.options
  if len(params.stop_ids) > programs.NUM_STOP_IDS:
    raise errors.UserError(
      f'{name} has {len(params.stop_ids)} stop ids; at most'
      f' {programs.NUM_STOP_IDS} are supported'
    )
  if options.min_tokens > params.max_tokens:
    raise errors.UserError(
      f'{name}: min_tokens={options.min_tokens} is more than max_tokens='
      f'{params.max_tokens}; lower it'
    )
  if ask.constraint is not None and options.min_tokens:
    raise errors.UserError(
      f'{name}: min_tokens={options.min_tokens} with structured output, whose'
      ' grammar says when the answer ends; leave min_tokens out'
    )
  if ask.max_drafts is not None and ask.max_drafts < 0:
    raise errors.UserError(
      f'{name}: max_drafts={ask.max_drafts}; give 0 (draft nothing) or more'
    )
  if ask.policy is not None and ask.policy not in policies:
    has = ', '.join(policies) or 'none, since it decodes plainly'
    raise errors.UserError(
      f'{name}: depth policy {ask.policy!r} is not loaded; this engine has:'
      f' {has}'
    )
  options_lib.check(options, vocab_size)
  most = device_asks.NUM_LOGPROBS
  for field in ('num_logprobs', 'num_prompt_logprobs'):
    num = getattr(ask, field)
    if num is not None and not 0 <= num <= most:
      raise errors.UserError(f'{name}: {field}={num}; give 0 to {most}')


def matcher(
  request_id: Hashable, ask: Ask, compiler: structured.Compiler | None
) -> structured_matcher.Matcher | None:
  """Where an answer begins in its grammar; None if it has none.

  Raises:
    UserError: nobody can read the grammar, or it cannot be read.
  """
  if ask.constraint is None:
    return None
  if compiler is None:
    raise errors.UserError(
      f'request {request_id!r} wants structured output and this engine has no'
      ' compiler of grammars; start it with one'
    )
  return compiler.matcher(ask.constraint)


def token_logprobs(
  arrays: dict, num_tokens: int, num_top: int
) -> tuple[TokenLogprobs, ...]:
  """Reads the arrays of one row, [S] and [S, k], on the host."""
  return tuple(
    TokenLogprobs(
      logprob=float(arrays['chosen'][i]),
      rank=int(arrays['rank'][i]),
      top=tuple(
        (int(token), float(value))
        for token, value in zip(
          arrays['ids'][i, :num_top], arrays['values'][i, :num_top], strict=True
        )
        if token >= 0
      ),
    )
    for i in range(num_tokens)
  )
