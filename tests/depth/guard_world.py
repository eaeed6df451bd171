# SPDX-License-Identifier: MIT
"""A machine to guard: a drafter, D-cut, and what rounds take.

Drafts are chains. Each has an easiness drawn from a Beta law; the policy sees
it with noise. Launches scatter by 8 %, and one in thirty takes twice as long.
"""

import numpy as np

from jspec.depth import guard, labels, outlook

NUM_DRAFTS = 3
NUM_ROUNDS = 4
# Rounds of a small model on two cores, by rows.
PRICES = {
  1: outlook.Prices(0.020, 0.003, (1, 4), (0.020, 0.027)),
  4: outlook.Prices(0.036, 0.004, (4, 10, 16), (0.036, 0.050, 0.066)),
  16: outlook.Prices(
    0.057, 0.006, (16, 25, 40, 64), (0.057, 0.075, 0.105, 0.152)
  ),
}
LAUNCH_S = 0.0007  # besides its rounds


class Machine:
  """Rows that decode; `first` is the acceptance of a row's first draft."""

  def __init__(self, rows, first, rng):
    self.rows, self.first, self.rng = rows, first, rng
    self.prices = PRICES[rows]

  def run_round(self, form):
    """Seconds, tokens of all rows, and drafts verified and accepted."""
    if form == guard.PLAIN:
      return self.prices.plain_s, self.rows, None
    confidence, accepted = self._draft()
    seconds, verified = self._plan(form, confidence)
    accepted = np.minimum(verified, accepted)
    return seconds, self.rows + int(accepted.sum()), (verified, accepted)

  def launch(self, turn):
    """Seconds, tokens, price and labels of the last round."""
    price_s, tokens, drafts = 0.0, 0, None
    for _ in range(turn.num_rounds):
      seconds, committed, drafts = self.run_round(turn.form)
      price_s += seconds
      tokens += committed
    noise = np.exp(0.08 * self.rng.standard_normal())
    noise *= 1 + (self.rng.random() < 0.03)
    seen = labels.of_chain(*drafts, NUM_DRAFTS) if drafts else None
    return (price_s + LAUNCH_S) * noise, tokens, price_s, seen

  def means(self, number=600):
    """Mean seconds and tokens of a round of each form."""
    return {
      form: np.mean([self.run_round(form)[:2] for _ in range(number)], axis=0)
      for form in guard.FORMS
    }

  def _draft(self):
    mean = self.first * 0.9 ** np.arange(NUM_DRAFTS)
    shape = self.rows, NUM_DRAFTS
    easy = self.rng.beta(1.5 * mean, 1.5 * (1 - mean), shape)
    easy = np.clip(easy, 1e-4, 1 - 1e-4)
    logit = np.log(easy / (1 - easy)) + 0.7 * self.rng.standard_normal(shape)
    luck = self.rng.random(shape) < easy
    accepted = np.cumprod(luck, axis=1).sum(axis=1)
    return np.cumprod(1 / (1 + np.exp(-logit)), axis=1), accepted

  def _plan(self, form, confidence):
    prices = self.prices
    if form == guard.FULL:
      everything = np.full(self.rows, NUM_DRAFTS)
      return prices.draft_s + prices.verify_s[-1], everything
    ranked = -np.sort(-confidence.ravel())
    kept = np.minimum(np.array(prices.nodes) - self.rows, ranked.size)
    gained = np.concatenate([[0.0], np.cumsum(ranked)])[kept]
    seconds = prices.draft_s + np.array(prices.verify_s)
    best = int(np.argmax((self.rows + gained) / seconds))
    least = ranked[kept[best] - 1] if kept[best] else 2.0
    return float(seconds[best]), (confidence >= least).sum(axis=1)


def run(subject, machine, means, num_launches, *, lag=1, is_whole=False):
  """Tokens a second over the best form's, and the turns that were taken.

  Runs as many rounds as so many whole launches have. Counted are the means of
  each form, so that luck with tokens is not the guard's.

  Args:
    subject: the guard.
    machine: what it guards.
    means: `machine.means()`.
    num_launches: of `NUM_ROUNDS` rounds each.
    lag: launches that are chosen before one is recorded.
    is_whole: let every launch have all its rounds, whatever the guard says.
  """
  waiting, turns, seconds, tokens, done = [], [], 0.0, 0.0, 0
  while done < num_launches * NUM_ROUNDS:
    turn = subject.choose(machine.rows, NUM_ROUNDS, machine.prices)
    if is_whole:
      turn = turn._replace(num_rounds=NUM_ROUNDS)
    turns.append(turn)
    done += turn.num_rounds
    waiting.append((turn, machine.rows, *machine.launch(turn)))
    round_s, committed = means[turn.form]
    seconds += turn.num_rounds * round_s + LAUNCH_S
    tokens += turn.num_rounds * committed
    if len(waiting) > lag:
      subject.record(*waiting.pop(0))
  for launch in waiting:
    subject.record(*launch)
  best = max(
    committed / (round_s + LAUNCH_S / NUM_ROUNDS)
    for round_s, committed in means.values()
  )
  return tokens / seconds / best, turns
