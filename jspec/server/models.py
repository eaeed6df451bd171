# SPDX-License-Identifier: MIT
"""GET /v1/models: the names under which the target is served."""

from typing import Any

from jspec.server import served as served_lib


def every(served: served_lib.Served, created: int) -> dict[str, Any]:
  """The list."""
  return {
    'object': 'list',
    'data': [one(served, name, created) for name in served.names],
  }


def one(served: served_lib.Served, name: str, created: int) -> dict[str, Any]:
  """One of them; ApiError if there is none of that name.

  Args:
    served: the target.
    name: of the model.
    created: when the server started, seconds since 1970.
  """
  served.check_model(name)
  versions = {}
  if served.swaps is not None:
    sources = served.swaps.sources.items()
    versions['drafter_versions'] = {name: of.version for name, of in sources}
  return {
    'id': name,
    'object': 'model',
    'created': created,
    'owned_by': 'jspec',
    'max_model_len': served.context_len,
    'drafters': [*served.drafters, served_lib.NONE],
    'depth_policies': list(served.policies),
    **versions,
  }
