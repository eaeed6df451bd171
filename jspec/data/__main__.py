# SPDX-License-Identifier: MIT
"""`python -m jspec.data` is `jspec data`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['data', *sys.argv[1:]]))
