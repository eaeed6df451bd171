# SPDX-License-Identifier: MIT
"""Which policies keep the target's law, and a refusal by name of the others.

Drafts that are a function of the prefix (rule `walk`, R1) may be cut by
anything: they do not influence the token that the target draws. Sampled drafts
may not: whether a draft is verified must not depend on its own token or on
tokens behind it. What a policy reads, against what the scores depend on:

  scores depend on               static,  first_drop,     dcut, dinkelbach,
                                 stale    dcut of one     libraspec, caddtree
                                 dcut     ratio
  prefix  the prefix             safe     safe            safe
  before  tokens drafted before  safe     safe (chains)   biased to 2.3e-2
  token   its own token too      safe     biased          biased

(D-cut, arXiv 2607.14647, claims the first row; DSpark, arXiv 2607.05147, has
the counter-example of the second: .85 / .15 instead of .7 / .3.) Trees of
sampled siblings are only proved for the first row and the first column, so the
rest is refused for them.

Stale scores, of an earlier round, are safe with everything. Given all that
happened before the round, drafted tokens that were thrown away included, the
plan is fixed and the drafts are drawn anew, with keys of this round
(`jspec.decode.keys`); verification then has the target's law given all that,
and hence without it. For the same reason temperatures that were fitted to what
became of earlier rounds, of this row or of others (`online_sts`), change
nothing in the table: given the past they are numbers, so a calibrated score
depends on the drafts of its round as the raw one does.
"""

from jspec import errors
from jspec.depth import base

PREFIX, BEFORE, TOKEN = 'prefix', 'before', 'token'
WALK = 'walk'
CHAIN_RULES = ('token', 'block')
TREE_RULES = ('recursive', 'traversal')
_RULES = (WALK, *CHAIN_RULES, *TREE_RULES)
_SAFE_READS = {
  PREFIX: (base.NONE, base.STALE, base.EARLIER, base.ALL),
  BEFORE: (base.NONE, base.STALE, base.EARLIER),
  TOKEN: (base.NONE, base.STALE),
}
_DEPENDS = {
  PREFIX: 'on the committed prefix alone',
  BEFORE: 'on the drafted tokens before each',
  TOKEN: 'on the drafted token itself',
}


def check(policy: base.DepthPolicy, rule: str, confidence: str) -> None:
  """Refuses a combination that would not sample from the target.

  Args:
    policy: how drafts are cut.
    rule: name of the verification rule (`jspec.decode.verify.api`), resolved:
      not 'auto'.
    confidence: what the scores depend on: 'prefix' (largest marginals of a
      parallel drafter, drafts of a function of the prefix), 'before' (tokens
      drafted before it), 'token' (the probability of the drafted token).

  Raises:
    UserError: the combination is biased, or not known to be exact; or a name
      is unknown.
  """
  if rule not in _RULES:
    raise errors.UserError(
      f'verification rule {rule!r}: give one of {", ".join(_RULES)}'
    )
  if confidence not in _SAFE_READS:
    raise errors.UserError(
      f'confidence {confidence!r}: give one of {", ".join(_SAFE_READS)}'
    )
  reads = policy.reads
  if reads not in _SAFE_READS[PREFIX]:
    raise errors.UserError(
      f'{policy} reads {reads!r}; a policy reads one of'
      f' {", ".join(_SAFE_READS[PREFIX])}'
    )
  if rule == WALK or reads in _safe(rule, confidence):
    return
  raise errors.UserError(
    f'{policy} with verification rule {rule!r} is not lossless: drafts are'
    f' sampled, confidence depends {_DEPENDS[confidence]} ({confidence!r}) and'
    f' the policy reads {_what(reads)}; {_mend(rule, confidence)}'
  )


def _safe(rule, confidence):
  if rule in TREE_RULES and confidence == BEFORE:
    return _SAFE_READS[TOKEN]
  return _SAFE_READS[confidence]


def _what(reads):
  return 'all scores' if reads == base.ALL else "a draft's own score"


def _mend(rule, confidence):
  mend = 'use static, dcut,mode=stale'
  if confidence == BEFORE and rule in CHAIN_RULES:
    mend += ', first_drop, dcut with one ratio'
  if confidence == TOKEN:
    mend += ', a drafter whose confidence looks at less and says so'
    mend += ' (confidence_depends)'
  return mend + ', or deterministic drafts (rule walk)'
