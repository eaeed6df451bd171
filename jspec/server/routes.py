# SPDX-License-Identifier: MIT
"""`Routes`: which drafter drafts for whom, as `jspec serve` is told.

  --route model:fast=ngram,best=shipped   names of models, each with a drafter
  --route domain:code=ngram,math=shipped  by what the prompt looks like
  --route speed                           by tokens a second so far

A request that names its drafter gets it; otherwise the first of these decides
that has an opinion, and where none has, the first drafter drafts.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jspec import errors
from jspec.routing import bandit as bandit_lib
from jspec.routing import report, rules

_NONE = 'none'
_KINDS = 'model:NAME=DRAFTER,.., domain:code=DRAFTER,.. or speed'


@dataclasses.dataclass(frozen=True)
class Routes:
  """Who decides, and what was decided.

  Attributes:
    router: decides and counts.
    bandit: that learns, if one does.
    aliases: names of models that stand for a drafter.
  """

  router: report.Reported
  bandit: bandit_lib.Bandit | None = None
  aliases: tuple[str, ...] = ()

  def told(self) -> dict[str, Any]:
    """GET /v1/jspec/routing.

    `data` has a row for each drafter and reason; `learned` the tokens a second
    of each domain and drafter, null unless speed decides.
    """
    return {
      'object': 'list',
      'data': self.router.rows(),
      'learned': self.bandit and self.bandit.tokens_per_second(),
    }


def make(specs: Iterable[str], drafters: Sequence[str]) -> Routes:
  """Reads the values of --route, in the order in which they decide.

  Args:
    specs: see above.
    drafters: names of those that are loaded.

  Raises:
    UserError: a text that is none of these, or names a drafter that is not
      loaded.
  """
  found, bandit, aliases = [rules.ByField()], None, ()
  for spec in specs:
    kind, _, rest = spec.partition(':')
    if kind == 'speed' and not rest:
      bandit = bandit_lib.Bandit(drafters)
      found.append(bandit)
    elif kind == 'domain':
      found.append(rules.ByDomain(_pairs(spec, rest, drafters)))
    elif kind == 'model':
      by_model = _pairs(spec, rest, drafters)
      found.append(rules.ByModel(by_model))
      aliases += tuple(by_model)
    else:
      raise errors.UserError(f'--route {spec}: give {_KINDS}')
  default = drafters[0] if drafters else _NONE
  return Routes(report.Reported(rules.First(found), default), bandit, aliases)


def _pairs(spec, text, drafters):
  """Reads `A=B,C=D`, whose right sides are drafters."""
  found = {}
  for part in text.split(','):
    name, _, drafter = part.partition('=')
    if not (name and drafter) or name in found:
      raise errors.UserError(f'--route {spec}: {part!r}: give {_KINDS}')
    if drafter not in (*drafters, _NONE):
      raise errors.UserError(
        f'--route {spec}: there is no drafter {drafter!r}; --drafter loads'
        f' {", ".join(drafters) or "none"}'
      )
    found[name] = drafter
  return found
