# SPDX-License-Identifier: MIT
"""What the host says of a launch, in plain containers: dicts, tuples, arrays.

  Inputs(rows, ..., costs=Costs(nodes, ...), given=Given(draft=Draft(...), ...))
  {rows, ..., costs: {nodes, ...}, given: {draft: {...}, ...}}

Numpy arrays go to a program as they are, which costs the host a tenth of
putting them on the device first, and plain containers can be written down for
other hosts (`frames`). What lies on the device already is named by `Held`.
"""

import dataclasses
from typing import Any

from jspec import tree
from jspec.decode import given as given_lib
from jspec.decode import round as round_lib
from jspec.depth import costs as costs_lib
from jspec.serve import launch


@dataclasses.dataclass(frozen=True)
class Held:
  """Stands for something that every process has on its devices.

  Attributes:
    name: 'nothing', what is given where the host says nothing of a round;
      'no draft', the draft in it; 'proposed', the last drafts proposed.
  """

  name: str


NOTHING, NO_DRAFT, PROPOSED = (
  Held('nothing'),
  Held('no draft'),
  Held('proposed'),
)


def of(value: Any) -> dict[str, Any]:
  """The fields of an `Inputs`, `Given`, `Costs` or `Draft`, all the way down.

  The law of a draft stays as it is: the host never makes one.
  """
  nested = (launch.Inputs, given_lib.Given, costs_lib.Costs, tree.Draft)
  return {
    field.name: of(part) if isinstance(part, nested) else part
    for field in dataclasses.fields(value)
    for part in (getattr(value, field.name),)
  }


def inputs(said: dict[str, Any]) -> launch.Inputs:
  """`of` the other way round, inside a program."""
  given = said['given']
  if given is not None:
    draft = tree.Draft(**given['draft'])
    given = given_lib.Given(**{**given, 'draft': draft})
  costs = costs_lib.Costs(**said['costs'])
  return launch.Inputs(**{**said, 'costs': costs, 'given': given})


def run(
  target, drafter, state: round_lib.State, said: dict[str, Any], **options: Any
) -> tuple[round_lib.State, launch.Report]:
  """`launch.run` of inputs in plain containers."""
  return launch.run(target, drafter, state, inputs(said), **options)
