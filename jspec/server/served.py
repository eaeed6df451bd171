# SPDX-License-Identifier: MIT
"""`Served`: all that the endpoints need to know, in one value."""

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jspec import errors
from jspec.server import driver as driver_lib
from jspec.server import errors as api_errors
from jspec.server import limits as limits_lib
from jspec.server import routes as routes_lib

NONE = 'none'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
  """One target behind one engine.

  Attributes:
    driver: of the engine.
    target: with `name`, `tokenizer`, `template` and `stop_ids`
      (`loading.LoadedTarget`).
    names: under which requests ask for it; the first is told.
    vocab_size: of the target's head.
    context_len: most tokens of prompt and answer.
    drafters: names that requests may give, and what the engine calls them
      (`asks.Ask.drafter`); the first is used where none is given.
    policies: depth policies that requests may name; the first plans otherwise.
    routes: who drafts for requests that do not say; None: the first.
    limits: what clients may ask.
    compiler: reads grammars (`serve.structured.Compiler`); None: requests
      cannot have any.
    seeds: draws the seeds of requests that bring none.
    clock: seconds since 1970, for what is told; the driver has its own.
    logs_text: prompts and answers go into the log.
    spans: tells OpenTelemetry of requests (`tracing.Spans`); None: nobody.
    swaps: changes drafters (`swaps.Swaps`), where somebody may; None: nobody.
  """

  driver: driver_lib.Driver
  target: Any
  names: tuple[str, ...]
  vocab_size: int
  context_len: int
  drafters: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
  policies: tuple[str, ...] = ()
  routes: routes_lib.Routes | None = None
  limits: limits_lib.Limits = limits_lib.Limits()
  compiler: Any = None
  seeds: random.Random = dataclasses.field(default_factory=random.SystemRandom)
  clock: Callable[[], float] = time.time
  logs_text: bool = False
  spans: Any = None
  swaps: Any = None

  def __post_init__(self):
    if not self.names or not all(self.names):
      raise errors.UserError('the served model has no name; give one')
    if NONE in self.drafters:
      raise errors.UserError(f'a drafter is called {NONE!r}; call it otherwise')

    if self.routes is None:
      routes = routes_lib.make((), tuple(self.drafters))
      object.__setattr__(self, 'routes', routes)

  @property
  def now(self) -> int:
    """Whole seconds since 1970."""
    return int(self.clock())

  def texts(self, prompts: Sequence[Sequence[int]]) -> list[str] | None:
    """Prompts for the log, if it may have them."""
    if not self.logs_text:
      return None
    decode = self.target.tokenizer.decode
    return [decode(prompt, skip_special=False) for prompt in prompts]

  def check_model(self, name: str | None) -> None:
    """Refuses a model that is not here; None is the one that is."""
    if name is not None and name not in self.names:
      raise api_errors.ApiError(
        404,
        f'the model {name!r} does not exist; this server has'
        f' {", ".join(self.names)}',
        param='model',
        code='model_not_found',
      )

  def drafter(self, name: str | None) -> str | None:
    """What the engine calls a drafter; ApiError if nobody has the name."""
    if name is None or name == NONE:
      return name
    if name not in self.drafters:
      raise api_errors.ApiError(
        400,
        f'speculative.method: there is no drafter {name!r}; give one of'
        f' {", ".join((*self.drafters, NONE))}',
        param='speculative.method',
        code='invalid_value',
      )
    return self.drafters[name]

  def policy(self, name: str | None) -> str | None:
    """A depth policy by its name; ApiError if the engine has none such."""
    if name is None or name in self.policies:
      return name
    has = ', '.join(self.policies) or 'none, since nothing is drafted'
    raise api_errors.ApiError(
      400,
      f'speculative.depth_policy: {name!r} is not loaded; there is: {has}',
      param='speculative.depth_policy',
      code='invalid_value',
    )
