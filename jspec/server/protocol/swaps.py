# SPDX-License-Identifier: MIT
"""The body of POST /v1/jspec/drafters/NAME."""

from typing import Annotated

import pydantic

from jspec.server.protocol import common


class SwapRequest(common.Body):
  """Which drafter takes the place.

  Attributes:
    path: a checkpoint folder or the workdir of a training run, on the server's
      machine; options may follow it as on the command line.
  """

  path: Annotated[str, pydantic.Field(min_length=1, max_length=4096)]
