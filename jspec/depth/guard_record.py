# SPDX-License-Identifier: MIT
"""What launches of one form did: a rate, its error, when it no longer holds.

  rate   tokens of a row / seconds, over all launches
  error  of the rate, from how far launches scatter around it: a launch of n
         rounds misses  rate x seconds  by about sqrt(n) times what one does

A launch that took half as long again as its price, and the form's usual ratio
to it, tell, was held up by something else: only so much of it is counted,
unless the next ones take as long.

Old launches count nearly as much as late ones, or forms that differ by a few
per cent could not be told apart. When the last 4, 8, .. 64 launches contradict
what was known before them, they replace it.
"""

import collections
import dataclasses
import math
from typing import NamedTuple

STRAY = 1.5  # times the usual seconds: something else held the launch up
NUM_BELIEVED = 3  # strays in a row that are none
WINDOWS = (4, 8, 16, 32, 64)  # last launches that may contradict all before
_CONTRADICTION = 5.0  # standard errors
_PRIOR_LAUNCHES = 2.0  # that scatter as was expected


class Launch(NamedTuple):
  """What a launch did.

  Attributes:
    rounds: that it had.
    seconds: measured.
    tokens: of a row.
    price_s: what its rounds were expected to take.
  """

  rounds: int
  seconds: float
  tokens: float
  price_s: float


@dataclasses.dataclass
class Sums:
  """Sums over launches, all decayed alike.

  Attributes:
    spread: expected scatter of a round's tokens, relative to their mean.
  """

  spread: float
  launches: float = 0.0
  rounds: float = 0.0
  seconds: float = 0.0
  price_s: float = 0.0
  tokens: float = 0.0
  # Squares of a launch divided by its rounds, since they grow with them.
  tokens2: float = 0.0
  tokens_seconds: float = 0.0
  seconds2: float = 0.0

  def decay(self, factor):
    if self.launches < 1e-12:  # Means stay what they are, and no 0 / 0.
      return
    self.launches *= factor
    self.rounds *= factor
    self.seconds *= factor
    self.price_s *= factor
    self.tokens *= factor
    self.tokens2 *= factor
    self.tokens_seconds *= factor
    self.seconds2 *= factor

  def add(self, launch, times=1):
    rounds, seconds, tokens, price_s = launch
    self.launches += times
    self.rounds += times * rounds
    self.seconds += times * seconds
    self.price_s += times * price_s
    self.tokens += times * tokens
    self.tokens2 += times * tokens * tokens / rounds
    self.tokens_seconds += times * tokens * seconds / rounds
    self.seconds2 += times * seconds * seconds / rounds

  @property
  def rate(self):
    return self.tokens / self.seconds

  @property
  def round_s(self):
    return self.seconds / self.rounds

  def variance(self):
    """Of a round's tokens around `rate` times its seconds."""
    squares = (
      self.tokens2
      - 2 * self.rate * self.tokens_seconds
      + self.rate**2 * self.seconds2
    )
    expected = (self.spread * self.tokens / self.rounds) ** 2
    return (max(squares, 0.0) + _PRIOR_LAUNCHES * expected) / (
      self.launches + _PRIOR_LAUNCHES
    )

  def error(self):
    """Standard error of `rate`."""
    return math.sqrt(self.variance() / self.rounds) / self.round_s


class Record:
  """What is known of a form at one number of rows."""

  def __init__(self, spread: float):
    self.all = Sums(spread)
    self.num_launches = 0
    self._last = collections.deque(maxlen=max(WINDOWS))
    self._num_strays = 0

  def add(self, launch: Launch):
    self.num_launches += 1
    rounds, seconds, tokens, price_s = launch
    usual = self.all.seconds / self.all.price_s if self.all.rounds else 1.0
    most = STRAY * usual * price_s
    is_stray = seconds > most
    self._num_strays = self._num_strays + 1 if is_stray else 0
    if is_stray and self._num_strays < NUM_BELIEVED:
      seconds = most
    launch = Launch(rounds, seconds, tokens, price_s)
    self._last.append(launch)
    self.all.add(launch)
    before = dataclasses.replace(self.all)
    window = Sums(self.all.spread)
    for size, launch in enumerate(reversed(self._last), 1):
      before.add(launch, -1)
      window.add(launch)
      if size in WINDOWS:
        if before.launches < size / 2 or before.rounds <= 0:
          return
        # Tokens in the window against those expected in its seconds.
        surprise = abs(window.tokens - before.rate * window.seconds)
        usual = math.sqrt(window.rounds * before.variance())
        if surprise > _CONTRADICTION * usual:
          self.all = window
          return
