# SPDX-License-Identifier: MIT
"""The one exception a user is meant to read."""


class UserError(ValueError):
  """Bad input: the message says what, where and how to mend it, in one line.

  Programs print it as `error: ...` and end with exit code 2. Anything else that
  escapes is a defect of jspec and keeps its traceback.
  """
