# SPDX-License-Identifier: MIT
"""What a request may ask of its logits, beside the sampling parameters.

  repetition_penalty r   seen in prompt or output: z / r if z > 0, else z * r
  presence_penalty p     seen in the output:       z - p
  frequency_penalty f    c times in the output:    z - f * c
  logit_bias             z + value, for the ids named
  min_tokens m           no stop id among the first m output tokens
  bad_words              token sequences that the output never holds

`LogitOptions` is one request on the host and refuses what cannot be; `Options`
is a batch on the device, of one shape whatever is asked, so a request never
recompiles anything. `adjust.py` applies them.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np

from jspec import errors
from jspec.typing import Array, Float, Int

MAX_BIASES = 300  # OpenAI's limit
MAX_BIAS = 100.0
MAX_PENALTY = 2.0  # presence and frequency, either sign
MAX_REPETITION = 100.0  # and its inverse; beyond, logits may leave float32
MAX_BAD_WORDS = 32
MAX_WORD_LEN = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitOptions:
  """How one request wants its logits changed, on the host.

  Attributes:
    repetition_penalty: above 1 discourages tokens of prompt and output; 1 off.
    presence_penalty: taken off every token of the output, once; 0 off.
    frequency_penalty: taken off for every time it came up; 0 off.
    logit_bias: pairs (token id, value), each id once. -100 bans in practice
      only: it is added, like any other value.
    min_tokens: output tokens before a stop id may come; 0 off.
    bad_words: token sequences. The last token of one is impossible where the
      output ends with the others; tokens of the prompt do not count.
  """

  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  logit_bias: tuple[tuple[int, float], ...] = ()
  min_tokens: int = 0
  bad_words: tuple[tuple[int, ...], ...] = ()

  def __post_init__(self):
    r = self.repetition_penalty
    _check(
      _is_real(r) and 1 / MAX_REPETITION <= r <= MAX_REPETITION,
      f'repetition_penalty {r!r}: give a number from {1 / MAX_REPETITION} to'
      f' {MAX_REPETITION}, 1 to turn it off',
    )
    for name in ('presence_penalty', 'frequency_penalty'):
      value = getattr(self, name)
      _check(
        _is_real(value) and abs(value) <= MAX_PENALTY,
        f'{name} {value!r}: give a number from -{MAX_PENALTY} to {MAX_PENALTY}',
      )
    _check(
      _is_integer(self.min_tokens) and 0 <= self.min_tokens < 2**31,
      f'min_tokens {self.min_tokens!r}: give a whole number, 0 to turn it off',
    )
    self._check_bias()
    self._check_bad_words()

  def _check_bias(self):
    pairs = self.logit_bias
    _check(
      isinstance(pairs, tuple)
      and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs),
      'logit_bias: give a tuple of pairs (token id, value)',
    )
    _check(
      len(pairs) <= MAX_BIASES,
      f'logit_bias names {len(pairs)} tokens: give at most {MAX_BIASES}',
    )
    for token, value in pairs:
      _check(
        _is_id(token), f'logit_bias for token {token!r}: give a token id from 0'
      )
      _check(
        _is_real(value) and abs(value) <= MAX_BIAS,
        f'logit_bias {value!r} for token {token}: give a number from'
        f' -{MAX_BIAS} to {MAX_BIAS}',
      )
    _check(
      len({token for token, _ in pairs}) == len(pairs),
      'logit_bias names a token twice: give each token id once',
    )

  def _check_bad_words(self):
    words = self.bad_words
    _check(
      isinstance(words, tuple) and all(isinstance(w, tuple) for w in words),
      'bad_words: give a tuple of tuples of token ids',
    )
    _check(
      len(words) <= MAX_BAD_WORDS,
      f'bad_words holds {len(words)} sequences: give at most {MAX_BAD_WORDS}',
    )
    for i, word in enumerate(words):
      _check(
        1 <= len(word) <= MAX_WORD_LEN and all(map(_is_id, word)),
        f'bad_words[{i}] is {word!r}: give 1 to {MAX_WORD_LEN} token ids',
      )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Options:
  """The options of a batch, one entry a row, on the device.

  Attributes:
    repetition: factor of negative logits; 1 where off.
    repetition_inverse: factor of positive logits, from the host: compilers
      differ in how they divide.
    presence: 0 where off.
    frequency: 0 where off.
    bias_ids: -1 where unused.
    bias_values: 0 where unused.
    min_tokens: 0 where off.
    bad_prefixes: the tokens of a bad word before its last, nearest first
      ((1, 2, 3) is 2 1 -1 ..); -1 from the start of the word on.
    bad_last: the last token of a bad word; -1 where there is no word.
  """

  repetition: Float[Array, 'B']
  repetition_inverse: Float[Array, 'B']
  presence: Float[Array, 'B']
  frequency: Float[Array, 'B']
  bias_ids: Int[Array, 'B biases']
  bias_values: Float[Array, 'B biases']
  min_tokens: Int[Array, 'B']
  bad_prefixes: Int[Array, 'B words prefix']
  bad_last: Int[Array, 'B words']


def stack(requests: Sequence[LogitOptions]) -> Options:
  """Puts the options of a batch of requests on the device."""
  # Unlike `jnp.asarray`, this compiles nothing.
  return Options(**jax.device_put(columns(requests)))


def columns(requests: Sequence[LogitOptions]) -> dict[str, np.ndarray]:
  """The fields of `Options`, on the host."""
  rows = len(requests)
  bias_ids = np.full((rows, MAX_BIASES), -1, np.int32)
  bias_values = np.zeros((rows, MAX_BIASES), np.float32)
  prefixes = np.full((rows, MAX_BAD_WORDS, MAX_WORD_LEN - 1), -1, np.int32)
  last = np.full((rows, MAX_BAD_WORDS), -1, np.int32)
  for row, request in enumerate(requests):
    for i, (token, value) in enumerate(request.logit_bias):
      bias_ids[row, i], bias_values[row, i] = token, value
    for i, word in enumerate(request.bad_words):
      last[row, i] = word[-1]
      prefixes[row, i, : len(word) - 1] = word[-2::-1]

  def column(name, dtype):
    return np.array([getattr(request, name) for request in requests], dtype)

  repetition = column('repetition_penalty', np.float64)
  return dict(
    repetition=repetition.astype(np.float32),
    repetition_inverse=(1 / repetition).astype(np.float32),
    presence=column('presence_penalty', np.float32),
    frequency=column('frequency_penalty', np.float32),
    bias_ids=bias_ids,
    bias_values=bias_values,
    min_tokens=column('min_tokens', np.int32),
    bad_prefixes=prefixes,
    bad_last=last,
  )


def check(options: LogitOptions, vocab_size: int) -> None:
  """Refuses token ids that the target lacks.

  Raises:
    UserError: names the option and the id.
  """
  named = [('logit_bias', token) for token, _ in options.logit_bias]
  named += [
    ('bad_words', token) for word in options.bad_words for token in word
  ]
  for name, token in named:
    _check(
      token < vocab_size,
      f"{name} names token {token}, outside the target's vocabulary of"
      f" {vocab_size}; use the target's own tokenizer",
    )


def _check(is_good, message):
  if not is_good:
    raise errors.UserError(message)


def _is_integer(x):
  return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _is_id(x):
  return _is_integer(x) and 0 <= x < 2**31


def _is_real(x):
  return _is_integer(x) or (
    isinstance(x, float | np.floating) and math.isfinite(x)
  )
