# SPDX-License-Identifier: MIT
"""Drafters change while the server runs: a newer checkpoint, the same answers.

  POST /v1/jspec/drafters/NAME   load beside the event loop | swap between two
                                 steps of the engine, which counts its versions
  GET  /v1/jspec/drafters        who is loaded, from where, and what it did
  SIGHUP                         all again from where they came

Requests that run go on: whoever drafts, the target decides every token
(`serve.swap`). A path without options keeps those of the drafter it replaces,
since programs were compiled for them.
"""

import asyncio
import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jspec import errors
from jspec.server import errors as api_errors
from jspec.server import logs
from jspec.server import served as served_lib

_COUNTS = ('num_rounds', 'num_tokens', 'num_drafted', 'num_accepted')


@dataclasses.dataclass(frozen=True)
class Source:
  """A drafter that is loaded.

  Attributes:
    spec: what it was loaded from, with its options.
    version: of the engine when it came; 0 from the start.
    before: counts under its name when it came.
  """

  spec: str
  version: int = 0
  before: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Swaps:
  """What was loaded, and how more is.

  Attributes:
    sources: by the names that requests give.
  """

  def __init__(
    self,
    specs: Mapping[str, str],
    load: Callable[[str], Any],
    *,
    built_in: Collection[str] = (),
  ):
    """Begins with the drafters of the engine's start.

    Args:
      specs: what each was loaded from.
      load: loads one; may take long.
      built_in: first words of specs that are no files, and never change.
    """
    self.sources = {name: Source(spec) for name, spec in specs.items()}
    self._load, self._built_in = load, built_in
    self._turn = asyncio.Lock()

  async def swap(
    self, served: served_lib.Served, name: str, path: str
  ) -> dict[str, Any]:
    """Lets a drafter from `path` take the place of `name`; tells of it.

    Raises:
      ApiError: there is nobody of that name.
      UserError: there is no such drafter, or the programs cannot run it.
      Unavailable: the engine starts, stops or broke.
    """
    served.driver.check_there()
    if name not in self.sources:
      raise api_errors.ApiError(
        404,
        f'there is no drafter {name!r}; this server has'
        f' {", ".join(self.sources) or "none"}',
        code='drafter_not_found',
      )
    folder, comma, _ = path.partition(',')
    if not pathlib.Path(folder).expanduser().is_dir():
      raise api_errors.ApiError(
        400,
        f'path: there is no folder {folder!r} on this machine; name a'
        ' checkpoint or a workdir',
        param='path',
      )
    if not comma:
      _, comma, options = self.sources[name].spec.partition(',')
      path = folder + comma + options
    await self._replace(served, name, path)
    return one(served, name)

  async def again(self, served: served_lib.Served) -> None:
    """Loads every drafter from where it came; one that cannot be stays."""
    for name, source in list(self.sources.items()):
      if source.spec.split(',')[0] in self._built_in:
        continue
      try:
        await self._replace(served, name, source.spec)
      except Exception as error:
        logs.say('drafter kept', name=name, reason=api_errors.of(error).message)

  async def _replace(self, served, name, spec):
    async with self._turn:
      drafter = await asyncio.to_thread(self._load, spec)
      if drafter is None:
        raise errors.UserError(f'{spec} is no drafter')
      of = served.drafters[name]

      def take(engine):
        before = _counts(engine, of)
        return Source(spec, engine.swap(drafter, of), before)

      found = self.sources[name] = await served.driver.call(take)
    logs.say('drafter swapped', name=name, source=spec, version=found.version)


def every(served: served_lib.Served) -> dict[str, Any]:
  """GET /v1/jspec/drafters."""
  names = served.swaps.sources
  return {'object': 'list', 'data': [one(served, name) for name in names]}


def one(served: served_lib.Served, name: str) -> dict[str, Any]:
  """One drafter, and what it did since it came.

  Counts are of the requests that it drafts for; those of a drafter that is
  alone are of all requests.
  """
  source, engine = served.swaps.sources[name], served.driver.engine
  found = {
    'id': name,
    'object': 'drafter',
    'source': source.spec,
    'version': source.version,
  }
  if engine is not None:
    now = _counts(engine, served.drafters[name])
    found |= {key: now[key] - source.before.get(key, 0) for key in _COUNTS}
  return found


def _counts(engine, name):
  of = engine.metrics if name is None else engine.metrics.by_drafter.get(name)
  if of is None:  # Nobody asked for it yet.
    return dict.fromkeys(_COUNTS, 0)
  rounds, tokens, *drafts = (getattr(of, key) for key in _COUNTS)
  values = (rounds, tokens, *(int(each.sum()) for each in drafts))
  return dict(zip(_COUNTS, values, strict=True))
