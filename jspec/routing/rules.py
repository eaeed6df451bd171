# SPDX-License-Identifier: MIT
"""Routers that go by what is written: a field, a model's name, a domain."""

from collections.abc import Mapping, Sequence

from jspec import errors
from jspec.routing import base, classify


class ByField:
  """The drafter that the request names."""

  def choose(self, request: base.Request) -> base.Choice | None:
    if request.drafter is None:
      return None
    return base.Choice(request.drafter, 'the request names it')

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    """Nothing to learn."""


class ByModel:
  """A drafter for each name of a model."""

  def __init__(self, drafters: Mapping[str, str]):
    self._drafters = dict(drafters)

  def choose(self, request: base.Request) -> base.Choice | None:
    drafter = self._drafters.get(request.model)
    if drafter is None:
      return None
    return base.Choice(drafter, f'of model {request.model}')

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    """Nothing to learn."""


class ByDomain:
  """A drafter for prompts that look like code, math or chat (`classify`)."""

  def __init__(self, drafters: Mapping[str, str]):
    """Takes drafters by domain; others are left to whom comes next.

    Raises:
      UserError: a domain that no prompt is of.
    """
    unknown = sorted(set(drafters) - set(classify.DOMAINS))
    if unknown:
      raise errors.UserError(
        f'routing by domain {unknown[0]!r}: prompts are one of'
        f' {", ".join(classify.DOMAINS)}'
      )
    self._drafters = dict(drafters)

  def choose(self, request: base.Request) -> base.Choice | None:
    domain = classify.domain(request.text)
    drafter = self._drafters.get(domain)
    if drafter is None:
      return None
    return base.Choice(drafter, f'the prompt looks like {domain}', domain)

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    """Nothing to learn."""


class First:
  """The first of several routers that decides."""

  def __init__(self, routers: Sequence[base.Router]):
    self._routers = tuple(routers)

  def choose(self, request: base.Request) -> base.Choice | None:
    for router in self._routers:
      choice = router.choose(request)
      if choice is not None:
        return choice
    return None

  def observe(self, choice: base.Choice, result: base.Result) -> None:
    for router in self._routers:
      router.observe(choice, result)
