# SPDX-License-Identifier: MIT
"""How well a drafter's confidence predicts acceptance, before and after STS.

The prompts are served with the whole draft verified in every round, so nothing
is cut and every draft behind accepted ones has a label (`depth.labels`). Half
of the prompts, by a hash of their ids, fit one temperature a position
(`depth.sts`), if every other of them agrees with those fitted to the rest; the
figures (`depth.calibration`) are those of the other half.

  confidence   of a draft, given that all before it were accepted: of the
               drafts that were tested
  survival     the product up to a draft, which plans go by: of all drafts

Chains only: nodes of a tree compete, and their labels depend on each other. An
answer that repeats itself is left out (`repetition`), and of a conversation the
first turn is served. Drafts behind a stop id count as what the target says of
them.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jspec import conversation, errors, loading
from jspec.data import sources
from jspec.decode import sampling
from jspec.depth import calibration, cost_table, guard, labels, sts
from jspec.evals import repetition, settings, table_text
from jspec.serve import asks
from jspec.serve import engine as engine_lib
from jspec.serve import settings as settings_lib

_SMALLEST = 1e-6  # A confidence of 0 or 1 has no logit.


@dataclasses.dataclass(frozen=True)
class Rounds:
  """What was drafted and became of it, a round of one row each.

  Attributes:
    prompt: [N] index of the prompt.
    confidence: [N, G] as drafted.
    num_verified: [N] drafts.
    num_accepted: [N] drafts.
  """

  prompt: np.ndarray
  confidence: np.ndarray
  num_verified: np.ndarray
  num_accepted: np.ndarray

  def of(self, keep: np.ndarray) -> 'Rounds':
    """Those of the prompts that `keep` [number of prompts] says."""
    chosen = keep[self.prompt]
    return Rounds(*(x[chosen] for x in vars(self).values()))


def run(
  loaded: loading.LoadedTarget,
  drafter: Any,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  *,
  num_rows: int = 8,
  drafter_name: str | None = None,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Serves the prompts and judges the confidences.

  Args:
    loaded: the target.
    drafter: drafts chains.
    prompts: whose first turns are answered.
    params: for all prompts; each gets its own seed (`conversation.seeded`).
    num_rows: answers decoded at the same time.
    drafter_name: for the report; None takes the class name.
    on_progress: called with (answers done, answers in all).

  Returns:
    JSON values; `table` shows them.

  Raises:
    UserError: no drafter, one that drafts trees, no prompt in one of the
      halves, or a prompt that does not fit the context.
  """
  name = drafter_name or settings.name_of(drafter)
  if drafter is None:
    raise errors.UserError('drafter none has no confidence: name a drafter')
  config = getattr(drafter, 'config', None)  # Not every drafter has one.
  if getattr(config, 'tree_size', 0):
    raise _tree(name)
  prompts = [dataclasses.replace(p, turns=p.turns[:1]) for p in prompts]
  described = settings.describe(loaded, prompts, params, num_rows)
  is_fitted = np.array([is_for_fit(prompt.id) for prompt in prompts])
  _check_halves(is_fitted, len(prompts))
  made = _engine(loaded, drafter, prompts, params, num_rows)
  seen, answers = _serve(made, loaded, prompts, params, name, on_progress)
  is_clean = np.array([not repetition.repeats(tokens) for tokens in answers])
  fitted = seen.of(is_fitted & is_clean)
  judged = seen.of(~is_fitted & is_clean)
  temperatures, (raw, scaled) = sts.checked(
    _logits(fitted),
    fitted.num_verified,
    fitted.num_accepted,
    _is_held_out(fitted.prompt),
  )
  before = confidences(judged)
  after = np.asarray(
    sts.apply(
      jnp.asarray(_clipped(before), jnp.float32),
      jnp.asarray(temperatures, jnp.float32),
    ),
    float,
  )
  return {
    'eval': 'calibration',
    'settings': described,
    'drafter': name,
    'num_draft_tokens': drafter.num_draft_tokens,
    'num_prompts_fitted': int(is_fitted.sum()),
    'num_rounds_fitted': len(fitted.prompt),
    'num_rounds': len(judged.prompt),
    'repeating': [
      prompt.id
      for prompt, keep in zip(prompts, is_clean, strict=True)
      if not keep
    ],
    # Too few rounds through a position leave it the one before.
    'verified_when_fitted': [
      int((fitted.num_verified > g).sum()) for g in range(before.shape[1])
    ],
    'temperatures': temperatures.tolist(),
    'held_out': {
      'brier_before': _number(raw),
      'brier_after': _number(scaled),
      'is_taken': bool(scaled <= raw),
    },
    'before': figures(judged, before),
    'after': figures(judged, after),
  }


def is_for_fit(prompt_id: str) -> bool:
  """Whether a prompt is of the half that temperatures are fitted to."""
  return hashlib.sha256(prompt_id.encode()).digest()[0] % 2 == 0


def _is_held_out(prompt: np.ndarray) -> np.ndarray:
  """Rounds of every other prompt, from the second."""
  return np.searchsorted(np.unique(prompt), prompt) % 2 == 1


def confidences(rounds: Rounds) -> np.ndarray:
  """[N, G] given that all before were accepted; 1/2 if it was not verified."""
  position = np.arange(rounds.confidence.shape[1])
  is_known = position < rounds.num_verified[:, None]
  return np.where(is_known, np.clip(rounds.confidence, 0.0, 1.0), 0.5)


def figures(rounds: Rounds, confidence: np.ndarray) -> dict[str, Any]:
  """Figures of confidence and survival: of all drafts, and by position."""
  num_drafts = confidence.shape[1]
  tested = labels.of_chain(rounds.num_verified, rounds.num_accepted, num_drafts)
  position = np.arange(num_drafts)
  is_verified = position < rounds.num_verified[:, None]
  is_kept = position < rounds.num_accepted[:, None]
  survival = np.cumprod(confidence, axis=1)
  return {
    'confidence': _figures(confidence, tested.is_observed, tested.is_accepted),
    'survival': _figures(survival, is_verified, is_kept),
  }


def table(result: dict[str, Any]) -> str:
  """Markdown: a table of confidence and one of survival, by position."""
  lines = [
    f'target {result["settings"]["target"]}, drafter {result["drafter"]}:'
    f' {result["num_rounds"]} rounds, temperatures from'
    f' {result["num_rounds_fitted"]} others (before -> after)',
  ]
  for name in ('confidence', 'survival'):
    before, after = result['before'][name], result['after'][name]
    rows = [('all', before['all'], after['all'], None)]
    rows += [
      (str(g + 1), b, a, t)
      for g, (b, a, t) in enumerate(
        zip(
          before['by_position'],
          after['by_position'],
          result['temperatures'],
          strict=True,
        )
      )
    ]
    lines += [
      '',
      f'| {name} of draft | drafts | accepted | mean | ECE | Brier | AUROC |'
      ' temperature |',
      '|' + '---|' * 8,
    ]
    for label, b, a, temperature in rows:
      cells = [label, str(b['count']), table_text.number(b['accepted'], 3)]
      for key in ('confidence', 'ece', 'brier', 'auroc'):
        cells.append(
          f'{table_text.number(b[key], 3)} -> {table_text.number(a[key], 3)}'
        )
      cells.append('' if temperature is None else f'{temperature:.2f}')
      lines.append('| ' + ' | '.join(cells) + ' |')
  if min(result['verified_when_fitted']) < sts.MIN_ROUNDS:
    lines += [
      '',
      f'A position with fewer than {sts.MIN_ROUNDS} rounds to fit keeps the'
      ' temperature of the one before it.',
    ]
  held_out = result['held_out']
  if not held_out['is_taken']:
    lines += [
      '',
      'Temperatures stay 1: fitted to half of the prompts for fitting they did'
      ' not prove themselves on the others (Brier score of survival'
      f' {held_out["brier_before"]} -> {held_out["brier_after"]}); give more'
      ' prompts.',
    ]
  if result['repeating']:
    lines += [
      '',
      f'{len(result["repeating"])} answers repeat themselves and are left out.',
    ]
  return '\n'.join(lines)


def _engine(loaded, drafter, prompts, params, num_rows):
  """An engine that verifies whole drafts, one round a launch."""
  # Nothing is planned, so nothing asks what rounds cost.
  costs = cost_table.CostTable()
  costs.add(num_rows, num_rows, 0, 1.0)
  costs.add_draft(num_rows, 0, 0.0)
  made = engine_lib.Engine(
    loaded.model,
    drafter,
    settings_lib.Settings(
      max_rows=num_rows,
      max_len=conversation.needed_len(loaded, prompts, params.max_tokens),
      num_rounds=1,  # A launch reports the drafts of its last round.
      row_buckets=(num_rows,),
      num_budgets=2,
      policies=('static',),
      scales_confidence=False,  # What the drafter says is judged.
    ),
    costs=costs,
  )
  made.forms.pinned = guard.FULL
  return made


class _Recorder:
  """Takes the rounds of every launch; see `Engine.on_launch`."""

  def __init__(self, num_drafts: int):
    self.rounds = []
    self.num_verified = np.zeros((num_drafts,), int)  # through each position

  def __call__(self, sent, used, num_tokens, seconds) -> None:
    del num_tokens, seconds
    for i, decode in enumerate(sent.plan.decodes):
      num_verified = int(used.num_verified[i])
      if num_verified < 0:  # The row had ended before.
        continue
      self.num_verified[:num_verified] += 1
      num_accepted = int(np.sum(used.path[i] > 0))
      self.rounds.append(
        (decode.request_id, used.confidence[i], num_verified, num_accepted)
      )

  def all(self) -> Rounds:
    """What was taken."""
    prompt, confidence, num_verified, num_accepted = zip(
      *self.rounds, strict=True
    )
    return Rounds(
      np.array(prompt),
      np.stack(confidence).astype(float),
      np.array(num_verified),
      np.array(num_accepted),
    )


def _serve(made, loaded, prompts, params, name, on_progress):
  """Rounds of all prompts, and the tokens of their answers."""
  made.on_launch = recorder = _Recorder(made.metrics.num_drafts)
  requests = conversation.seeded(params, len(prompts))
  for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
    messages = [{'role': 'user', 'content': prompt.turns[0]}]
    ids = conversation.encode(loaded, messages)
    made.submit(ids, asks.Ask(params=request), request_id=i)
  answers = [[] for _ in prompts]
  num_done, already = 0, made.metrics.num_drafted.copy()
  while made.has_work:
    for event in made.step():
      answers[event.request_id] += event.tokens
      num_done += event.finish_reason is not None
      if event.finish_reason == 'failed':
        raise errors.UserError(
          'the target gives no finite logit in its answer to prompt'
          f' {prompts[event.request_id].id!r}; check its weights'
        )
    # Of a chain every draft is one deeper than the draft before it.
    num_drafted = made.metrics.num_drafted - already
    if not np.array_equal(num_drafted, recorder.num_verified):
      raise _tree(name)
    if on_progress is not None:
      on_progress(num_done, len(prompts))
  made.on_launch = None
  return recorder.all(), answers


def _tree(name):
  return errors.UserError(
    f'drafter {name} drafts trees, and calibration judges chains: let it draft'
    ' a chain, as in shipped,tree_size=0'
  )


def _check_halves(is_fitted, num_prompts):
  if is_fitted.all() or not is_fitted.any():
    raise errors.UserError(
      f'all of {num_prompts} prompts fall into one half, which depends on their'
      ' ids; one half fits and the other is judged, so give more prompts'
    )


def _clipped(confidence):
  return np.clip(confidence, _SMALLEST, 1 - _SMALLEST)


def _logits(rounds):
  confidence = _clipped(confidences(rounds))
  return np.log(confidence) - np.log1p(-confidence)


def _figures(values, is_observed, is_accepted):
  """JSON values of `calibration.by_position`, and of all positions together."""
  together = [x.reshape(-1, 1) for x in (values, is_observed, is_accepted)]
  return {
    'all': _json(calibration.by_position(*together)[0]),
    'by_position': [
      _json(at)
      for at in calibration.by_position(values, is_observed, is_accepted)
    ],
  }


def _json(figures_):
  """With None for what is nan, which JSON has no word for."""
  return {name: _number(value) for name, value in figures_._asdict().items()}


def _number(value):
  return None if math.isnan(value) else value
