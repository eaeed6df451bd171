# SPDX-License-Identifier: MIT
"""`python -m jspec.import` is `jspec import`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['import', *sys.argv[1:]]))
