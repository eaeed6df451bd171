# SPDX-License-Identifier: MIT
"""How the next launch drafts: not at all, by the policy, or the whole block.

The guard compares what the three forms really did and runs the best, so that a
policy whose costs or confidence are wrong never costs much (`depth.guard`); the
cost table tells the policy, and the guard, what a round costs now.

Launches that a caller pinned teach the table only: the guard knows no more than
it would if it alone had chosen.
"""

import dataclasses
import operator
from collections.abc import Sequence

import numpy as np

from jspec.depth import cost_table, guard, labels, outlook
from jspec.depth import costs as costs_lib
from jspec.serve import device, launch, launch_overhead, programs

# Of the expected time of a launch: budgets that took less are not judged by it.
LEAST_SHARE = 0.25


@dataclasses.dataclass(frozen=True)
class Choice:
  """How a launch drafts.

  Attributes:
    form: 'plain', 'adaptive' or 'full'.
    program: the form of the program.
    budget: as in `launch.Inputs`.
    num_rounds: at most.
    chooser: the guard that chose; None where a caller pinned the form.
    costs: what its rounds cost.
    num_rows: that decode.
    context: mean committed tokens of a row.
  """

  form: str
  program: str
  budget: int
  num_rounds: int
  chooser: guard.Guard | None
  costs: costs_lib.Costs
  num_rows: int
  context: float


class Forms:
  """Chooses the form of each launch and learns from it.

  Attributes:
    pinned: the form of every launch; None: the guard's choice.
  """

  def __init__(
    self,
    of: device.Device,
    table: cost_table.CostTable,
    num_drafts: int,
    num_rounds: int,
  ):
    """Takes what is run, what rounds cost, and the rounds of a whole launch."""
    self._device, self._table = of, table
    self._overhead = launch_overhead.LaunchOverhead(num_rounds)
    forms = guard.FORMS if num_drafts else (guard.PLAIN,)
    # The policy runs first; the others have to be better.
    self._guard = guard.Guard(
      num_drafts, forms=sorted_first(forms, guard.ADAPTIVE)
    )
    self._num_drafts = num_drafts
    self.pinned = None

  def switch_off(self) -> None:
    """Drafts no more: the drafter broke."""
    self._guard = guard.Guard(self._num_drafts, forms=(guard.PLAIN,))
    self.pinned = None

  def choose(
    self,
    num_rows: int,
    context: float,
    num_rounds: int,
    *,
    wants_drafts: bool = True,
    wants_policy: bool = False,
  ) -> Choice:
    """How a launch of so many rows, and rounds at most, drafts.

    Without a row that wants drafts it is plain, and with one that chose its
    policy it goes by policies; neither teaches the guard anything.
    """
    form = self.pinned if wants_drafts else guard.PLAIN
    if form is None and wants_policy and guard.ADAPTIVE in self._guard.forms:
      form = guard.ADAPTIVE
    is_guarded = form is None
    if is_guarded:
      form, num_rounds = self._guard.choose(
        num_rows, num_rounds, self._prices(num_rows, context)
      )
    program = _program(form)
    bucket = self._device.bucket(num_rows)
    sizes = self._device.sizes(program, bucket)
    return Choice(
      form=form,
      program=program,
      budget=len(sizes) - 1 if form == guard.FULL else launch.BY_POLICY,
      num_rounds=num_rounds,
      chooser=self._guard if is_guarded else None,
      costs=self._table.costs(bucket, context, sizes),
      num_rows=num_rows,
      context=context,
    )

  def record(
    self,
    choice: Choice,
    seconds: float,
    num_tokens: int,
    used: device.Used,
    *,
    is_split: bool = False,
  ) -> None:
    """Takes in a launch that did nothing but rounds.

    Args:
      choice: how it drafted.
      seconds: from its begin to its end.
      num_tokens: that all its rows emitted.
      used: what its rounds verified.
      is_split: the host had a part, so that its rounds did not cost what the
        table is about.
    """
    budgets = np.flatnonzero(used.by_budget)
    if len(budgets) == 1 and not is_split:
      kind = choice.program, self._device.bucket(choice.num_rows), budgets[0]
      self._overhead.record(kind, used.num_rounds, seconds)
    seconds = self._overhead.as_whole(used.num_rounds, seconds)
    if choice.chooser is self._guard:
      self._guard.record(
        guard.Turn(choice.form, used.num_rounds),
        choice.num_rows,
        seconds,
        num_tokens,
        self._price(choice, used.by_budget),
        self._seen(used),
      )
    if is_split:
      return
    for budget, a_round in self._a_round(choice, seconds, used.by_budget):
      self._teach(choice, budget, a_round)

  def _a_round(self, choice, seconds, by_budget):
    """Seconds of a round at each budget that a launch says something of.

    Where budgets differ, rounds of anchors took what they do in launches of
    their own, and the rest is shared out as expected of the others.
    """
    budgets = np.flatnonzero(by_budget).tolist()
    if len(budgets) > 1 and budgets[0] == 0:
      seconds -= self._price(choice, by_budget[:1])
      budgets = budgets[1:]
    expected = self._round_prices(choice)
    others = sum(by_budget[k] * expected[k] for k in budgets)
    if others < LEAST_SHARE * self._price(choice, by_budget) or seconds <= 0:
      return []
    return [(k, expected[k] * seconds / others) for k in budgets]

  def _teach(self, choice, budget, a_round):
    """Tells the table what a round took."""
    bucket = self._device.bucket(choice.num_rows)
    sizes = self._device.sizes(choice.program, bucket)
    if choice.program == programs.FUSED:
      # As `warm_up` measures: what anchors alone take longer than a plain round
      # is proposing, the rest is verifying, and neither is less than nothing.
      # The table takes medians, which cutting at the least does not bend.
      anchors = float(np.asarray(choice.costs.verify_s)[0])
      if budget == 0:
        drafting = max(a_round - anchors, 0.0)
        self._table.update_draft(bucket, choice.context, drafting)
        return
      a_round = max(a_round - float(choice.costs.draft_s), anchors)
    self._table.update(bucket, sizes[budget], choice.context, a_round)

  def _prices(self, num_rows, context):
    bucket = self._device.bucket(num_rows)
    plain = self._device.sizes(programs.PLAIN, bucket)
    fused = self._device.sizes(programs.FUSED, bucket)
    verify_s, draft_s = self._table.times(bucket, context, fused)
    return outlook.Prices(
      plain_s=self._table.seconds(bucket, plain[0], context),
      draft_s=draft_s,
      nodes=fused,
      verify_s=verify_s,
    )

  def _price(self, choice, by_budget):
    """Seconds that the rounds of a launch were expected to take."""
    # Of the first budgets, where only they are counted.
    return sum(
      map(operator.mul, by_budget.tolist(), self._round_prices(choice))
    )

  def _round_prices(self, choice):
    """Expected seconds of a round at each budget."""
    bucket = self._device.bucket(choice.num_rows)
    sizes = self._device.sizes(choice.program, bucket)
    verify_s, draft_s = self._table.times(bucket, choice.context, sizes)
    if choice.program == programs.PLAIN:
      draft_s = 0.0
    return [draft_s + seconds for seconds in verify_s]

  def _seen(self, used):
    """Of the last round of the launch: the others are not reported a row."""
    if not self._num_drafts:
      return None
    accepted = (used.path > 0).sum(axis=1)
    return labels.of_chain(used.num_verified, accepted, self._num_drafts)


def _program(form):
  return programs.PLAIN if form == guard.PLAIN else programs.FUSED


def sorted_first(forms: Sequence[str], first: str) -> tuple[str, ...]:
  """`forms` with one of them at the front, if it is among them."""
  return tuple(sorted(forms, key=lambda form: form != first))
