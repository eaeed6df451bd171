# SPDX-License-Identifier: MIT
"""`python -m jspec.bakeoff` is `jspec bakeoff`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['bakeoff', *sys.argv[1:]]))
