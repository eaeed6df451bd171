# SPDX-License-Identifier: MIT
r"""Whether to speculate at all: decided before each launch, on the host.

Three forms of a round are compared, tokens per second:

  plain     no proposing, one token a row
  adaptive  propose, then verify what the depth policy keeps
  full      propose, then verify the whole block

A form that has not run with so many rows is judged by prices and acceptance
(`outlook`), then more and more by what it really did (`guard_record`):

  estimate = both, each weighted by 1 / its error^2

The best estimate runs. While that may be a mistake, launches have one round, so
that a mistake is short. The others run now and then, because acceptance
changes: a probe costs  seconds - tokens / rate of the best,  and probes may
cost 1 % of all time, so a collapse is not for ever and a probe that does well
costs nothing and is followed by more. A probe has as many rounds as can be paid
for, and no more than its form ever had, and one. Rows that are new come with a
little to spend, so that what may be better is tried at once; what cannot be, by
twice its error, waits its turn. Acceptance that rises far enough to pay is
found within about a hundred launches.

Another form takes over when its estimate is higher; the fewer launches there
are, the more standard errors it must be higher by. A mistake does not last: the
form that runs is measured at every launch.

Rates are kept apart for 1, 2, 3-4, 5-8, ... rows, because what pays at one row
does not at 64; acceptance is common to all of them. With little of it
observed, the first of the forms runs.

Launches may be recorded later than the next is chosen.
"""

import math
from typing import NamedTuple

from jspec import errors
from jspec.depth import guard_record, labels, outlook

PLAIN, ADAPTIVE, FULL = 'plain', 'adaptive', 'full'
FORMS = (PLAIN, ADAPTIVE, FULL)
MIN_SPACING = 2  # launches between probes, however cheap they are
MAX_SAVED = 32.0  # rounds' worth of probing that may be saved up
RARE = 8  # launches between probes of what cannot be better
CREDIT = 0.75  # rounds' worth of probing that new rows come with, each form
ENOUGH = 32  # observed first drafts that acceptance is believed from
TRIAL = 16  # launches at most that are short because nothing is sure yet
MATTERS = 1.05  # times the rate of the form that runs: worth being careful
_CAUTION, _FEW = 2.0, 16.0  # standard errors to lead by after few rounds
_SPREAD, _ROW_SPREAD = 0.1, 0.8  # of a round's tokens: its time, one row's luck


class Turn(NamedTuple):
  """What a launch is to do: its form, and at most so many rounds."""

  form: str
  num_rounds: int


class _Bucket:
  """What is known at one number of rows."""

  def __init__(self, forms, rows, credit_s):
    self.records = {
      form: guard_record.Record(
        math.hypot(_SPREAD, (form != PLAIN) * _ROW_SPREAD / math.sqrt(rows))
      )
      for form in forms
    }
    self.guesses = {}
    self.saved = dict.fromkeys(forms, credit_s)  # that probes may lose
    self.running = forms[0]
    self.since_probe = 0
    self.last_probed = dict.fromkeys(forms, 0)
    self.num_chosen = 0


class Guard:
  """Chooses the form of each launch.

  Attributes:
    probe_share: of all seconds, what probing may cost.
    half_life: launches after which a measurement counts half.
    forms: the forms that the engine has compiled; the first runs first.
  """

  def __init__(
    self,
    num_drafts: int,
    *,
    probe_share: float = 0.01,
    half_life: float = 1024.0,
    forms: tuple[str, ...] = FORMS,
  ):
    if not forms or not set(forms) <= set(FORMS):
      raise errors.UserError(
        f'guard over forms {forms}: give one or more of {", ".join(FORMS)}'
      )
    self.probe_share = probe_share
    self.half_life = half_life
    self.forms = forms
    self.probe_seconds = 0.0  # What probes cost so far, net.
    self.total_seconds = 0.0
    self._acceptance = labels.Rates(num_drafts)
    self._buckets = {}

  def choose(self, rows: int, num_rounds: int, prices: outlook.Prices) -> Turn:
    """The next launch with so many decoding rows, of `num_rounds` at most."""
    bucket = self._bucket(rows, prices)
    bucket.num_chosen += 1
    bucket.since_probe += 1
    form, rounds = self._probe(bucket, num_rounds) or (bucket.running, 0)
    if rounds:
      bucket.since_probe = 0
    else:
      rounds = 1 if self._is_on_trial(bucket) else num_rounds
    bucket.last_probed[form] = bucket.num_chosen
    return Turn(form, rounds)

  def record(
    self,
    turn: Turn,
    rows: int,
    seconds: int | float,
    tokens: int,
    price_s: float,
    seen: labels.Labels | None,
  ) -> None:
    """Takes in what a launch did.

    Args:
      turn: its form, and the rounds that it had.
      rows: that decoded.
      seconds: measured.
      tokens: that all rows committed.
      price_s: what its rounds were expected to take.
      seen: drafts of some of its rounds; None if it had none.

    Raises:
      UserError: a form that was not chosen from, or no time.
    """
    form, rounds = turn
    is_launch = rounds > 0 and 0 < seconds < math.inf and tokens >= 0
    if form not in self.forms or not is_launch:
      raise errors.UserError(
        f'launch {form!r} of {rounds} rounds and {seconds} s with {tokens}'
        f' tokens: give one of {", ".join(self.forms)}, rounds, a positive time'
        ' and a count'
      )
    bucket = self._buckets[_index(rows)]
    self.total_seconds += seconds
    share = self.probe_share / max(len(self.forms) - 1, 1)
    for other in self.forms:
      if other != bucket.running:
        saved = bucket.saved[other] + share * seconds
        bucket.saved[other] = min(saved, MAX_SAVED * seconds / rounds)
    if seen is not None:
      self._acceptance.update(seen)
    tokens /= rows
    if form != bucket.running:
      cost = seconds - tokens / self._estimate(bucket, bucket.running).rate
      self.probe_seconds += cost
      bucket.saved[form] -= cost
    factor = 0.5 ** (1 / self.half_life)
    for other in bucket.records.values():
      other.all.decay(factor)
    bucket.records[form].add(
      guard_record.Launch(rounds, seconds, tokens, price_s)
    )
    self._switch(bucket)

  def running(self, rows: int) -> str:
    """The form that is best so far with so many rows."""
    return self._buckets[_index(rows)].running

  def _bucket(self, rows, prices):
    index = _index(rows)
    is_new = index not in self._buckets
    if is_new:
      self._buckets[index] = _Bucket(
        self.forms, rows, CREDIT * prices.verify_s[0]
      )
    bucket = self._buckets[index]
    bucket.guesses = self._guess(rows, prices)
    if is_new and self._knows:
      bucket.running = max(
        self.forms, key=lambda form: bucket.guesses[form].rate
      )
    return bucket

  @property
  def _knows(self):
    return len(self.forms) == 1 or self._acceptance.num_seen[0] >= ENOUGH

  def _guess(self, rows, prices):
    survival = self._acceptance.survival().tolist()
    upper = self._acceptance.survival(1.0).tolist()
    found = {}
    for form in self.forms:
      if form == PLAIN:
        found[form] = outlook.plain(prices)
      elif form == FULL:
        found[form] = outlook.full(prices, survival, upper)
      else:
        found[form] = outlook.adaptive(rows, prices, survival, upper)
    return found

  def _estimate(self, bucket, form):
    guess, record = bucket.guesses[form], bucket.records[form]
    if not record.num_launches:
      return guess
    sums = record.all
    error = max(sums.error(), 1e-3 * sums.rate)
    if form != PLAIN and not self._knows:
      return outlook.Guess(sums.rate, error, sums.round_s)
    a, b = guess.error**-2, error**-2
    rate = (a * guess.rate + b * sums.rate) / (a + b)
    return outlook.Guess(rate, (a + b) ** -0.5, sums.round_s)

  def _is_on_trial(self, bucket):
    """Whether another form may well be better than the one that runs."""
    if bucket.num_chosen > TRIAL:
      return False
    running = self._estimate(bucket, bucket.running)
    return any(
      _best(self._estimate(bucket, form)) > MATTERS * running.rate
      for form in self.forms
      if form != bucket.running
    )

  def _probe(self, bucket, num_rounds):
    """The form to probe now, if any, and for how many rounds."""
    if (
      not bucket.records[bucket.running].num_launches
      or bucket.since_probe < MIN_SPACING
    ):
      return None
    running = self._estimate(bucket, bucket.running)
    others = [form for form in self.forms if form != bucket.running]
    for form in sorted(others, key=bucket.last_probed.get):
      estimate = self._estimate(bucket, form)
      loss = estimate.round_s * (1 - estimate.rate / running.rate)
      # What ran little says little about itself.
      rounds = min(num_rounds, 1 + int(bucket.records[form].all.rounds))
      if _best(estimate) < running.rate:
        if bucket.num_chosen - bucket.last_probed[form] < RARE:
          continue
        rounds = 1
      if loss > 0:
        rounds = min(rounds, int(bucket.saved[form] / loss))
      if rounds >= 1:
        return form, rounds
    return None

  def _switch(self, bucket):
    known = {form: self._estimate(bucket, form) for form in self.forms}
    running = known[bucket.running]
    for form in sorted(known, key=lambda f: known[f].rate, reverse=True):
      if form == bucket.running:
        return
      rounds = bucket.records[form].all.rounds
      caution = _CAUTION * _FEW / (_FEW + rounds)
      error = math.hypot(known[form].error, running.error)
      if known[form].rate - running.rate > caution * error:
        bucket.running = form
        return


def _index(rows):
  return max(rows - 1, 0).bit_length()


def _best(estimate):
  return estimate.rate + _CAUTION * estimate.error
