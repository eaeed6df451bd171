# SPDX-License-Identifier: MIT
"""What a user chooses about an engine, and what follows from it."""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.decode.verify import api as verify
from jspec.depth import api as depth
from jspec.depth import base as depth_lib
from jspec.depth import libraspec, safety
from jspec.drafters import base as drafters
from jspec.drafters import extending
from jspec.serve import config as config_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What a user chooses.

  Attributes:
    max_rows: requests decoded side by side.
    max_len: most tokens of prompt and answer together; None: the target's own
      limit.
    num_pages: pages of the pool; None: as many as `max_rows` requests of
      `max_len` tokens need.
    page_size: tokens of a page; None: 32, and 128 on TPUs, which copy shorter
      pages of narrow heads.
    num_rounds: most rounds between two visits of the host.
    row_buckets: rows that launches are compiled for; None: powers of 4, and
      `max_rows`.
    num_budgets: most totals of nodes a round is compiled for.
    chunk_sizes: tokens of a prefill chunk, ascending.
    max_prefill_tokens: most of them in a launch, so that prompts do not hold up
      answers.
    extend_to: most drafts of a row where `libraspec`, the first policy, asks
      the drafter to go on (`drafters.extending`); None: it never does.
    policies: who decides how many drafts are verified, as `depth.api.make`
      reads them; the first is used unless a request, or the engine's owner,
      asks for another.
    rule: how drafts are verified (`verify.api`).
    scales_confidence: policies go by confidence at temperatures that follow
      what is accepted (`confidence`), not as the drafter says it.
  """

  max_rows: int = 16
  max_len: int | None = None
  num_pages: int | None = None
  page_size: int | None = None
  num_rounds: int = 4
  row_buckets: tuple[int, ...] | None = None
  num_budgets: int = 6
  chunk_sizes: tuple[int, ...] = (16, 64, 256)
  max_prefill_tokens: int = 256
  extend_to: int | None = None
  policies: tuple[str, ...] = ('dcut',)
  rule: str = verify.WALK
  scales_confidence: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """What follows for one target and drafter.

  Attributes:
    scheduler: sizes of the host's side.
    capacity: most pages of a row.
    row_buckets: rows of a launch, ascending.
    num_budgets: most budgets of a round.
    policies: who plans.
    policy_names: what requests call them; none where nothing is drafted.
    rule: how drafts are verified.
    scales_confidence: as of `Settings`.
  """

  scheduler: config_lib.SchedulerConfig
  capacity: int
  row_buckets: tuple[int, ...]
  num_budgets: int
  policies: tuple[depth_lib.DepthPolicy, ...]
  policy_names: tuple[str, ...]
  rule: str
  scales_confidence: bool


def resolve(settings: Settings, target, drafter) -> Sizes:
  """Fills in what was left open and refuses what cannot be.

  Raises:
    UserError: a size, a policy or a rule that does not fit the target, the
      drafter or one another.
  """
  max_len = target.max_len if settings.max_len is None else settings.max_len
  _check(
    2 <= max_len <= target.max_len,
    f"max_len={max_len}: give 2 to the target's context of"
    f' {target.max_len} tokens',
  )
  _check(
    settings.max_rows >= 1, f'max_rows={settings.max_rows}: give at least 1'
  )
  buckets = settings.row_buckets
  if buckets is None:
    buckets = _powers(settings.max_rows)
  _check(
    list(buckets) == sorted(set(buckets))
    and buckets[0] >= 1
    and buckets[-1] == settings.max_rows,
    f'row_buckets={buckets}: give ascending numbers from 1 to'
    f' max_rows={settings.max_rows}',
  )
  _check(
    settings.num_budgets >= 2,
    f'num_budgets={settings.num_budgets}: give at least 2',
  )
  page_size = settings.page_size
  if page_size is None:
    page_size = 128 if jax.default_backend() == 'tpu' else 32
  _check(page_size >= 1, f'page_size={page_size}: give at least 1')
  capacity = -(-max_len // page_size)
  num_pages = settings.num_pages
  if num_pages is None:
    num_pages = settings.max_rows * capacity
  policies = tuple(depth.make(text) for text in settings.policies)
  _check(bool(policies), 'no policy is given; name one, such as dcut')
  if drafter is not None:
    for policy in policies:
      depends = drafters.confidence_depends(drafter)
      safety.check(policy, settings.rule, depends)
  return Sizes(
    scheduler=config_lib.SchedulerConfig(
      num_pages=num_pages,
      page_size=page_size,
      max_rows=settings.max_rows,
      max_len=max_len,
      max_drafts=0 if drafter is None else drafter.num_draft_tokens,
      num_rounds=settings.num_rounds,
      chunk_sizes=settings.chunk_sizes,
      max_prefill_tokens=settings.max_prefill_tokens,
    ),
    capacity=capacity,
    row_buckets=buckets,
    num_budgets=settings.num_budgets,
    policies=policies,
    policy_names=() if drafter is None else settings.policies,
    rule=settings.rule,
    scales_confidence=settings.scales_confidence,
  )


def extended(settings: Settings, drafter):
  """The drafter, which goes on behind its drafts if that is wanted.

  Raises:
    UserError: the policy, the rule or the drafter does not let it.
  """
  if settings.extend_to is None or drafter is None:
    return drafter
  policy = depth.make(settings.policies[0]) if settings.policies else None
  _check(
    isinstance(policy, libraspec.LibraSpec),
    f'extend_to={settings.extend_to} with policy {settings.policies}: give'
    ' libraspec first, which says how far to go',
  )
  _check(
    settings.rule == verify.WALK,
    f'extend_to={settings.extend_to} with rule {settings.rule!r}: sampled'
    f' drafts are not extended, use rule {verify.WALK!r}',
  )
  most = settings.extend_to

  def more(scores):
    num_rows = scores.shape[0]
    load = depth_lib.Load(
      is_active=jnp.ones((num_rows,), bool),
      limits=jnp.full((num_rows,), most, jnp.int32),
    )
    return policy.extension(scores, load)

  return extending.Extending(drafter, more, most)


def _powers(max_rows):
  """1, 4, 16, ... and the most."""
  powers = [1]
  while powers[-1] * 4 < max_rows:
    powers.append(powers[-1] * 4)
  return tuple(sorted({*powers, max_rows}))


def _check(is_good, message):
  if not is_good:
    raise errors.UserError(message)
