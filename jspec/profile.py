# SPDX-License-Identifier: MIT
"""`python -m jspec.profile` is `jspec profile`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['profile', *sys.argv[1:]]))
