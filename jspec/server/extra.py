# SPDX-License-Identifier: MIT
"""What the server needs and the rest of jspec does not: the extra `serve`."""

import importlib

from jspec import errors

EXTRA = 'serve'
LIBRARIES = ('fastapi', 'httptools', 'prometheus_client', 'pydantic', 'uvicorn')


def check() -> None:
  """Refuses to go on without one of the libraries, in one line."""
  for name in LIBRARIES:
    try:
      importlib.import_module(name)
    except ImportError as error:
      raise errors.UserError(
        f'serving over HTTP needs {name} ({error}); install it with'
        f" `pip install 'jspec[{EXTRA}]'`"
      ) from error
